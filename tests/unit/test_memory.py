"""What the operator keeps of its servings: little, and no more with time. The soak on a real API server is the apiserver tier's."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.metrics.prometheus import PrometheusSource
from gemma_operator.reconcile import Reconciler
from gemma_operator.scaler import Scaler
from gemma_operator.scaling.counters import Missing, Scrape
from gemma_operator.settings import read_settings
from tests.support.scripted_prometheus import Reply, ScriptedEngine, refusal, scripted_prometheus
from tests.unit.builders import body
from tests.unit.fake_cluster import FakeCluster

SERVINGS = 10
MOST_BYTES = 64 * 1024
"""Per serving; a thousand of them are an eighth of the limit that the chart sets."""
OURS = tracemalloc.Filter(True, f"{Path('operator').resolve()}/*")
LIBRARIES = tracemalloc.Filter(True, "*/site-packages/*")


def held() -> int:
    gc.collect()
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces((OURS, LIBRARIES)).traces)


def test_the_operator_keeps_little_of_a_serving_and_no_more_with_time() -> None:
    cluster = FakeCluster(*(body(name=f"chat-{n}") for n in range(SERVINGS)))
    scaler = Scaler(EngineSource(), read_settings({}))
    operator = Reconciler(cluster, scaler, read_settings({}))  # type: ignore[arg-type]

    async def rounds(count: int) -> None:
        for _ in range(count):
            for n in range(SERVINGS):
                await operator.reconcile(("ns", f"chat-{n}"))
            cluster.all_up()

    tracemalloc.start(2)
    try:
        before = held()
        asyncio.run(rounds(3))
        settled = held()
        cluster.writes.clear()
        asyncio.run(rounds(2))
        later = held()
    finally:
        tracemalloc.stop()
    assert (settled - before) / SERVINGS < MOST_BYTES
    assert later - settled < 0.05 * (settled - before), "looking again keeps nothing"


def test_garbage_is_collected_again_after_an_answer_and_after_none() -> None:
    with scripted_prometheus() as prometheus:
        during, answer = [], prometheus.answer

        def looked_at(query: str) -> Reply:
            during.append(gc.isenabled())
            return answer(query)

        prometheus.answer = looked_at  # type: ignore[method-assign]
        prometheus.engines = [ScriptedEngine("u1")]
        source = PrometheusSource(PrometheusClient(Access(prometheus.url)))
        assert isinstance(source.read(prometheus.now, {}, {}), Scrape)
        assert gc.isenabled()
        prometheus.reply = refusal("down", 503)
        assert isinstance(source.read(prometheus.now, {}, {}), Missing)
        assert gc.isenabled()
        assert during == [False, False]
