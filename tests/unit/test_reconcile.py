"""One reconcile after another against a cluster in memory: what is written, when, and what the status then says."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gemma_operator.desired import CHILD_KINDS
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.observe import PoolState
from gemma_operator.reconcile import REFUSED_RETRY_SECONDS, Reconciler, _any_ready, _targets
from gemma_operator.scaler import Scaler
from gemma_operator.scaling.pool import Policy
from gemma_operator.scaling_status import PoolScaling
from gemma_operator.settings import read_settings
from tests.unit.builders import body, serving
from tests.unit.fake_cluster import FakeCluster

KEY = ("ns", "chat")
AUTO = {"interactive": {"replicas": {"min": 1, "max": 5}}}


class World:
    """A cluster with one GemmaServing, and the operator over it."""

    def __init__(self, pools: Any = None, source: MetricsSource | None = None, *others: Any) -> None:
        self.cluster = FakeCluster(body({"pools": pools or AUTO}), *others)
        self.scaler = Scaler(source or EngineSource(), read_settings({}))
        self.operator = Reconciler(self.cluster, self.scaler, read_settings({}))  # type: ignore[arg-type]

    async def reconcile(self) -> list[tuple[str, str, str]]:
        """What one reconcile writes."""
        self.cluster.writes.clear()
        await self.operator.reconcile(KEY)
        return list(self.cluster.writes)

    async def settle(self) -> None:
        """Reconcile until the pools are up and nothing is left to write."""
        for _ in range(6):
            if not await self.reconcile() and self.condition("Ready") == "True PoolsReady":
                return
            self.cluster.all_up()
        raise AssertionError(f"still writing: {self.cluster.writes}")

    def edit(self, **spec: Any) -> None:
        found = self.cluster.objects["GemmaServing", *KEY]
        found["spec"] |= spec
        found["metadata"]["generation"] += 1

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects["GemmaServing", *KEY]["status"]
        return found

    def condition(self, kind: str) -> str:
        return next((f"{c['status']} {c['reason']}" for c in self.status["conditions"] if c["type"] == kind), "")


async def test_a_new_serving_gets_its_children_and_then_nothing_more_is_written() -> None:
    world = World()
    assert await world.reconcile() == [
        ("apply", "Deployment", "chat-interactive"), ("apply", "Service", "chat-interactive"),
        ("apply", "PodDisruptionBudget", "chat-interactive"), ("apply", "Service", "chat"), ("status", "GemmaServing", "chat"),
    ]  # fmt: skip
    assert world.condition("Reconciling") == "True PoolsStarting"
    await world.settle()
    assert world.condition("Ready") == "True PoolsReady"
    assert await world.reconcile() == []


async def test_a_look_is_six_reads_and_a_new_child_one_dry_run_more() -> None:
    """Names are asked for only where the dry run shows that something bears them."""
    look = ["get GemmaServing", *(f"list {kind}" for kind in (*CHILD_KINDS, "Pod"))]
    world = World()
    made = await world.reconcile()
    children = [kind for verb, kind, _ in made if verb == "apply"]
    assert sorted(world.cluster.asked) == sorted([*look, *(f"dry {kind}" for kind in children)])
    await world.settle()
    world.cluster.asked.clear()
    assert await world.reconcile() == []
    assert sorted(world.cluster.asked) == sorted(look)
    del world.cluster.objects["Service", "ns", "chat"]
    world.cluster.objects["Service", "ns", "chat"] = {"kind": "Service", "metadata": {"name": "chat"}, "spec": {}}
    world.cluster.asked.clear()
    await world.reconcile()
    assert sorted(world.cluster.asked) == sorted([*look, "dry Service", "get Service"])
    assert world.condition("RoutingReady") == "False NameConflict"


async def test_sizes_never_pass_through_one_while_the_field_changes_hands() -> None:
    """Autoscaled at five, then fixed at four, then autoscaled again, with a change of the template at each turn."""
    world = World({"interactive": {"replicas": {"min": 3, "max": 5}}})
    await world.settle()
    await world.cluster.scale("ns", "chat-interactive", 5)
    world.cluster.all_up()
    await world.settle()
    world.edit(pools={"interactive": {"replicas": {"min": 4}, "maxNumSeqs": 8}})
    await world.settle()
    assert world.cluster.deployment()["spec"]["replicas"] == 4
    world.edit(pools={"interactive": {"replicas": {"min": 2, "max": 9}, "maxNumSeqs": 9}})
    await world.settle()
    assert world.cluster.deployment()["spec"]["replicas"] == 4
    world.edit(pools={"interactive": {"replicas": {"min": 2, "max": 9}, "maxNumSeqs": 10}})
    await world.settle()
    assert min(world.cluster.sizes) == 3


async def test_new_bounds_move_a_pool_into_them() -> None:
    world = World()
    await world.settle()
    world.edit(pools={"interactive": {"replicas": {"min": 3, "max": 5}}})
    assert ("scale", "Deployment", "chat-interactive") in await world.reconcile()
    assert world.cluster.deployment()["spec"]["replicas"] == 3


async def test_an_unusable_spec_is_refused_in_the_status_and_what_serves_stays() -> None:
    world = World()
    await world.settle()
    before = world.cluster.deployment()
    world.edit(pools={"interactive": {"replicas": {"min": 9, "max": 1}}})
    assert await world.reconcile() == [("status", "GemmaServing", "chat")]
    assert world.condition("Stalled") == "True InvalidSpec"
    assert world.condition("Ready") == "True LastGoodServing"
    assert world.status["observedGeneration"] == 2
    assert world.cluster.deployment() == before
    assert await world.reconcile() == []
    world.edit(pools=AUTO)
    await world.settle()
    assert world.condition("Stalled") == "False AsExpected"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"modle": 1}, "InvalidSpec"),
        ({"engine": {"image": "vllm:nightly"}}, "UnknownEngineVersion"),
        ({"engine": {"image": "vllm:v0.10.0"}}, "UnknownEngineVersion"),
        ({"pools": {"interactive": {"extraArgs": ["--port=1"]}}}, "InvalidSpec"),
    ],
)
async def test_each_kind_of_refusal_has_its_reason(spec: dict[str, Any], reason: str) -> None:
    world = World()
    world.edit(**spec)
    assert await world.reconcile() == [("status", "GemmaServing", "chat")]
    assert world.condition("Valid") == f"False {reason}"
    assert world.condition("Ready") == f"False {reason}"


async def test_what_the_api_server_refuses_is_told_in_its_own_words_and_leaves_no_half_made_set() -> None:
    world = World()
    said = "Service is invalid: spec.ports[0].port: Invalid value"
    world.cluster.refuse = {"Service": said}
    assert await world.reconcile() == [("status", "GemmaServing", "chat")]
    assert world.condition("Stalled") == "True RefusedByApiServer"
    assert said in next(c["message"] for c in world.status["conditions"] if c["type"] == "Stalled")


async def test_a_deleted_deployment_comes_back_in_the_size_it_had() -> None:
    world = World()
    await world.settle()
    await world.cluster.scale("ns", "chat-interactive", 4)
    await world.settle()
    del world.cluster.objects["Deployment", "ns", "chat-interactive"]
    await world.reconcile()
    assert world.cluster.deployment()["spec"]["replicas"] == 4


async def test_children_of_a_deleted_namesake_are_waited_for() -> None:
    """`kubectl replace --force`: garbage collection needs a moment, which is no conflict of names."""
    world = World()
    await world.settle()
    fresh = world.cluster.objects["GemmaServing", *KEY]
    fresh["metadata"] |= {"uid": "another", "generation": 1}
    fresh["status"] = {"observedGeneration": -1}
    with pytest.raises(Exception, match="garbage collection has removed Deployment chat-interactive"):
        await world.reconcile()
    assert world.cluster.writes == []
    assert world.status == {"observedGeneration": -1}
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        del world.cluster.objects[kind, "ns", "chat-interactive"]
    del world.cluster.objects["Service", "ns", "chat"]
    await world.settle()


async def test_what_can_not_be_reached_is_not_tried_again_by_every_tick() -> None:
    world = World()
    world.cluster.refuse = {"Deployment": "exceeded quota: gpus"}
    await world.reconcile()
    await world.scaler.tick()
    assert await world.scaler.tick() == []
    assert world.condition("Stalled") == "True RefusedByApiServer"


async def test_a_status_of_the_new_generation_never_speaks_of_the_old_engines() -> None:
    """Who waits for `observedGeneration` and `Reconciling` must not be told "done" before the rollout has begun."""
    world = World()
    await world.settle()
    world.edit(pools={"interactive": {"replicas": {"min": 1, "max": 5}, "maxNumSeqs": 8}})
    await world.reconcile()
    assert world.status["observedGeneration"] == 2
    assert world.condition("Reconciling") == "True RollingOut"
    assert world.condition("Ready") == "True PoolsReady"


async def test_a_refusal_that_is_lifted_is_followed_by_a_rollout() -> None:
    world = World()
    await world.settle()
    world.cluster.refuse = {"Deployment": "exceeded quota: gpus"}
    world.edit(pools={"interactive": {"replicas": {"min": 1, "max": 5}, "maxNumSeqs": 8}})
    await world.reconcile()
    assert world.condition("Stalled") == "True RefusedByApiServer"
    world.cluster.refuse = {}
    await world.reconcile()
    assert world.condition("Stalled") == "False AsExpected"
    assert world.condition("Reconciling") == "True RollingOut"
    world.cluster.all_up()
    await world.reconcile()
    assert world.condition("Reconciling") == "False UpToDate"


async def test_a_strangers_service_is_left_alone() -> None:
    stranger = {"kind": "Service", "metadata": {"name": "chat-interactive", "namespace": "ns"}, "spec": {"ports": []}}
    world = World(None, None, stranger)
    assert await world.reconcile() == [("status", "GemmaServing", "chat")]
    assert world.condition("Stalled") == "True NameConflict"
    assert world.cluster.objects["Service", "ns", "chat-interactive"] == stranger


async def test_a_deleted_child_and_a_dropped_pool() -> None:
    world = World({**AUTO, "batch": {}})
    await world.settle()
    del world.cluster.objects["Service", "ns", "chat-batch"]
    assert await world.reconcile() == [("apply", "Service", "chat-batch")]
    world.edit(pools=AUTO)
    assert [write for write in await world.reconcile() if write[0] == "delete"] == [
        ("delete", "Deployment", "chat-batch"), ("delete", "Service", "chat-batch"), ("delete", "PodDisruptionBudget", "chat-batch"),
    ]  # fmt: skip
    assert list(world.status["pools"]) == ["interactive"]


@pytest.mark.parametrize("gone", ["absent", "deleting"])
async def test_a_serving_that_goes_is_left_to_garbage_collection(gone: str) -> None:
    world = World()
    await world.settle()
    if gone == "absent":
        del world.cluster.objects["GemmaServing", *KEY]
    else:
        world.cluster.objects["GemmaServing", *KEY]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.cluster.writes.clear()
    assert await world.operator.reconcile(KEY) is None
    assert world.cluster.writes == []
    assert await world.scaler.tick() == []


async def test_no_secret_is_read() -> None:
    """The cluster in memory would fail on any kind but our own; the Secret's name is all that is passed on."""
    world = World()
    world.edit(model={"id": "m", "tokenSecretRef": {"name": "hub"}})
    await world.settle()
    assert {kind for kind, _, _ in world.cluster.objects} == {"GemmaServing", *CHILD_KINDS, "Pod"} - {
        "PersistentVolumeClaim"
    }


