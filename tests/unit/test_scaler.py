"""The scaler's tick: what it wakes, what it remembers, and what a failing source does."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator import telemetry
from gemma_operator.api.serving import GemmaServing
from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.metrics.prometheus import PrometheusSource
from gemma_operator.metrics.queries import Queries
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaler import APART_SECONDS, MEMORY_REFRESH_SECONDS, Scaler
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, Reading, Scrape
from gemma_operator.scaling.decision import Decision, Reason
from gemma_operator.scaling.memory import restore
from gemma_operator.scaling_status import PoolScaling
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import WorkQueue
from tests.support.scripted_prometheus import scripted_prometheus
from tests.unit.builders import serving

TICK = 15
KEY = ("ns", "chat")
AUTO = {"interactive": {"replicas": {"min": 1, "max": 4}}}
DOWN = Missing(MissingReason.QUERY_FAILED, "Prometheus doesn't answer")
START = 1_800_000_000.0


class Traffic:
    """A metrics source, and the clock: every tick each engine answers `good` requests in time and `bad` ones late."""

    def __init__(self) -> None:
        self.now, self.good, self.bad = START, 0, 0
        self.fault: Missing | None = None
        self.reads: list[tuple[Mapping[str, str], Queries]] = []
        self.waiting: dict[str, float] = {}

    def pass_tick(self, good: int = 100, bad: int = 0) -> None:
        self.now, self.good, self.bad = self.now + TICK, self.good + good, self.bad + bad

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        self.reads.append((dict(engines), queries))
        buckets = ((0.3, float(self.good)), (math.inf, float(self.good + self.bad)))
        return self.fault or Scrape(
            {uid: EngineCounters(uid, self.now, buckets, 1, self.waiting.get(uid, 0)) for uid in ("u1", "u2", "u3")}
        )


def pod(number: int, ready: bool = True, url: str | None = "") -> EnginePod:
    born = START - 7200 - number
    where = f"http://10.0.0.{number}:8000/metrics" if url == "" else url
    return EnginePod(f"u{number}", f"chat-{number}", born, born + 300 if ready else None, False, where)


def state(desired: int = 1, ready: int | None = None) -> PoolState:
    engines = tuple(pod(n + 1, n < (desired if ready is None else ready)) for n in range(desired))
    return PoolState(
        True, desired, sum(e.ready_at is not None for e in engines), desired, settled=True, engines=engines
    )


class Fixture:
    """A scaler over that traffic."""

    def __init__(self, of: GemmaServing, shown: Mapping[str, Any] | None = None) -> None:
        self.traffic, self.serving = Traffic(), of
        self.scaler = Scaler(self.traffic, read_settings({}), clock=lambda: self.traffic.now)
        self.track(state(), shown or {})

    def track(self, of: PoolState, shown: Mapping[str, Any] | None = None, which: GemmaServing | None = None) -> None:
        self.scaler.track(which or self.serving, {"interactive": of}, shown or {})

    async def ticks(self, count: int, good: int = 100, bad: int = 0) -> list[list[Any]]:
        """What each of some ticks wakes."""
        woken = []
        for _ in range(count):
            self.traffic.pass_tick(good, bad)
            woken.append(await self.scaler.tick())
        return woken

    @property
    def known(self) -> PoolScaling:
        return self.scaler.scaling(KEY)["interactive"]

    @property
    def decision(self) -> Decision:
        assert self.known.decision
        return self.known.decision


@pytest.fixture
def fixture() -> Fixture:
    return Fixture(serving(AUTO))


async def test_without_servings_nothing_is_read() -> None:
    traffic = Traffic()
    assert await Scaler(traffic, read_settings({})).tick() == []
    assert not traffic.reads


async def test_the_first_tick_wakes_a_serving_and_a_quiet_one_does_not(fixture: Fixture) -> None:
    assert (await fixture.ticks(1))[0] == [KEY]
    await fixture.ticks(10)
    assert [] in await fixture.ticks(8)
    assert fixture.decision.reason == Reason.STEADY


async def test_a_pool_at_zero_is_woken_through_prometheus_where_no_engine_runs() -> None:
    with scripted_prometheus() as prometheus:
        prometheus.user_results = {"q": [{"metric": {}, "value": [START, "50"]}]}
        of = serving({"batch": {"replicas": {"min": 0, "max": 2}, "scaling": {"backlogQuery": "q"}}})
        scaler = Scaler(PrometheusSource(PrometheusClient(Access(prometheus.url))), read_settings({}), lambda: START)
        scaler.track(of, {"batch": PoolState(True, 0, 0, 0, settled=True)}, {})
        assert await scaler.tick() == [KEY]
        assert scaler.scaling(KEY)["batch"].target == 1


async def test_an_idle_pool_of_fixed_size_is_not_woken_at_all() -> None:
    """A quiet state writes nothing."""
    idle = Fixture(serving({"interactive": {}}))
    await idle.ticks(30, good=0)
    assert await idle.ticks(20, good=0) == [[]] * 20


async def test_all_pools_are_read_at_once_with_their_addresses(fixture: Fixture) -> None:
    other = serving(AUTO, name="other")
    fixture.scaler.track(other, {"interactive": state(3, 2)}, {})
    await fixture.ticks(3)
    assert len(fixture.traffic.reads) == 3
    engines, queries = fixture.traffic.reads[-1]
    assert engines == {"u1": "http://10.0.0.1:8000/metrics", "u2": "http://10.0.0.2:8000/metrics"}
    assert queries == {}


async def test_only_the_serving_that_changed_is_woken(fixture: Fixture) -> None:
    fixture.scaler.track(serving({"interactive": {}}, name="idle"), {"interactive": state(1, 0)}, {})
    await fixture.ticks(12)
    woken = await fixture.ticks(8, good=1000)
    assert [("ns", "idle")] not in woken
    assert [KEY] in woken
    assert fixture.known.target == 4
    assert fixture.scaler.scaling(("ns", "idle"))["interactive"].target is None


async def test_a_target_stands_until_it_is_reached(fixture: Fixture) -> None:
    await fixture.ticks(12)
    await fixture.ticks(6, good=1000)
    assert fixture.known.target == 4
    assert (await fixture.ticks(2, good=1000)).count([KEY]) <= 1, "what can't be reached is not pressed each tick"
    assert fixture.known.target == 4
    fixture.track(state(4, 1))
    assert fixture.known.target is None, "who scales by hand now is not overruled"


async def test_who_sets_the_size_by_hand_is_not_overruled_before_the_next_tick(fixture: Fixture) -> None:
    await fixture.ticks(12)
    fixture.track(state(3, 1))
    assert fixture.known.target is None
    assert not fixture.known.contested


async def test_who_sets_it_again_and_again_is_told(fixture: Fixture) -> None:
    await fixture.ticks(6)
    for _ in range(3):
        await fixture.ticks(2, good=1000)
        fixture.track(state(4, 1))
        await fixture.ticks(1, good=1000)
        fixture.track(state(2, 1))
    assert fixture.known.contested
    fixture.traffic.now += 700
    assert not fixture.known.contested


async def test_missing_metrics_are_told_from_the_second_tick_on_and_hold(fixture: Fixture) -> None:
    await fixture.ticks(12)
    fixture.traffic.fault = DOWN
    await fixture.ticks(1)
    assert fixture.known.missing is None
    assert [KEY] in await fixture.ticks(1)
    assert fixture.known.missing == DOWN
    assert fixture.known.target is None
    fixture.traffic.fault = None
    assert [KEY] in await fixture.ticks(2)
    assert fixture.known.missing is None


async def test_engines_that_still_start_are_no_gap(fixture: Fixture) -> None:
    fixture.track(state(1, 0))
    await fixture.ticks(20)
    assert fixture.known.missing is None


async def test_a_source_that_breaks_changes_nothing_and_ticks_go_on(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fixture.ticks(12)
    before = fixture.scaler.scaling(KEY)
    woken: asyncio.Queue[Any] = asyncio.Queue()
    broken = iter([RuntimeError("out of memory")])

    def read(now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        if fault := next(broken, None):
            assert fixture.scaler.scaling(KEY) == before
            raise fault
        fixture.traffic.pass_tick()
        return DOWN

    monkeypatch.setattr(fixture.traffic, "read", read)
    monkeypatch.setattr(fixture.scaler, "_settings", read_settings({"GEMMA_SCALING_TICK_SECONDS": "0.01"}))
    queue = WorkQueue(woken.put)
    tasks = [asyncio.create_task(queue.work()), asyncio.create_task(fixture.scaler.run(queue))]
    with caplog.at_level(logging.ERROR):
        assert await asyncio.wait_for(woken.get(), 30) == KEY
    for task in tasks:
        task.cancel()
    assert "replicas are held" in caplog.text


async def test_requests_that_a_slow_api_server_holds_up_are_no_gap(fixture: Fixture) -> None:
    """They run in asyncio's own threads: with those all taken, the source is still asked."""
    await fixture.ticks(12)
    answer = threading.Event()
    held = [asyncio.ensure_future(asyncio.to_thread(answer.wait)) for _ in range(64)]
    fixture.scaler._settings = read_settings({"GEMMA_SCALING_TICK_SECONDS": "1"})
    await fixture.ticks(1)
    answer.set()
    await asyncio.gather(*held)
    assert fixture.decision.metrics == "Full"


