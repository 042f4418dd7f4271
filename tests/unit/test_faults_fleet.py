"""Faults of the fleet, through the real scaler and a real HTTP server: bounds, no GPUs, rollouts, restarts, other writers."""

from __future__ import annotations

import math

import pytest

from gemma_operator.scaling.counters import Missing
from gemma_operator.scaling.decision import Kind
from tests.support.scaling_world import KEY, World
from tests.unit.test_faults_metrics import TEN_MINUTES, WINDOW_TICKS, begin, check, end


async def test_below_the_minimum_without_metrics(world: World) -> None:
    begin(world, "503")
    world.desired = 1
    await world.tick()
    assert world.desired == world.minimum


async def test_above_the_maximum_without_metrics(world: World) -> None:
    begin(world, "503")
    world.desired = 20
    await world.tick()
    assert world.desired == world.maximum


async def test_no_gpu_is_free_for_an_hour(world: World) -> None:
    """Pods that find no node: no more are asked for, nothing is lowered, and it is said."""
    await world.tick(15)
    world.most_ready = len(world.ready)
    world.rate = 120
    await world.tick(240)
    check(world)
    assert world.desired <= 8
    assert Kind.NO_CAPACITY in {finding.kind for finding in world.decision.findings}
    peak = world.desired
    world.most_ready = 1000
    await world.tick(2 * WINDOW_TICKS)
    assert world.desired >= peak - 1


async def test_pods_that_load_for_a_quarter_of_an_hour_cause_no_more_pods(world: World) -> None:
    await world.tick(15)
    world.cold_start = 900
    world.rate = 45
    await world.tick(8)
    asked = world.desired
    await world.tick(40)
    assert world.desired <= asked + 1
    check(world)


async def test_a_rollout_lowers_nothing(world: World) -> None:
    world.rate = 3.0
    await world.tick(15)
    size = world.desired
    world.rolling_out = True
    await world.tick(TEN_MINUTES)
    assert world.desired == size


@pytest.mark.parametrize("after", [5, 15, 20])
async def test_an_operator_that_restarts_holds(world: World, after: int) -> None:
    """Mid-cooldown: the history begins anew, so nothing goes down before a full one."""
    world.rate = 3.0
    await world.tick(after)
    size = world.desired
    world.restart()
    await world.tick(20)
    assert world.desired == size
    world.rate = 34.0
    for _ in range(5):
        world.restart()
        await world.tick(3)
    check(world)
    assert world.desired >= size


async def test_another_writer_is_told_and_not_fought_within_the_tick(world: World) -> None:
    await world.tick(30)
    for _ in range(4):
        world.desired = 2
        world.track()
        world.track()
        assert world.known.target is None, "a size that somebody set stays until the next tick"
        await world.tick(4)
    assert world.known.contested
    check(world, since=-1)


async def test_after_a_fault_a_scale_down_comes_in_the_end(world: World) -> None:
    """Holding is not stopping: once a full history is there, what is too much goes."""
    world.rate = 3.0
    await world.tick(15)
    begin(world, "503")
    await world.tick(TEN_MINUTES)
    end(world)
    await world.tick(120)
    assert world.desired < 4
    assert math.isclose(world.known.policy.minimum, 2)
    assert KEY in world.scaler._servings
    assert not isinstance(world.known.missing, Missing)
