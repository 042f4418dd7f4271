"""Speed of a scaler tick over many pools: CPU seconds and queries, against a Prometheus that answers from memory."""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from gemma_operator.app import COLLECT_AFTER
from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.prometheus import COUNTERS_QUERY, WITHOUT_ITL_QUERY, PrometheusSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaler import Scaler
from gemma_operator.settings import read_settings
from tests.support.scaling import Pool, seen
from tests.support.scripted_prometheus import Reply, ScriptedEngine, scripted_prometheus, success
from tests.unit.builders import serving

POOLS, ENGINES_PER_POOL, TICKS, TICK_SECONDS = 1000, 2, 4, 15
START = 1_800_000_000.0
DECISIONS = 400
# Beside what a scripted engine shows: as many series as vLLM 0.32 has of the metrics that are read.
TTFT_EDGES = {"0.05": 0, "0.15": 50, "0.2": 50} | dict.fromkeys(
    ("0.35", "0.4", "0.75", "2.5", "5.0", "10.0", "30.0"), 100
)
ITL_EDGES = (*(f"{n / 10}" for n in range(19)), "+Inf")
ITL_SLO = {"slo": {"itl": {"percentile": 95, "target": "100ms"}}}
SINGLE = (
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:mm_cache_queries_total",
)


def tick_figures(pools: int = POOLS, itl: bool = False) -> dict[str, float]:
    """Measure some ticks, collecting garbage as the operator does, and give the middle one: CPU seconds, seconds, queries, series.

    `itl`: pools have an SLO for the inter-token latency, so that its buckets are read too.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        return asyncio.run(_tick_figures(pools, itl))
    finally:
        gc.set_threshold(*usual)


def decide_milliseconds() -> float:
    """CPU milliseconds of one decision with a full history, the median of many."""
    pool = Pool(3)
    figures = []
    for tick in range(DECISIONS):
        started = time.process_time()
        pool.tick(seen(60 + 20 * math.sin(tick / 10)))
        figures.append((time.process_time() - started) * 1000)
    return statistics.median(figures[DECISIONS // 2 :])


async def _tick_figures(pools: int, itl: bool) -> dict[str, float]:
    now = START
    pool = {"interactive": {"replicas": {"min": 1, "max": 4}, **(ITL_SLO if itl else {})}}
    with scripted_prometheus() as prometheus:
        source = PrometheusSource(PrometheusClient(Access(prometheus.url), timeout_seconds=60))
        settings = replace(read_settings({}), tick_seconds=60)
        scaler = Scaler(source, settings, clock=lambda: now)
        uids = [[f"{n:08}-0000-4000-8000-{m:012}" for m in range(ENGINES_PER_POOL)] for n in range(pools)]
        for n, own in enumerate(uids):
            engines = tuple(EnginePod(uid, uid, START - 3600, START - 3300, False, None) for uid in own)
            state = PoolState(True, len(own), len(own), len(own), settled=True, engines=engines)
            scaler.track(serving(pool, name=f"serving-{n}"), {"interactive": state}, {})
        figures = []
        for tick in range(TICKS):
            now += TICK_SECONDS
            prometheus.reply, series = _answer([uid for own in uids for uid in own], now, tick + 1, itl)
            asked = len(prometheus.asked)
            cpu, wall = time.process_time(), time.perf_counter()
            await scaler.tick()
            assert prometheus.asked[-1] == (COUNTERS_QUERY if itl else WITHOUT_ITL_QUERY)
            figures.append(
                (time.process_time() - cpu, time.perf_counter() - wall, len(prometheus.asked) - asked, series)
            )
    cpu, wall, queries, series = sorted(figures)[len(figures) // 2]
    return {"cpu_seconds": cpu, "seconds": wall, "queries": queries, "series": series}


def _answer(uids: list[str], now: float, ticks: int, itl: bool) -> tuple[Reply, int]:
    """A whole answer for these engines, and how many series it has."""
    result = []
    for uid in uids:
        engine = ScriptedEngine(uid, good=100 * ticks, prompt_tokens=50_000 * ticks)
        shared = {"pod_uid": uid, "engine": "0", **engine.labels}
        result += engine.series(now)
        result += [
            {"metric": {"__name__": name, **shared, **labels}, "value": [now, str(value)]}
            for name, labels, value in _further(ticks, itl)
        ]
    return success(result), len(result)


def _further(ticks: int, itl: bool) -> Iterator[tuple[str, dict[str, str], int]]:
    for edge in ITL_EDGES if itl else ():
        yield "vllm:inter_token_latency_seconds_bucket", {"le": edge}, 10_000 * ticks
    for edge, count in TTFT_EDGES.items():
        yield "vllm:time_to_first_token_seconds_bucket", {"le": edge}, count * ticks
    for reason in ("length", "abort", "error", "repetition"):
        yield "vllm:request_success_total", {"finished_reason": reason}, 0
    for name in SINGLE:
        yield name, {}, ticks


if __name__ == "__main__":
    for itl in (False, True):
        print("with an SLO for ITL" if itl else "without an SLO for ITL")
        for name, figure in tick_figures(itl=itl).items():
            print(f"{name:<16} {figure:10.3f}")
    print(f"{'decide, ms':<16} {decide_milliseconds():10.3f}")