async def test_measured_values_are_shown_anew_now_and_then(fixture: Fixture) -> None:
    """A status that moved with every sample would be a write per tick: it follows what has moved by a quarter."""
    await fixture.ticks(12)
    woken = []
    for good in (80, 81, 79, 82, 80, 78, 81, 80):
        woken += await fixture.ticks(1, good=good)
    assert woken.count([KEY]) == 0
    for good in range(80, 160, 10):
        woken += await fixture.ticks(1, good=good)
    assert 1 <= woken.count([KEY]) <= 4


async def test_who_is_forgotten_is_neither_read_nor_woken(fixture: Fixture) -> None:
    await fixture.ticks(2)
    fixture.scaler.forget(KEY)
    fixture.scaler.forget(KEY)
    assert await fixture.scaler.tick() == []
    assert fixture.scaler.scaling(KEY) == {}


async def test_a_pool_that_is_gone_is_forgotten_and_a_new_one_begins_afresh(fixture: Fixture) -> None:
    await fixture.ticks(2)
    fixture.scaler.track(serving({"batch": {}}), {}, {})
    assert [known.decision for known in fixture.scaler.scaling(KEY).values()] == [None]
    await fixture.ticks(1)
    assert list(fixture.scaler.scaling(KEY)) == ["batch"]


