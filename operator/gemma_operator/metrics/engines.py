"""The engines' counters from their own /metrics: the source where no Prometheus is named.

Needs a network on which the operator reaches the engines' port (see networkPolicy in the chart's values).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator.metrics import names
from gemma_operator.metrics.assemble import Unusable, engine_counters
from gemma_operator.metrics.client import MALFORMED, PrometheusClient, SourceFailed, explain
from gemma_operator.metrics.queries import Answers, Queries, UserQueries, unanswered
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, Reading, Scrape

MOST_AT_ONCE = 32
ENGINE_SECONDS = 3.0
"""Longest time for one engine: it answers from its API server, which a busy event loop may delay."""
MOST_BYTES = 8 << 20


class EngineSource:
    """A `MetricsSource` that reads every engine itself; `client` is for the queries of users, if a Prometheus is named."""

    def __init__(self, client: PrometheusClient | None = None, timeout_seconds: float = 10) -> None:
        self._client = client
        self._user_queries = UserQueries(client)
        self._timeout = timeout_seconds

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        """Read all engines side by side. One that can't be read is left out; Missing where that is so of all."""
        found, failures = asyncio.run(_read_all(engines, now, self._timeout, itl))
        if failures and not found:
            return _why_none(failures)
        answers = self._answers(queries)
        return Scrape(found, answers.backlog, answers.offered)

    def _answers(self, queries: Queries) -> Answers:
        if self._client and queries:
            try:
                self._client.begin()
            except SourceFailed as error:
                return unanswered(queries, error.missing)
        return self._user_queries.read(queries)


def _why_none(failures: Mapping[str, Exception]) -> Missing:
    texts = Counter(explain(error) for error in failures.values())
    text, count = texts.most_common(1)[0]
    said = f"none of {len(failures)} engines could be read, {count} of them with {text}"
    if any(isinstance(error, Unusable) for error in failures.values()):
        return Missing(MissingReason.NO_SERIES, said)
    return Missing(MissingReason.QUERY_FAILED, f"{said}; does a NetworkPolicy keep the operator from their port?")


async def _read_all(
    engines: Mapping[str, str], now: float, seconds: float, itl: bool
) -> tuple[dict[str, EngineCounters], dict[str, Exception]]:
    """Pod UID -> counters, and Pod UID -> what failed."""
    found: dict[str, EngineCounters] = {}
    failures: dict[str, Exception] = {}
    started = time.monotonic()
    slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def read(session: aiohttp.ClientSession, pod_uid: str, url: str) -> None:
        async with slots:
            try:
                text = await _get(session, url)
                found[pod_uid] = parse(pod_uid, now + time.monotonic() - started, text, itl)
            except (aiohttp.ClientError, OSError, *MALFORMED) as error:
                failures[pod_uid] = error

    timeout = aiohttp.ClientTimeout(total=ENGINE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        tasks = [asyncio.create_task(read(session, pod_uid, url)) for pod_uid, url in engines.items()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    for pod_uid in engines.keys() - found.keys() - failures.keys():
        failures[pod_uid] = TimeoutError(f"its turn did not come within {seconds:.0f} s")
    return found, failures


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}")
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > MOST_BYTES:
                raise ValueError(f"its answer is longer than {MOST_BYTES >> 20} MiB")
        return body.decode()


def parse(pod_uid: str, at: float, exposition: str, itl: bool = True) -> EngineCounters:
    """The counters in an engine's exposition. Raises Unusable, or ValueError where it is none."""
    # An engine exports ten times what is read here, and the parser is slow.
    wanted = names.ALL if itl else names.WITHOUT_ITL
    kept = "\n".join(line for line in exposition.splitlines() if line.startswith(wanted))
    families = text_string_to_metric_families(kept + "\n")
    return engine_counters(pod_uid, at, ((s.name, s.labels, s.value) for family in families for s in family.samples))
