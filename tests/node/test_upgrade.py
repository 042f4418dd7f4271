"""`helm upgrade` from one build of the operator to another, with other defaults, while an engine serves."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from tests.node.conftest import RELEASE, SYSTEM, Helm, await_ready, serving
from tests.support.builds import newer_build
from tests.support.kube import Kube, condition, eventually
from tools.cluster.node import Node
from tools.images.__main__ import locked
from tools.images.builders import find_builder
from tools.images.recipes import CACHE, RECIPES

NEWER = "docker.io/gemma-serving/operator:newer"


def load_newer_build(node: Node) -> None:
    """The operator's image, built from a tree with other defaults."""
    recipe = dataclasses.replace(RECIPES["operator"], reference=NEWER)
    with locked(), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        context, archive, log = Path(folder, "context"), Path(folder, "image.tar"), Path(folder, "log")
        recipe.copy_context(context)
        newer_build(Path(folder, "newer"))
        Path(folder, "newer", "gemma_operator").rename(Path(folder, "gemma_operator"))
        old = context / "operator" / "gemma_operator"
        old.rename(Path(folder, "old"))
        Path(folder, "gemma_operator").rename(old)
        builder = find_builder()
        builder.build(recipe, context, log)
        builder.save(recipe, archive, log)
        node.load(archive)


def upgrade(helm: Helm, *values: str) -> None:
    where = ["-n", SYSTEM, "--values", "tests/node/values.yaml", "--wait", "--timeout", "2m"]
    helm("upgrade", RELEASE, "charts/gemma-operator", *where, *(f"--set={value}" for value in values))


def engines(kube: Kube) -> dict[str, tuple[str, str]]:
    """Name -> (uid, restarts) of the engine Pods."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            "".join(str(c["restartCount"]) for c in pod["status"].get("containerStatuses", [])),
        )
        for pod in kube.list("pod", "app.kubernetes.io/name=gemma-engine")
    }


def test_an_upgrade_of_the_operator_starts_no_engine_anew(node: Node, installed: Kube, helm: Helm, kube: Kube) -> None:
    load_newer_build(node)
    kube.apply(serving("kept"))
    await_ready(kube, "kept")
    before, replica_sets = engines(kube), kube.run("get", "replicasets", "-o", "name").stdout
    upgrade(helm, "image.tag=newer", "engine.image.tag=newer")
    told = eventually(
        "the newer operator has looked",
        lambda: (c := condition(kube.get("gsv", "kept"), "UpdateAvailable")).get("status") == "True" and c,
        60,
    )
    assert told["reason"] == "NewDefaults"
    assert "NEW_DEFAULT" in told["message"]
    assert engines(kube) == before
    assert kube.run("get", "replicasets", "-o", "name").stdout == replica_sets
    body = kube.get("gsv", "kept")
    assert condition(body, "Ready")["status"] == "True"
    assert condition(body, "Reconciling")["status"] == "False"
    upgrade(helm)
    eventually(
        "the older operator is back",
        lambda: condition(kube.get("gsv", "kept"), "UpdateAvailable").get("status") == "False",
        60,
    )
    assert engines(kube) == before
