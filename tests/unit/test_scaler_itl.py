"""The inter-token latency is read while a pool's SLO names it, and an SLO that comes later judges nothing of before."""

from __future__ import annotations

import pytest

from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.prometheus import COUNTERS_QUERY, WITHOUT_ITL_QUERY, PrometheusSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaler import Scaler
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.verdict import Verdict
from gemma_operator.settings import read_settings
from tests.support.scripted_prometheus import ScriptedEngine, ScriptedPrometheus, scripted_prometheus
from tests.unit.builders import serving

START = 1_800_000_000.0
SIZE = {"replicas": {"min": 1, "max": 4}}
JUDGED = {"slo": {"itl": {"percentile": 95, "target": "100ms"}}}
ENGINE = EnginePod("u1", "chat-1", START - 7200, START - 6900, False, None)
STATE = PoolState(True, 1, 1, 1, settled=True, engines=(ENGINE,))


class Fleet:
    """One engine, and two servings: its own, and another that may ask for a judgement of its ITL."""

    def __init__(self, prometheus: ScriptedPrometheus) -> None:
        self.prometheus, self.engine = prometheus, ScriptedEngine("u1", slow_tokens=0)
        prometheus.engines, prometheus.now = [self.engine], START
        source = PrometheusSource(PrometheusClient(Access(prometheus.url)))
        self.scaler = Scaler(source, read_settings({}), clock=lambda: prometheus.now)

    def ask(self, name: str, *, judged: bool) -> None:
        pool = SIZE | (JUDGED if judged else {})
        self.scaler.track(serving({"interactive": pool}, name=name), {"interactive": STATE}, {})

    async def tick(self, good: int = 1000, slow: int = 0) -> str:
        """What is asked while so many more tokens come in time, and so many late."""
        self.prometheus.now += 15
        self.engine.good += good
        self.engine.slow_tokens = (self.engine.slow_tokens or 0) + slow
        before = len(self.prometheus.asked)
        await self.scaler.tick()
        (asked,) = self.prometheus.asked[before:]
        return asked

    def decision(self) -> Decision:
        found = self.scaler.scaling(("ns", "chat"))["interactive"]
        pool = self.scaler._servings["ns", "chat"].pools["interactive"]
        assert found.decision
        assert pool.decision
        return pool.decision


async def test_the_buckets_are_read_while_some_pool_is_judged_by_them_in_the_one_query_of_a_tick() -> None:
    with scripted_prometheus() as prometheus:
        fleet = Fleet(prometheus)
        fleet.ask("chat", judged=False)
        assert await fleet.tick() == WITHOUT_ITL_QUERY
        fleet.ask("other", judged=True)
        assert await fleet.tick() == COUNTERS_QUERY
        fleet.scaler.forget(("ns", "other"))
        assert await fleet.tick() == WITHOUT_ITL_QUERY
    assert "inter_token" in COUNTERS_QUERY
    assert not [name for name in ("inter_token", "time_per_output_token") if name in WITHOUT_ITL_QUERY]


@pytest.mark.parametrize(("slow", "verdict"), [(0, Verdict.MET), (500, Verdict.MISSED)])
async def test_an_slo_that_comes_later_judges_what_comes_after_it(slow: int, verdict: Verdict) -> None:
    with scripted_prometheus() as prometheus:
        fleet = Fleet(prometheus)
        fleet.ask("chat", judged=False)
        for _ in range(8):
            await fleet.tick(slow=0 if slow else 500)  # the opposite of what comes
        fleet.ask("chat", judged=True)
        await fleet.tick(slow=slow)
        first = fleet.decision().itl
        assert first is None or first.verdict is Verdict.UNDETERMINED, "what the engine counted since its start"
        for _ in range(3):
            await fleet.tick(slow=slow)
        judged = fleet.decision().itl
    assert judged
    assert judged.verdict is verdict
    assert judged.evidence.samples == 3 * (1000 + slow)
