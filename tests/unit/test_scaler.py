"""The scaler's tick: what it wakes, what it remembers, and what a failing source does."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import Any

import pytest

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.names import label_value
from gemma_operator.observe import PoolState
from gemma_operator.scaler import NoSource, Scaler
from gemma_operator.scaling import EngineSample, Missing, MissingReason, PoolKey, Reading, Reason
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import WorkQueue
from tests.unit.builders import serving

TICK = 15
KEY = ("ns", "chat")
AUTO = {"interactive": {"replicas": {"min": 1, "max": 4}}}
DOWN = Missing(MissingReason.QUERY_FAILED, "Prometheus doesn't answer")


class Traffic:
    """A metrics source, and the clock: every tick the engine answers `good` requests in time and `bad` ones late."""

    def __init__(self) -> None:
        self.now, self.good, self.bad = 1_800_000_000.0, 0, 0
        self.fault: Missing | None = None
        self.reads = 0
        self.label = "chat"

    def pass_tick(self, good: int = 100, bad: int = 0) -> None:
        self.now, self.good, self.bad = self.now + TICK, self.good + good, self.bad + bad

    def read(self, now: float) -> Reading:
        self.reads += 1
        counts = ((0.3, float(self.good)), (math.inf, float(self.good + self.bad)))
        engine = EngineSample("u1", "p1", self.now, counts, waiting=0, running=1)
        return self.fault or {PoolKey("ns", self.label, "interactive"): (engine,)}


def state(desired: int = 1, ready: int = 1) -> PoolState:
    return PoolState(True, desired, ready, desired, settled=True, ready_uids=frozenset({"u1"}))


class Fixture:
    """A scaler over that traffic."""

    def __init__(self, of: GemmaServing) -> None:
        self.traffic, self.serving = Traffic(), of
        self.scaler = Scaler(self.traffic, read_settings({}), clock=lambda: self.traffic.now)
        self.scaler.track(of, {"interactive": state()})

    async def ticks(self, count: int, good: int = 100, bad: int = 0) -> list[list[Any]]:
        """What each of some ticks wakes."""
        woken = []
        for _ in range(count):
            self.traffic.pass_tick(good, bad)
            woken.append(await self.scaler.tick())
        return woken


@pytest.fixture
def fixture() -> Fixture:
    return Fixture(serving(AUTO))


async def test_without_servings_nothing_is_read() -> None:
    traffic = Traffic()
    assert await Scaler(traffic, read_settings({})).tick() == []
    assert traffic.reads == 0


async def test_the_first_tick_wakes_a_serving_and_a_quiet_one_does_not(fixture: Fixture) -> None:
    assert (await fixture.ticks(1))[0] == [KEY]
    await fixture.ticks(10)
    quiet = await fixture.ticks(8)
    assert [] in quiet
    assert fixture.scaler.scaling(KEY).decisions["interactive"].reason == Reason.STEADY


async def test_all_pools_are_read_at_once(fixture: Fixture) -> None:
    fixture.scaler.track(serving(AUTO, name="other"), {"interactive": state()})
    await fixture.ticks(3)
    assert fixture.traffic.reads == 3


async def test_only_the_serving_that_changed_is_woken(fixture: Fixture) -> None:
    fixture.scaler.track(serving({"interactive": {}}, name="idle"), {"interactive": state()})
    await fixture.ticks(12)
    woken = await fixture.ticks(8, good=0, bad=100)
    assert [KEY] in woken
    assert fixture.scaler.scaling(KEY).targets["interactive"] > 1
    assert not fixture.scaler.scaling(("ns", "idle")).targets


async def test_too_many_late_answers_make_a_target_until_it_is_reached(fixture: Fixture) -> None:
    await fixture.ticks(12)
    await fixture.ticks(6, good=0, bad=100)
    target = fixture.scaler.scaling(KEY).targets["interactive"]
    assert target > 1
    assert [KEY] not in await fixture.ticks(1, good=0, bad=100)
    assert fixture.scaler.scaling(KEY).targets["interactive"] == target
    fixture.scaler.track(fixture.serving, {"interactive": state(target)})
    assert "interactive" not in fixture.scaler.scaling(KEY).targets, "who scales by hand now is not overruled"


async def test_missing_metrics_are_told_and_hold(fixture: Fixture) -> None:
    await fixture.ticks(12)
    fixture.traffic.fault = DOWN
    assert (await fixture.ticks(1))[0] == [KEY]
    scaling = fixture.scaler.scaling(KEY)
    assert scaling.missing["interactive"] == DOWN
    assert not scaling.targets
    fixture.traffic.fault = None
    assert [KEY] in await fixture.ticks(6)
    assert not fixture.scaler.scaling(KEY).missing


async def test_a_source_that_breaks_changes_nothing_and_ticks_go_on(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fixture.ticks(12)
    before = fixture.scaler.scaling(KEY)
    woken: asyncio.Queue[Any] = asyncio.Queue()
    broken = iter([RuntimeError("out of memory")])

    def read(now: float) -> Reading:
        if fault := next(broken, None):
            assert fixture.scaler.scaling(KEY) == before
            raise fault
        return DOWN

    monkeypatch.setattr(fixture.traffic, "read", read)
    monkeypatch.setattr(fixture.scaler, "_settings", read_settings({"GEMMA_SCALING_TICK_SECONDS": "0.001"}))
    queue = WorkQueue(woken.put)
    tasks = [asyncio.create_task(queue.work()), asyncio.create_task(fixture.scaler.run(queue))]
    with caplog.at_level(logging.ERROR):
        assert await asyncio.wait_for(woken.get(), 30) == KEY
    for task in tasks:
        task.cancel()
    assert "replicas are held" in caplog.text


async def test_measured_values_are_shown_anew_now_and_then(fixture: Fixture) -> None:
    """A status that moved with every sample would be a write per tick."""
    await fixture.ticks(12)
    woken = await fixture.ticks(8)
    assert woken.count([KEY]) == 4


async def test_who_is_forgotten_is_neither_read_nor_woken(fixture: Fixture) -> None:
    await fixture.ticks(2)
    fixture.scaler.forget(KEY)
    fixture.scaler.forget(KEY)
    assert await fixture.scaler.tick() == []
    assert fixture.scaler.scaling(KEY).decisions == {}


async def test_a_pool_that_is_gone_is_forgotten_and_a_new_one_begins_afresh(fixture: Fixture) -> None:
    await fixture.ticks(2)
    fixture.scaler.track(serving({"batch": {}}), {})
    assert fixture.scaler.scaling(KEY).decisions == {}
    await fixture.ticks(1)
    assert list(fixture.scaler.scaling(KEY).decisions) == ["batch"]


async def test_a_long_name_is_found_under_its_label() -> None:
    long = Fixture(serving(AUTO, name="x" * 100))
    long.traffic.label = label_value("x" * 100)
    await long.ticks(12)
    assert not long.scaler.scaling(("ns", "x" * 100)).missing


async def test_without_prometheus_metrics_are_missing_and_the_message_says_what_to_set() -> None:
    missing = NoSource().read(0)
    assert isinstance(missing, Missing)
    assert missing.reason is MissingReason.NOT_CONFIGURED
    assert "metrics.prometheusUrl" in missing.message


async def test_after_a_restart_no_target_is_made_up(fixture: Fixture) -> None:
    fresh = Fixture(fixture.serving)
    fresh.scaler.track(fixture.serving, {"interactive": state(4, 4)})
    await fresh.ticks(3, good=0, bad=100)
    assert not fresh.scaler.scaling(KEY).targets


async def test_a_gap_between_samples_is_called_missing_after_one_window(fixture: Fixture) -> None:
    """A new Pod has no samples at first; that must not turn a condition on each scale-up."""
    await fixture.ticks(8)
    fixture.scaler.track(fixture.serving, {"interactive": replace(state(2, 2), ready_uids=frozenset({"u1", "u2"}))})
    for _ in range(4):
        await fixture.ticks(1)
        assert fixture.scaler.scaling(KEY).missing == {}
    await fixture.ticks(1)
    assert fixture.scaler.scaling(KEY).missing["interactive"].reason == MissingReason.PARTIAL_COVERAGE


async def test_a_source_that_fails_is_called_missing_at_once(fixture: Fixture) -> None:
    await fixture.ticks(8)
    fixture.traffic.fault = DOWN
    await fixture.ticks(1)
    assert fixture.scaler.scaling(KEY).missing == {"interactive": DOWN}


async def test_a_verdict_stays_shown_over_a_short_gap(fixture: Fixture) -> None:
    await fixture.ticks(8)
    verdict = fixture.scaler.scaling(KEY).decisions["interactive"].judgement
    assert verdict
    fixture.scaler.track(fixture.serving, {"interactive": replace(state(2, 2), ready_uids=frozenset({"u1", "u2"}))})
    await fixture.ticks(2)
    assert fixture.scaler.scaling(KEY).decisions["interactive"].judgement == verdict


async def test_engines_that_still_start_are_no_gap(fixture: Fixture) -> None:
    fixture.traffic.label = "somebody else"
    fixture.scaler.track(fixture.serving, {"interactive": replace(state(1, 0), ready_uids=frozenset())})
    await fixture.ticks(20)
    assert fixture.scaler.scaling(KEY).missing == {}