async def test_the_least_loaded_engines_go_first(fixture: Fixture) -> None:
    fixture.track(state(3))
    fixture.traffic.waiting = {"u1": 3.0, "u3": 2.0}
    await fixture.ticks(60, good=1)
    assert fixture.known.target == 2
    assert fixture.known.victims == ("chat-2",)


async def test_what_was_learnt_is_saved_now_and_then_and_restored(fixture: Fixture) -> None:
    assert fixture.known.memory == {}
    ticks = MEMORY_REFRESH_SECONDS // TICK
    await fixture.ticks(ticks - 2)
    assert fixture.known.memory == {}
    assert [KEY] in await fixture.ticks(4)
    saved = fixture.known.memory
    assert restore(saved).learned != restore({}).learned
    await fixture.ticks(4)
    assert fixture.known.memory == saved
    again = Fixture(fixture.serving, {"interactive": {"memory": saved}})
    assert again.known.memory == saved, "and a restart doesn't rub it out"


@pytest.mark.parametrize("shown", [{}, {"memory": {"version": 0}}, {"memory": {"version": 1, "correction": "x"}}])
async def test_a_memory_that_can_not_be_read_is_none(shown: dict[str, Any]) -> None:
    again = Fixture(serving(AUTO), {"interactive": shown})
    await again.ticks(3)
    assert again.decision.reason is Reason.STEADY


async def test_after_a_restart_no_target_is_made_up(fixture: Fixture) -> None:
    fresh = Fixture(fixture.serving)
    fresh.track(state(3))
    await fresh.ticks(10, good=0)
    assert fresh.known.target is None


def values(name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(b"".join(telemetry.exposition()).decode())
        for sample in family.samples
        if sample.name == name
    }


async def test_the_operators_metrics_show_what_was_decided_and_nothing_of_what_is_gone(fixture: Fixture) -> None:
    pool = ("ns", "chat", "interactive")
    await fixture.ticks(12)
    assert values("gemma_operator_slo_ttft_target_seconds")[pool] == 0.3
    assert values("gemma_operator_desired_replicas")[pool] == 1
    assert values("gemma_operator_attainment_high")[pool] == 1
    assert values("gemma_operator_metrics_missing")[pool] == 0
    assert values("gemma_operator_scaling_term")[(*pool, "capacity")] > 0
    assert values("gemma_operator_last_tick_timestamp_seconds")[()] == fixture.traffic.now
    fixture.scaler.forget(KEY)
    await fixture.ticks(1)
    assert not values("gemma_operator_desired_replicas")
    assert not values("gemma_operator_scaling_term")


async def test_looks_of_one_tick_leave_room_between_them_for_what_is_new() -> None:
    asked: list[tuple[str, float]] = []
    done = asyncio.Event()

    class Queue(WorkQueue):
        async def add(self, key: tuple[str, str], delay_seconds: float = 0.0) -> None:
            asked.append((key[1], delay_seconds))
            if len(asked) == 3:
                done.set()

    class Fleet(Scaler):
        async def tick(self) -> list[tuple[str, str]]:
            return [("ns", "a"), ("ns", "b"), ("ns", "c")]

    async def nothing(_: tuple[str, str]) -> None:
        return None

    scaler = Fleet(EngineSource(), read_settings({"GEMMA_SCALING_TICK_SECONDS": "0.01"}))
    running = asyncio.create_task(scaler.run(Queue(nothing)))
    await asyncio.wait_for(done.wait(), 30)
    running.cancel()
    assert asked[:3] == [("a", 0.0), ("b", APART_SECONDS), ("c", 2 * APART_SECONDS)]
