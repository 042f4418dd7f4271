"""Rollouts on a real API server: an upgrade from one build of the operator to another, a pause, and a lack of GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.apiserver.conftest import OPERATOR_USER, await_children
from tests.apiserver.test_lifecycle import engine_args, serving, size
from tests.apiserver.test_settings import render, write
from tests.support.builds import newer_build
from tests.support.kube import Kube, condition, eventually, writes
from tests.support.operator import Operator
from tools.cluster.control_plane import ControlPlane

NEWER = {"GEMMA_ENGINE_IMAGE": "vllm/vllm-openai:v0.33.0", "GEMMA_PRIORITY_CLASS_BATCH": "gemma-operator-batch"}
POOLS: dict[str, Any] = {"interactive": {"replicas": {"min": 2, "max": 4}}, "batch": {}}


@contextmanager
def operator(kubeconfig: Path, folder: Path, **environment: str) -> Iterator[Operator]:
    with Operator(kubeconfig, folder / "log", GEMMA_RESYNC_SECONDS="1", **environment) as running:
        yield running
    assert "Traceback" not in (folder / "log").read_text()


def made_of(kube: Kube) -> dict[str, Any]:
    """Generation and template of each Deployment, and the ReplicaSets, which come with a new template."""
    found = {
        d["metadata"]["name"]: (d["metadata"]["generation"], d["spec"]["template"]) for d in kube.list("deployment")
    }
    return {**found, "sets": sorted(s["metadata"]["name"] for s in kube.list("replicasets"))}


def deployment(kube: Kube, name: str = "demo-interactive") -> dict[str, Any]:
    found = kube.get("deployment", name)
    assert found
    return found


def said(kube: Kube, kind: str) -> tuple[str, str]:
    found = condition(kube.get("gsv", "demo"), kind)
    return found.get("status", ""), found.get("reason", "")


def settled(kube: Kube) -> bool:
    """True once the operator has written its last, and Kubernetes has seen it."""
    body = kube.get("gsv", "demo") or {}
    pools = body.get("status", {}).get("pools", {})
    return len(pools) == 2 and all("revision" in pool for pool in pools.values()) and _handed_over(kube)


def _handed_over(kube: Kube) -> bool:
    fields = deployment(kube)["metadata"]["managedFields"]
    return any(f["manager"] == "gemma-operator-scaler" for f in fields)


def test_an_upgrade_rolls_nothing_and_the_next_change_rolls_once(
    kube: Kube, operator_kubeconfig: Path, plane: ControlPlane, tmp_path: Path
) -> None:
    with operator(operator_kubeconfig, tmp_path):
        kube.apply(serving(pools=POOLS))
        await_children(kube, "demo-interactive", "demo-batch")
        eventually("it is settled", lambda: settled(kube))
        assert said(kube, "UpdateAvailable") == ("False", "UpToDate")
    before, written = made_of(kube), writes(plane.audit_log, OPERATOR_USER)
    path = newer_build(tmp_path / "newer")
    with operator(operator_kubeconfig, tmp_path, PYTHONPATH=path, **NEWER):
        eventually("it is told", lambda: said(kube, "UpdateAvailable") == ("True", "NewDefaults"))
        message = condition(kube.get("gsv", "demo"), "UpdateAvailable")["message"]
        for part in (
            "image vllm/vllm-openai:v0.32.0 -> vllm/vllm-openai:v0.33.0",
            "--seed",
            "NEW_DEFAULT",
            "lifecycle",
        ):
            assert part in message
        assert made_of(kube) == before
        file = write(tmp_path, kube, serving(pools=POOLS))
        same = render(plane, file, "--diff", **NEWER, PYTHONPATH=path)
        assert (same.returncode, same.stdout, same.stderr) == (0, "", "")
        later = writes(plane.audit_log, OPERATOR_USER)[len(written) :]
        assert [write for write in later if "gemmaservings" not in write and "events" not in write] == []

        # Sizes still move, and drift is put right to the template that is held.
        kube.run("set", "image", "deployment/demo-batch", "engine=evil:1")
        eventually("drift is put right", lambda: _image(kube, "demo-batch") == "vllm/vllm-openai:v0.32.0")
        kube.apply(serving(pools={**POOLS, "interactive": {"replicas": {"min": 3, "max": 4}}}))
        eventually("the floor is raised", lambda: size(kube) == 3)
        held = deployment(kube)
        assert held["spec"]["template"] == before["demo-interactive"][1]

        kube.apply(serving(pools={**POOLS, "interactive": {"replicas": {"min": 3, "max": 4}, "maxNumSeqs": 8}}))
        eventually("the change is there", lambda: "8" in engine_args(kube))
        eventually("as one revision", lambda: _revision(kube) == "2")
        assert _image(kube, "demo-interactive") == "vllm/vllm-openai:v0.33.0"
        assert "--seed" in engine_args(kube)
        assert _image(kube, "demo-batch") == "vllm/vllm-openai:v0.32.0"
        assert deployment(kube)["metadata"]["generation"] == held["metadata"]["generation"] + 1
        kube.run("patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"rollout":{"adopt":"v0.33"}}}')
        eventually("the other pool follows", lambda: _image(kube, "demo-batch") == "vllm/vllm-openai:v0.33.0")
        eventually("nothing is left", lambda: said(kube, "UpdateAvailable") == ("False", "UpToDate"))
    # And back: the older build takes over what the newer one made.
    after = made_of(kube)
    with operator(operator_kubeconfig, tmp_path):
        eventually("it is told", lambda: said(kube, "UpdateAvailable") == ("True", "NewDefaults"))
        assert made_of(kube) == after


def _image(kube: Kube, name: str) -> str:
    return str(deployment(kube, name)["spec"]["template"]["spec"]["containers"][0]["image"])


def _revision(kube: Kube) -> str:
    return str(deployment(kube)["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def test_a_pause_holds_what_runs_and_its_end_brings_what_waited(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with operator(operator_kubeconfig, tmp_path):
        kube.apply(serving(pools=POOLS))
        await_children(kube, "demo-interactive", "demo-batch")
        eventually("it is settled", lambda: settled(kube))
        make_ready(kube, 3)
        eventually("it serves", lambda: said(kube, "Ready") == ("True", "PoolsReady"))
        before = deployment(kube)
        changed = {**POOLS, "interactive": {"replicas": {"min": 2, "max": 4}, "drainSeconds": 7}}
        kube.apply(serving(pools=changed, rollout={"paused": True}))
        eventually("it is paused", lambda: said(kube, "Reconciling") == ("False", "Paused"))
        assert (
            "pool interactive: flags --shutdown-timeout" in condition(kube.get("gsv", "demo"), "Reconciling")["message"]
        )
        kube.apply(
            serving(
                pools={**changed, "interactive": {"replicas": {"min": 3, "max": 4}, "drainSeconds": 7}},
                rollout={"paused": True},
            )
        )
        eventually("sizes still move", lambda: len(pods(kube, "interactive")) == 3)
        halted = deployment(kube)
        assert (halted["spec"]["template"], halted["spec"]["paused"]) == (before["spec"]["template"], True)
        assert _revision(kube) == "1"
        kube.apply(serving(pools=changed))
        eventually("the change is there", lambda: "7" in engine_args(kube))
        assert "paused" not in deployment(kube)["spec"]
        eventually("it is rolled out", lambda: _revision(kube) == "2")


def test_without_a_spare_gpu_engines_are_replaced_for_one_rollout(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with operator(operator_kubeconfig, tmp_path):
        kube.apply(serving(pools={"interactive": {}}))
        await_children(kube, "demo-interactive")
        (old,) = eventually("an engine", lambda: pods(kube, "interactive"))
        _bind(kube, old)
        make_ready(kube, 1)
        eventually("it serves", lambda: said(kube, "Ready") == ("True", "PoolsReady"))
        kube.run("patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"pools":{"interactive":{"maxNumSeqs":8}}}}')
        eventually("a second engine", lambda: len(pods(kube, "interactive")) == 2)
        (new,) = (pod for pod in pods(kube, "interactive") if pod != old)
        _no_room(kube, new)
        eventually("the old one goes", lambda: pods(kube, "interactive") == [new])
        assert deployment(kube)["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        eventually("it is told", lambda: said(kube, "Reconciling") == ("True", "RolloutWithoutSpare"))
        told = eventually(
            "by an Event", lambda: [e for e in kube.list("events") if e["reason"] == "RolloutWithoutSpare"]
        )
        assert len(told) == 1
        _bind(kube, new)
        make_ready(kube, 1)
        eventually("it is over", lambda: said(kube, "Reconciling") == ("False", "UpToDate"))
        assert deployment(kube)["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        shown = (kube.get("gsv", "demo") or {})["status"]["pools"]["interactive"]
        assert (shown["revision"], shown["lastGoodRevision"]) == (2, 2)


def test_a_pool_that_wants_more_than_there_is_rolls_out_as_well(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    """Three of four engines have a GPU. What has none is unavailable already, and must not be all that may be."""
    with operator(operator_kubeconfig, tmp_path):
        kube.apply(serving(pools={"interactive": {"replicas": {"min": 4}}}))
        await_children(kube, "demo-interactive")
        found = eventually("four engines", lambda: len(p := pods(kube, "interactive")) == 4 and p)
        old = set(found[:3])
        for pod in old:
            _bind(kube, pod)
            make_ready(kube, 1, pod)
        _no_room(kube, found[3])
        eventually("three are Ready", lambda: deployment(kube)["status"].get("readyReplicas") == 3)
        kube.run("patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"pools":{"interactive":{"maxNumSeqs":8}}}}')
        (new,) = eventually("a new engine", lambda: set(pods(kube, "interactive")) - set(found))
        _no_room(kube, new)
        eventually("one old engine goes", lambda: len(old & set(pods(kube, "interactive"))) == 2)
        assert deployment(kube)["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 2}


def pods(kube: Kube, pool: str) -> list[str]:
    """Names of a pool's Pods that aren't going."""
    found = kube.list("pods", f"gemmaserving.dev/pool={pool}")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def _bind(kube: Kube, pod: str) -> None:
    """Place a Pod on a node, as the scheduler would; there is none of either here."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    kube.apply(node)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    kube.run(
        "create", "--raw", f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/binding", "-f", "-", stdin=json.dumps(binding)
    )  # fmt: skip


def _no_room(kube: Kube, pod: str) -> None:
    """What the scheduler would have said an hour ago."""
    _patch_status(kube, pod, [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T00:00:00Z",
         "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"},
    ])  # fmt: skip


def make_ready(kube: Kube, count: int, only: str = "") -> None:
    """Make Pods Ready, all or one, as a kubelet would, once there are so many."""
    found = eventually(f"{count} Pods", lambda: (f := kube.list("pods")) and len(f) >= count and f)
    found = [pod for pod in found if pod["metadata"]["name"] == only or not only]
    for pod in found:
        _patch_status(kube, pod["metadata"]["name"], [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}
            for kind in ("PodScheduled", "Ready", "ContainersReady")
        ])  # fmt: skip


def _patch_status(kube: Kube, pod: str, conditions: list[dict[str, str]]) -> None:
    status = {"status": {"conditions": conditions}}
    kube.run("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps(status))
