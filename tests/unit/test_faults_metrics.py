"""Every fault that metrics were ever seen to have (issue 6, research/practice.md E), through the real scaler and a real HTTP server.

Whatever happens: never below the minimum, never above the maximum, no scale-down, and back to work within two windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gemma_operator.scaling.counters import MissingReason
from gemma_operator.scaling.observation import Metrics
from tests.support.scaling_world import START, TICK, World
from tests.support.scripted_prometheus import (
    Reply,
    ScriptedEngine,
    refusal,
    seen_twice,
    success,
)

WINDOW_TICKS = 4
"""A window of 60 s."""
TEN_MINUTES = 40
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
BUCKET = "vllm:time_to_first_token_seconds_bucket"


def each(**changes: Any) -> Callable[[list[ScriptedEngine]], list[ScriptedEngine]]:
    return lambda engines: [replace(engine, **changes) for engine in engines]


def first(**changes: Any) -> Callable[[list[ScriptedEngine]], list[ScriptedEngine]]:
    return lambda engines: [replace(engines[0], **changes), *engines[1:]]


def renamed(name: str) -> Any:
    return {"renamed": lambda spelled: "vllm:new_name" if spelled == name else spelled}


def stale(engines: list[ScriptedEngine]) -> list[ScriptedEngine]:
    """Scraping has stopped: Prometheus goes on showing the last it has seen."""
    return [replace(engine, at=START + 15 * TICK, good=1000) for engine in engines]


DISTORTED: dict[str, Callable[[list[ScriptedEngine]], list[ScriptedEngine]]] = {
    "empty": lambda engines: [],
    "NaN": each(extra={BUCKET: "NaN"}),
    "NaN gauges": each(extra=dict.fromkeys(GAUGES, "NaN")),
    "+Inf": each(extra={BUCKET: "+Inf"}),
    "-Inf": each(extra={BUCKET: "-Inf"}),
    "negative": each(extra={GAUGES[0]: "-1"}),
    "stale": stale,
    "metric renamed": each(**renamed(BUCKET)),
    "gauge renamed": each(**renamed(GAUGES[1])),
    "metric gone": each(hidden=(BUCKET,)),
}
"""Faults in which nothing is known of any engine."""
REPLIES = {
    "string": success([START, "many"], "string"),
    "scalar": success([START, "0"], "scalar"),
    "matrix": success([{"metric": {"pod_uid": "u1"}, "values": [[START, "0"]]}], "matrix"),
    "401": Reply(401),
    "403": Reply(403),
    "404": Reply(404),
    "500": Reply(500),
    "503": Reply(503),
    "reset": Reply(200, None),
    "login page": Reply(200, b"<html>"),
    "bad query": refusal("parse error"),
}


def begin(world: World, fault: str) -> None:
    server = world.prometheus
    if fault in DISTORTED:
        server.distort = DISTORTED[fault]
    elif fault in REPLIES:
        server.reply = REPLIES[fault]
    elif fault == "DNS":
        world.source.use("http://no-such-host.invalid", timeout=1)
    elif fault == "nobody listens":
        world.source.use("http://127.0.0.1:9", timeout=1)
    elif fault == "timeout":
        world.source.use(server.url, timeout=0.1)
        server.open.clear()
    elif fault == "clock behind":
        world.skew = -300
    elif fault == "no label":
        server.distort, server.unlabelled = (lambda engines: []), True


def end(world: World) -> None:
    server = world.prometheus
    server.distort, server.reply, server.unlabelled, world.skew = None, None, False, 0
    server.open.set()
    world.source.use(server.url)


BLIND = [*DISTORTED, *REPLIES, "DNS", "nobody listens", "timeout", "clock behind", "no label"]


def check(world: World, since: int = 0) -> None:
    """What holds whatever happens."""
    sizes = world.sizes[since:]
    assert all(world.minimum <= size <= world.maximum for size in sizes)
    assert all(after >= before for before, after in pairwise(sizes)), f"scaled down: {sizes}"


@pytest.mark.parametrize("rate", [3.0, 34.0], ids=["fewer would do", "all are needed"])
@pytest.mark.parametrize("fault", BLIND)
async def test_without_metrics_the_size_is_held(world: World, fault: str, rate: float) -> None:
    """At a low rate a scale-down would be due within the fault; it must not come, and not right after it either."""
    world.rate = rate
    await world.tick(15)
    size = world.desired
    begin(world, fault)
    await world.tick(8 if fault == "timeout" else TEN_MINUTES)
    assert world.desired == size
    assert world.decision.metrics in (Metrics.BLIND, Metrics.BLIND_LONG)
    assert world.known.missing, "and it is said"
    end(world)
    await world.tick(2 * WINDOW_TICKS)
    check(world)
    assert world.decision.metrics is Metrics.FULL
    assert world.known.missing is None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("401", MissingReason.UNAUTHORIZED), ("503", MissingReason.QUERY_FAILED), ("empty", MissingReason.NO_SERIES),
     ("metric renamed", MissingReason.NO_SERIES), ("stale", MissingReason.STALE), ("clock behind", MissingReason.CLOCK_SKEW)],
)  # fmt: skip
async def test_the_reason_is_said(world: World, fault: str, reason: MissingReason) -> None:
    await world.tick(15)
    begin(world, fault)
    await world.tick(6)
    assert world.known.missing
    assert world.known.missing.reason is reason


async def test_one_failed_reading_turns_no_condition(world: World) -> None:
    await world.tick(15)
    begin(world, "503")
    await world.tick()
    assert world.known.missing is None
    end(world)
    await world.tick()
    assert world.known.missing is None


@pytest.mark.parametrize("outage", [1, 4, 20])
async def test_prometheus_restarted_with_a_short_history(world: World, outage: int) -> None:
    await world.tick(30)
    begin(world, "empty")
    await world.tick(outage)
    end(world)
    await world.tick(2 * WINDOW_TICKS)
    check(world)
    assert world.decision.metrics is Metrics.FULL


PARTIAL = {
    "one unscraped": lambda engines: engines[1:],
    "one NaN": first(extra={BUCKET: "NaN"}),
    "one lacks a metric": first(hidden=(GAUGES[0],)),
    "one stale": first(at=START),
    "most unscraped": lambda engines: engines[:1],
}


@pytest.mark.parametrize("fault", PARTIAL)
@pytest.mark.parametrize("rate", [3.0, 34.0], ids=["fewer would do", "all are needed"])
async def test_with_some_engines_unseen_nothing_is_lowered(world: World, fault: str, rate: float) -> None:
    world.rate = rate
    await world.tick(15)
    world.prometheus.distort = PARTIAL[fault]
    await world.tick(TEN_MINUTES)
    check(world)
    assert world.decision.metrics is not Metrics.FULL
    assert world.known.missing
    end(world)
    await world.tick(2 * WINDOW_TICKS)
    check(world)
    assert world.decision.metrics is Metrics.FULL


HARMLESS: dict[str, Callable[[list[ScriptedEngine]], list[ScriptedEngine]]] = {
    "duplicate scrape": lambda engines: [*engines, *(seen_twice(engine) for engine in engines)],
    "two Prometheus replicas, one late": lambda engines: [
        *engines,
        *(replace(e, good=e.good * 0.9, labels={**e.labels, "prometheus_replica": "b"}, at=START) for e in engines),
    ],
    "namespace label rewritten": each(labels={"job": "gemma-engines", "exported_namespace": "ns", "namespace": "mon"}),
    "same model in another namespace": lambda engines: [
        *engines,
        *(ScriptedEngine(f"other-{n}", labels={"job": "gemma-engines", "namespace": "other"}) for n in range(9)),
    ],
    "names without colon": each(renamed=lambda name: name.replace(":", "_")),
    "series of dead Pods": lambda engines: [*engines, *(ScriptedEngine(f"dead-{n}", bad=1e6) for n in range(5))],
    "frozen gauges": each(running=7.0),
    "no process start": each(hidden=("process_start_time_seconds",)),
}


@pytest.mark.parametrize("fault", HARMLESS)
async def test_what_does_no_harm(world: World, fault: str) -> None:
    await world.tick(30)
    size, demand = world.desired, world.decision.terms.fast
    world.prometheus.distort = HARMLESS[fault]
    await world.tick(TEN_MINUTES)
    assert world.desired == size
    assert world.decision.metrics is Metrics.FULL
    assert world.decision.terms.fast == pytest.approx(demand, rel=0.02), "nothing is counted twice, or not at all"
    end(world)
    await world.tick(2 * WINDOW_TICKS)
    check(world)


async def test_an_engine_that_restarts_counts_from_zero(world: World) -> None:
    await world.tick(30)
    demand = world.decision.terms.fast
    engine = world.prometheus.engines[0]
    world.prometheus.engines[0] = replace(engine, good=0, bad=0, prompt_tokens=0, started_at=world.now)
    for _ in range(TEN_MINUTES):
        await world.tick()
        assert world.decision.terms.fast <= demand * 1.02
    check(world)
    assert world.decision.metrics is Metrics.FULL


@pytest.mark.parametrize("rate", [3.0, 34.0], ids=["fewer would do", "all are needed"])
@pytest.mark.parametrize("jump", [-3600.0, -300.0, 300.0, 3600.0])
async def test_the_operators_clock_jumps_and_is_set_right(world: World, jump: float, rate: float) -> None:
    world.rate = rate
    await world.tick(15)
    size = world.desired
    world.skew = jump
    await world.tick(TEN_MINUTES)
    assert world.desired == size
    world.skew = 0
    await world.tick(2 * WINDOW_TICKS)
    check(world)
    assert world.decision.metrics is Metrics.FULL


@pytest.mark.parametrize("skew", [-25.0, 25.0])
async def test_clocks_that_differ_a_little_do_no_harm(world: World, skew: float) -> None:
    world.skew = skew
    world.restart()
    await world.tick(TEN_MINUTES)
    check(world)
    assert world.decision.metrics is Metrics.FULL


@pytest.mark.parametrize("ticks", [1, 3, 20])
async def test_readiness_that_flaps_is_no_burst(world: World, ticks: int) -> None:
    """A Pod that comes back has its whole life in its counters."""
    await world.tick(30)
    load, size = world.decision.terms.fast, world.desired
    for _ in range(3):
        world.unready = {"u1"}
        await world.tick(ticks)
        world.unready = set()
        for _ in range(4):
            await world.tick()
            assert world.decision.terms.fast <= load * 1.1
    assert size - 1 <= world.desired <= size + 1


async def test_a_source_that_hangs_is_not_asked_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads must not pile up behind a server that never answers."""
    await world.tick(15)
    monkeypatch.setattr(world.scaler, "_settings", replace(world.scaler._settings, tick_seconds=0.05))
    world.prometheus.open.clear()
    asked = len(world.prometheus.asked)
    await world.tick(5)
    assert world.known.missing
    assert "has not answered within a tick" in world.known.missing.message
    assert len(world.prometheus.asked) == asked + 1
    world.prometheus.open.set()
    monkeypatch.undo()
    await world.tick(2 * WINDOW_TICKS)
    assert world.decision.metrics is Metrics.FULL
    check(world)
