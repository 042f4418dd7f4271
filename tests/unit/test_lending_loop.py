"""Loans through scaler and reconciler: the label is the truth, and whatever happens to a Pod, nothing dangles."""

from __future__ import annotations

import pytest

from gemma_operator.scaling.counters import Missing, MissingReason
from tests.support.lending_world import POOLS, World

DOWN = Missing(MissingReason.QUERY_FAILED, "Prometheus doesn't answer")


@pytest.fixture
async def world() -> World:
    """One interactive engine under load, three idle batch engines."""
    made = World()
    await made.start()
    assert made.lent == []
    return made


async def rise(world: World, ticks: int = 4) -> None:
    """More load than two engines bear."""
    world.rate = 100.0
    await world.tick(ticks)


async def test_a_rise_borrows_within_ticks_and_what_was_lent_goes_back_when_cold_engines_came(world: World) -> None:
    world.cold_start = 300.0
    await rise(world, 3)
    assert len(world.lent) == 2
    assert world.status["pools"]["batch"]["lent"] == 2
    assert world.status["pools"]["interactive"]["borrowed"] == 2
    lent = [event for event in world.cluster.events if event[1] == "Lent"]
    assert len(lent) == 2
    assert lent[0][2].endswith("of pool batch is lent to pool interactive, which has 1 Ready engines and needs more")
    assert world.cluster.deployment("chat-batch")["spec"]["replicas"] == 3
    assert world.cluster.deployment("chat-interactive")["spec"]["replicas"] >= 3
    await world.tick(40)
    assert world.lent == []
    assert len([event for event in world.cluster.events if event[1] == "GivenBack"]) == 2
    assert "lent" not in world.status["pools"]["batch"]
    assert "borrowed" not in world.status["pools"]["interactive"]
    assert not [write for write in world.cluster.writes if write[0] == "delete"]


async def test_the_least_loaded_go_first_and_what_they_had_queued_is_no_miss_of_the_borrower(world: World) -> None:
    world.queued = {pod["metadata"]["name"]: 40.0 - at for at, pod in enumerate(world.pods("batch"))}
    names = list(world.queued)
    await rise(world, 3)
    assert sorted(world.lent) == sorted(names[1:])


async def test_a_restart_of_the_operator_keeps_what_is_lent(world: World) -> None:
    world.cold_start = 600.0
    await rise(world)
    before = world.lent
    assert before
    world.restart()
    world.cluster.writes.clear()
    await world.tick(4)
    assert world.lent == before
    assert not [write for write in world.cluster.writes if write[0] == "flip"]
    assert world.status["pools"]["batch"]["lent"] == 2


async def test_an_outage_moves_nothing(world: World) -> None:
    world.cold_start = 600.0
    await rise(world)
    before, world.fault = world.lent, DOWN
    await world.tick(40)
    assert world.lent == before != []


async def test_a_lent_pod_that_is_deleted_leaves_nothing_and_another_one_is_lent(world: World) -> None:
    world.cold_start = 600.0
    await rise(world)
    gone = world.lent[0]
    del world.cluster.objects["Pod", "ns", gone]
    await world.tick(2)
    assert gone not in world.lent
    new = next(pod for pod in world.pods("batch") if not pod["status"])
    assert new["metadata"]["labels"]["gemmaserving.dev/class"] == "batch", "the new Pod is its own pool's"


async def test_without_lend_all_come_back_at_once_even_blind(world: World) -> None:
    world.cold_start = 600.0
    await rise(world)
    world.fault = DOWN
    world.edit("batch", scaling={})
    await world.tick(2)
    assert world.lent == []


async def test_engines_that_no_longer_fit_come_back(world: World) -> None:
    world.cold_start = 600.0
    await rise(world)
    world.edit("interactive", maxModelLen=65536)
    await world.tick(2)
    assert world.lent == []
    assert world.condition("SettingsSound") == "False LendingUnfit"


@pytest.mark.parametrize("dry", ["interactive", "batch"])
async def test_dry_run_moves_nothing(dry: str) -> None:
    mode = {**POOLS[dry], "scaling": {**POOLS[dry].get("scaling", {}), "mode": "DryRun"}}  # type: ignore[dict-item]
    world = World({**POOLS, dry: mode})
    await world.start()
    await rise(world, 8)
    assert world.lent == []


async def test_a_refused_flip_is_said_concerns_nothing_else_and_is_made_once_it_is_allowed(world: World) -> None:
    world.cold_start = 600.0
    world.cluster.refuse = {"Pod": "admission webhook denied the request"}
    await rise(world)
    assert world.lent == []
    assert world.condition("ScalingSound") == "False LoanRefused"
    assert world.condition("Stalled") == "False AsExpected"
    assert world.condition("Ready") == "True PoolsReady"
    assert world.cluster.deployment("chat-interactive")["spec"]["replicas"] >= 3, (
        "cold engines are asked for all the same"
    )
    world.cluster.refuse = {}
    await world.tick(5)
    assert len(world.lent) == 2
    assert world.condition("ScalingSound") != "False LoanRefused"


async def test_what_is_lent_is_the_last_to_be_given_up(world: World) -> None:
    """A smaller maximum takes an engine that serves batch; a victim of the scaler is one as well."""
    world.cold_start = 600.0
    await rise(world)
    before = world.lent
    world.edit("batch", replicas={"min": 0, "max": 2}, scaling={"lend": 2, "backlogQuery": "q"})
    await world.tick(2)
    assert len(world.pods("batch")) == 2
    assert set(world.lent) < set(before), "of the two, one has to serve batch"


async def test_the_batch_floor_is_kept() -> None:
    """Two batch engines with a minimum of two lend none."""
    world = World({**POOLS, "batch": {"replicas": {"min": 2, "max": 6}, "scaling": {"lend": 2}}})
    await world.start(batch=2)
    await rise(world, 8)
    assert world.lent == []


async def test_the_budget_counts_a_lent_engine_once() -> None:
    world = World(gpuBudget=5)
    await world.start()
    world.cold_start = 600.0
    await rise(world, 6)
    sizes = {pool: world.cluster.deployment(f"chat-{pool}")["spec"]["replicas"] for pool in ("interactive", "batch")}
    assert sum(sizes.values()) <= 5
    assert world.lent
    assert sizes["batch"] - len(world.lent) >= 1, "batch keeps one engine of its own"


def test_explain_tells_of_loans() -> None:
    from gemma_operator.scaling.explain import explain
    from tests.unit.test_scaling_budget import decision

    assert "  engines      3 asked for, 1 Ready, 2 lent to another pool" in explain(decision(3, 3, ready=1, away=2))
    assert "  engines      1 asked for, 1 Ready, 2 lent to it" in explain(decision(1, 1, lent=2))
