"""A model in an object store, with what the operator renders for it: real vLLM has the weights of the same model on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server import serving as running
from tests.engine.server import text
from tests.plugin.conftest import HOME
from tests.plugin.object_store import BUCKET, KEYS, REGION, Store, object_store
from tests.plugin.server import PluginHome, answer
from tests.unit.builders import serving, wanted
from tools.images.engine_venv import streamer
from tools.images.recipes import ROOT

pytestmark = pytest.mark.engine

MODEL = HOME / "models" / "gemma-4-tiny"
NAME = "gemma-4-tiny"
URI = f"s3://{BUCKET}/{NAME}"
POOL = {
    "gpus": 0,
    "maxModelLen": 4096,
    "modalities": {"video": {"count": 1, "frames": 6}},
    "extraArgs": ["--enforce-eager"],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    bucket = tmp_path_factory.mktemp("bucket")
    shutil.copytree(MODEL, bucket / NAME)
    with object_store(bucket) as made:
        yield made


def container(store: Store, **model: Any) -> dict[str, Any]:
    """The engine's as it is rendered: the store by its name, not its number, as buckets are then asked for in another way."""
    source = {
        "uri": URI,
        "secretName": "store",
        "endpoint": store.url.replace("127.0.0.1", "localhost"),
        "region": REGION,
    }
    about = {"id": NAME, "source": {"objectStore": source}, **model}
    child = next(c for c in wanted(serving({"interactive": POOL}, model=about)) if c["kind"] == "Deployment")
    found: dict[str, Any] = child["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(found: dict[str, Any], cache: Path) -> dict[str, str]:
    """The container's, with a folder in the place of its volume, and the Secret's keys."""
    assert found["envFrom"] == [{"secretRef": {"name": "store"}}]
    given = {v["name"]: re.sub(r"^/cache\b", str(cache), v["value"]) for v in found["env"]}
    return {**given, **KEYS}


def test_the_weights_are_those_on_disk(store: Store, tmp_path: Path) -> None:
    path = ":".join(map(str, (ROOT / "images" / "engine", streamer(), ROOT)))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment(container(store), tmp_path)}
    read = [f"safetensors={MODEL}", f"runai_streamer={MODEL}", f"runai_streamer={URI}"]
    command = [HOME / "bin" / "python", "-m", "tests.plugin.weights", *read]
    done = subprocess.run(
        command, cwd=ROOT, env={**env, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    digests = re.findall(r"^weights: (\w+)$", done.stdout, re.MULTILINE)
    assert len(digests) == 3, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(set(digests)) == 1
    assert store.read[f"{NAME}/model.safetensors"]
    assert not store.refused


def test_an_engine_starts_from_the_store_with_the_rendered_command_and_answers(store: Store, tmp_path: Path) -> None:
    found = container(store, loaderConfig={"concurrency": 4, "distributed": True})
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": store.url}  # where it would be refused, and so be seen
    home = PluginHome(HOME, {**environment(found, tmp_path), **hub, "VLLM_PLUGINS": "none"}, before=(streamer(),))
    store.read.clear()
    with running(home, found["args"], NAME, tmp_path) as server:
        assert json.loads(server.get("/v1/models"))["data"][0]["root"] == URI
        assert len(answer(server, [text("What is the answer?")])) == 8
    names = {name.removeprefix(f"{NAME}/") for name in store.read}
    assert {"config.json", "tokenizer.json", "processor_config.json", "model.safetensors"} <= names
    assert not store.refused
    assert not list(tmp_path.rglob("*.safetensors")), "weights go straight into memory"
