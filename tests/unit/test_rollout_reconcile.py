"""An upgrade, a pause and a lack of room as a user sees them: what is written, and what the status says."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.api.conditions import TYPES
from gemma_operator.events import events_of
from gemma_operator.observe import PoolState, Problem, observe
from gemma_operator.reconcile import BLOCKED_SECONDS, Reconciler
from gemma_operator.rollout import REVISION, Waiting
from gemma_operator.settings import read_settings
from gemma_operator.status import status
from tests.unit.builders import deployment, serving
from tests.unit.test_events import told
from tests.unit.test_reconcile import KEY, World
from tests.unit.test_rollout import engine_pod, newer_build

FIXED: Any = {"interactive": {"replicas": {"min": 2}}, "batch": {}}


def upgrade(world: World, **environment: str) -> None:
    """Another operator takes over, with other values of its chart."""
    world.operator = Reconciler(world.cluster, world.scaler, read_settings(environment))  # type: ignore[arg-type]


def templates(world: World) -> list[Any]:
    return [found["spec"]["template"] for (kind, *_), found in world.cluster.objects.items() if kind == "Deployment"]


def message(world: World, kind: str) -> str:
    return str(next(c["message"] for c in world.status["conditions"] if c["type"] == kind))


async def test_an_upgrade_writes_no_child_and_is_told_once() -> None:
    world = World(FIXED)
    await world.settle()
    before = templates(world)
    with newer_build():
        upgrade(world, GEMMA_ENGINE_IMAGE="vllm/vllm-openai:v0.33.0", GEMMA_PRIORITY_CLASS_BATCH="low")
        world.cluster.events.clear()
        assert await world.reconcile() == [("status", "GemmaServing", "chat")]
        assert await world.reconcile() == []
        assert templates(world) == before
        assert world.condition("UpdateAvailable") == "True NewDefaults"
        assert world.condition("Ready") == "True PoolsReady"
        assert world.condition("Reconciling") == "False UpToDate"
        said = message(world, "UpdateAvailable")
        for part in (
            "image vllm/vllm-openai:v0.32.0 -> vllm/vllm-openai:v0.33.0",
            "flags ",
            "--seed",
            "NEW_DEFAULT",
            "adopt",
        ):
            assert part in said
        assert world.cluster.events == [("Normal", "NewDefaults", f"UpdateAvailable is True: {said}")]


async def test_a_pool_that_is_changed_takes_the_newest_defaults_and_the_others_wait() -> None:
    world = World(FIXED)
    await world.settle()
    upgrade(world, GEMMA_ENGINE_IMAGE="vllm/vllm-openai:v0.33.0")
    world.edit(pools={**FIXED, "batch": {"maxNumSeqs": 8}})
    assert [write for write in await world.reconcile() if write[0] == "apply"] == [
        ("apply", "Deployment", "chat-batch")
    ]
    await world.settle()
    assert message(world, "UpdateAvailable").startswith(
        "Newer defaults of the operator are ready for pool interactive: image "
    )
    world.edit(rollout={"adopt": "v0.33"})
    await world.settle()
    assert world.condition("UpdateAvailable") == "False UpToDate"
    images = [found["spec"]["containers"][0]["image"] for found in templates(world)]
    assert images == ["vllm/vllm-openai:v0.33.0"] * 2
    assert await world.reconcile() == []


async def test_a_deleted_deployment_comes_back_with_the_newest_defaults() -> None:
    """No engine is left that could be replaced."""
    world = World(FIXED)
    await world.settle()
    upgrade(world, GEMMA_ENGINE_IMAGE="vllm/vllm-openai:v0.33.0")
    del world.cluster.objects["Deployment", "ns", "chat-batch"]
    await world.settle()
    assert [found["spec"]["containers"][0]["image"][-7:] for found in templates(world)] == ["v0.32.0", "v0.33.0"]


async def test_a_pause_holds_a_change_while_sizes_move() -> None:
    world = World(FIXED)
    await world.settle()
    for name in ("chat-interactive", "chat-batch"):
        world.cluster.deployment(name)["metadata"]["annotations"][REVISION] = "1"
    before = templates(world)
    world.edit(rollout={"paused": True}, pools={**FIXED, "interactive": {"replicas": {"min": 3}, "drainSeconds": 9}})
    await world.reconcile()
    world.cluster.all_up()
    await world.reconcile()
    assert templates(world) == before
    assert world.cluster.deployment()["spec"]["replicas"] == 3
    assert world.condition("Reconciling") == "False Paused"
    assert world.condition("UpdateAvailable") == "False UpToDate"
    assert message(world, "Reconciling") == (
        "spec.rollout.paused is true; waiting: pool interactive: flags --shutdown-timeout; fields terminationGracePeriodSeconds"
    )
    assert await world.reconcile() == []
    world.edit(rollout={})
    await world.settle()
    assert templates(world) != before
    assert world.condition("Reconciling") == "False UpToDate"


async def test_a_pause_keeps_nothing_that_is_no_longer_granted() -> None:
    """The spec is innocent, but more engines of the recorded template would be started."""
    host = {"podTemplate": {"spec": {"hostNetwork": True}}}
    world = World({"interactive": {"replicas": {"min": 2}, **host}, "batch": {}})
    upgrade(world, GEMMA_TENANTS_MAY="Code,Privileged")
    await world.settle()
    before = templates(world)
    world.edit(rollout={"paused": True}, pools={**FIXED, "interactive": {"replicas": {"min": 3}}})
    upgrade(world, GEMMA_TENANTS_MAY="Code")
    await world.reconcile()
    assert world.condition("Valid") == "False InvalidSpec"
    assert message(world, "Valid") == (
        "spec.pools.interactive: rollout.paused keeps engines with hostNetwork: the administrator has not granted Privileged "
        "(tenants.may of the operator's chart); set rollout.paused to false to replace them"
    )
    assert templates(world) == before, "what runs goes on"
    assert world.cluster.deployment()["spec"]["replicas"] == 2
    world.edit(rollout={})
    await world.settle()
    assert "hostNetwork" not in world.cluster.deployment()["spec"]["template"]["spec"]
    assert world.cluster.deployment()["spec"]["replicas"] == 3


async def test_a_rollout_without_room_is_told_then_replaces_and_surges_again_when_it_is_over() -> None:
    world = World({"interactive": {}})
    await world.settle()
    world.edit(pools={"interactive": {"maxNumSeqs": 8}})
    await world.reconcile()
    found = world.cluster.deployment()
    found["status"] |= {"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "observedGeneration": 99}
    old, new = engine_pod("old", "n1"), engine_pod("new", since="2999-01-01T00:00:00Z")
    old["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}]
    for name, found_pod in (("chat-interactive-0", old), ("chat-interactive-1", new)):
        labels = {**found["metadata"]["labels"], **found_pod["metadata"]["labels"]}
        meta = {"name": name, "namespace": "ns", "uid": name, "labels": labels}
        world.cluster.objects["Pod", "ns", name] = {**found_pod, "kind": "Pod", "metadata": meta}
    assert await world.operator.reconcile(KEY) == BLOCKED_SECONDS
    assert world.condition("Reconciling") == "True RolloutBlocked"
    assert "Insufficient nvidia.com/gpu" in message(world, "Reconciling")
    assert found["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    new["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    world.cluster.events.clear()
    await world.reconcile()
    await world.reconcile()
    assert world.cluster.deployment()["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert world.condition("Reconciling") == "True RolloutWithoutSpare"
    assert [(level, reason) for level, reason, _ in world.cluster.events] == [("Warning", "RolloutWithoutSpare")]
    del world.cluster.objects["Pod", "ns", "chat-interactive-1"]
    world.cluster.all_up()
    assert await world.reconcile() == [("apply", "Deployment", "chat-interactive"), ("status", "GemmaServing", "chat")]
    assert world.cluster.deployment()["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    world.cluster.all_up()
    await world.settle()
    assert world.condition("Reconciling") == "False UpToDate"


NOW = "2026-01-01T00:00:00Z"
NO_NODE = Problem("Unschedulable", "Pod p: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu", terminal=False)


def state(outdated: int = 0, replacing: bool = False, problem: Problem | None = None, ready: int = 1) -> PoolState:
    return PoolState(
        exists=True, desired=1, ready=ready, updated=1, outdated=outdated, settled=True, replacing=replacing, problem=problem
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rollout", "of", "reconciling"),
    [
        ({}, state(1), "True RollingOut"),
        ({}, state(1, problem=NO_NODE), "True RolloutBlocked"),
        ({"strategy": "Surge"}, state(1, problem=NO_NODE), "True RolloutBlocked"),
        ({}, state(1, True, NO_NODE), "True RolloutWithoutSpare"),
        ({}, state(1, True, NO_NODE, ready=0), "True RolloutWithoutSpare"),
        ({}, state(0, True, ready=0), "True RolloutWithoutSpare"),
        ({}, state(0, True), "False UpToDate"),
        ({"strategy": "Replace"}, state(1, True), "True RollingOut"),
        ({"strategy": "Replace"}, state(1, True, NO_NODE, ready=0), "True PoolsStarting"),
        ({"cache": "ReadWriteOnce"}, state(1, True), "True RollingOut"),
        ({"paused": True}, state(), "False Paused"),
        ({"paused": True}, state(1), "False Paused"),
        ({"paused": True}, state(ready=0), "True PoolsStarting"),
    ],
)
@pytest.mark.parametrize(
    "waiting", [(), (Waiting("interactive", True, "flags --x", {}), Waiting("interactive", False, "flags --y", {}))]
)
def test_reconciling_says_in_which_way_a_rollout_goes(
    rollout: Any, of: PoolState, reconciling: str, waiting: Any
) -> None:
    model: dict[str, Any] = {"id": "google/gemma-4-E4B-it"}
    if mode := rollout.get("cache"):
        rollout, model = {}, {**model, "cache": {"size": "1Gi", "accessMode": mode}}
    which = serving({"interactive": {}}, model=model, rollout=rollout)
    new = status(which, {"interactive": of}, {}, (), {}, NOW, waiting)
    shown = {c["type"]: f"{c['status']} {c['reason']}" for c in new["conditions"]}
    assert set(shown) == {*TYPES} - {"RoutingReady"}
    assert shown["Reconciling"] == reconciling
    said = next(c["message"] for c in new["conditions"] if c["type"] == "Reconciling")
    assert ("pool interactive: flags --x" in said, "--y" in said) == (
        reconciling == "False Paused" and bool(waiting),
        False,
    )
    assert shown["UpdateAvailable"] == ("True NewDefaults" if waiting else "False UpToDate")


def test_a_rollout_without_a_spare_is_an_event_once() -> None:
    def at(reason: str, said: str) -> Any:
        row = {"type": "Reconciling", "status": "True", "reason": reason, "message": said}
        return {**told("True"), "conditions": [*told("True")["conditions"], row]}

    assert events_of(at("RollingOut", "0 of 2"), at("RolloutWithoutSpare", "1 of 2")) == [
        ("Warning", "RolloutWithoutSpare", "1 of 2")
    ]
    assert events_of(at("RolloutWithoutSpare", "1 of 2"), at("RolloutWithoutSpare", "2 of 2")) == []


def test_a_pool_shows_its_revision_since_when_and_the_last_that_was_whole() -> None:
    def shown(number: str | None, old: Any, now: str, **counts: int) -> Any:
        found = deployment(desired=2, **counts)
        found["metadata"]["annotations"] = {REVISION: number} if number else {}
        new = status(serving({"interactive": {}}), observe([found], []), {}, (), old, now)
        names = ("revision", "revisionSince", "lastGoodRevision")
        return new, {name: new["pools"]["interactive"].get(name) for name in names}

    first, said = shown(None, {}, "t0")
    assert set(said.values()) == {None}
    first, said = shown("1", first, "t1", readyReplicas=0)
    assert said == {"revision": 1, "revisionSince": "t1", "lastGoodRevision": None}
    first, said = shown("1", first, "t2")
    assert said == {"revision": 1, "revisionSince": "t1", "lastGoodRevision": 1}
    bad, said = shown("2", first, "t3", replicas=3, updatedReplicas=1)
    assert said == {"revision": 2, "revisionSince": "t3", "lastGoodRevision": 1}
    _, said = shown("2", bad, "t4")
    assert said == {"revision": 2, "revisionSince": "t3", "lastGoodRevision": 2}