async def test_warnings_are_in_a_condition_and_hinder_nothing() -> None:
    world = World({"interactive": {"extraArgs": ["--max-num-seqs=4"]}})
    await world.settle()
    assert world.condition("SettingsSound") == "False UserArgumentWins"
    world.edit(pools=AUTO)
    await world.settle()
    assert world.condition("SettingsSound") == "True NoWarnings"


async def test_a_cache_is_made_and_goes_with_its_field() -> None:
    world = World()
    world.edit(model={"id": "google/gemma-4-E4B-it", "cache": {"size": "10Gi"}})
    writes = await world.reconcile()
    (claim,) = [name for verb, kind, name in writes if (verb, kind) == ("apply", "PersistentVolumeClaim")]
    assert writes[0] == ("apply", "PersistentVolumeClaim", claim)
    await world.settle()
    assert await world.reconcile() == []
    world.edit(model={"id": "google/gemma-4-E4B-it"})
    assert ("delete", "PersistentVolumeClaim", claim) in await world.reconcile()


def sized(desired: int, ready: int = 0) -> PoolState:
    return PoolState(exists=True, desired=desired, ready=ready)


@pytest.mark.parametrize(
    ("there", "decided", "target"),
    [(None, None, 1), (3, None, 3), (9, None, 5), (3, 4, 4), (3, 99, 5), (3, 0, 1), (None, 4, 4)],
)
def test_a_target_is_the_decision_else_what_is_there_within_the_bounds(
    there: int | None, decided: int | None, target: int
) -> None:
    states = {} if there is None else {"interactive": sized(there)}
    scaling = {"interactive": PoolScaling(Policy(1, 5), target=decided)}
    assert _targets(serving(AUTO), states, scaling, {}) == {"interactive": target}


@pytest.mark.parametrize(
    ("states", "answers"),
    [
        ({}, False),
        ({"interactive": sized(1, 1)}, True),
        ({"interactive": sized(5, 1), "batch": sized(1, 1)}, True),
        ({"interactive": sized(1, 1), "batch": sized(1, 0)}, False),
        ({"interactive": sized(1, 1), "batch": sized(0, 0)}, True),
    ],
)
def test_whether_the_last_good_state_answers(states: dict[str, PoolState], answers: bool) -> None:
    assert _any_ready(states) is answers


async def test_a_refusal_is_looked_at_again_soon_and_an_accepted_serving_at_leisure() -> None:
    world = World()
    await world.settle()
    assert await world.operator.reconcile(KEY) == math.inf
    world.edit(pools={"interactive": {"maxNumSeqs": 9}})
    world.cluster.refuse = {"Deployment": "exceeded quota: gpus"}
    assert await world.operator.reconcile(KEY) == REFUSED_RETRY_SECONDS
    world.edit(engine={"image": "no-version"})
    assert await world.operator.reconcile(KEY) == math.inf
