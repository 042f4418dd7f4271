"""The engines' counters of all pools from Prometheus, in one query.

The query asks for the newest raw value of each series and for the time of its scrape: what is old shows, and
differences are the business of `scaling.observation`.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gemma_operator.metrics import names
from gemma_operator.metrics.assemble import Sample, Unusable, engine_counters
from gemma_operator.metrics.client import MALFORMED, PrometheusClient, SourceFailed
from gemma_operator.metrics.queries import Queries, UserQueries
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, Reading, Scrape

MAX_CLOCK_SKEW_SECONDS = 30
POD_UID = "pod_uid"
SCRAPE_LABELS = ("job", "prometheus_replica")
"""What tells one scrape of an engine from another: two jobs, or two Prometheus replicas, may see the same one."""
SCRAPED = "scraped_at"
_BY = ", ".join((POD_UID, *SCRAPE_LABELS))


def counters_query(wanted: Iterable[str]) -> str:
    """Engines' newest values without the labels that say nothing here, and when each engine was scraped.

    `timestamp` has to stand in the same query: only so do values and times come from one look at the series.
    """
    return (
        f'max by (__name__, {_BY}, {", ".join(names.LABELS)}) ({{__name__=~"{"|".join(wanted)}", {POD_UID}!=""}})'
        f" or max by ({_BY}, of) (label_replace("
        f'timestamp({{__name__=~"{"|".join(names.RUNNING)}", {POD_UID}!=""}}), "of", "{SCRAPED}", "", ""))'
    )


COUNTERS_QUERY = counters_query(names.ALL)
WITHOUT_ITL_QUERY = counters_query(names.WITHOUT_ITL)
UNLABELLED_QUERY = f'group by (__name__) ({{__name__=~"{"|".join(n for r in names.REQUIRED for n in r)}"}})'
"""Asked where the first one finds nothing: are there engines at all, and only the label is missing?"""


class PrometheusSource:
    """A `MetricsSource` that asks a Prometheus."""

    def __init__(self, client: PrometheusClient) -> None:
        self._client = client
        self._user_queries = UserQueries(client)

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        """One query for all engines of the cluster, up to five for all queries of users, one more where no engine is found."""
        try:
            self._client.begin()
            with _uncollected():
                found = self._engines(now, COUNTERS_QUERY if itl else WITHOUT_ITL_QUERY)
        except SourceFailed as error:
            return error.missing
        if isinstance(found, Missing) and (not queries or found.reason is not MissingReason.NO_SERIES):
            return found
        # Where no engine runs, what users count is all there is: it wakes a pool from zero.
        answers = self._user_queries.read(queries)
        if isinstance(found, Missing):
            return Scrape({}, answers.backlog, answers.offered, found)
        return Scrape(found, answers.backlog, answers.offered)

    def _engines(self, now: float, query: str) -> dict[str, EngineCounters] | Missing:
        result = self._client.query(query)
        try:
            scrapes = group(result)
        except MALFORMED as error:
            raise self._client.malformed(error) from error
        ahead = max((at for of_engine in scrapes.values() for at, _ in of_engine), default=now) - now
        if ahead > MAX_CLOCK_SKEW_SECONDS:
            return Missing(
                MissingReason.CLOCK_SKEW,
                f"the newest sample of {self._client.name} is {ahead:.0f} s ahead of this operator's clock "
                f"({MAX_CLOCK_SKEW_SECONDS} s are allowed): set the clocks right",
            )
        found, unusable = newest(scrapes)
        return found or Missing(MissingReason.NO_SERIES, self._why_none(unusable))

    def _why_none(self, unusable: Mapping[str, str]) -> str:
        if unusable:
            return (
                f"{self._client.name} has no engine that can be judged: {next(iter(unusable.values()))} "
                f"(at {len(unusable)} engines)"
            )
        unlabelled = self._client.query(UNLABELLED_QUERY)
        if unlabelled:
            return (
                f"{self._client.name} scrapes engines, but without the target label {POD_UID}: "
                "take the chart's PodMonitor (podMonitor.enabled), or relabel __meta_kubernetes_pod_uid to it"
            )
        wanted = ", ".join(required[0] for required in names.REQUIRED)
        return (
            f"{self._client.name} knows no engine ({wanted}): is there a PodMonitor (podMonitor.enabled in the chart's "
            "values) that it selects by label, and in the namespaces of the engines?"
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """The answer for 2,000 engines is 140,000 objects, none of them garbage: looking through them is a sixth of a tick's CPU time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def group(result: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, list[Sample]]]]:
    """Pod UID -> its scrapes, each with its time. What was not in the newest scrape of a job is not in the result."""
    times: dict[tuple[str, str, str], float] = {}
    samples: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    job, replica = SCRAPE_LABELS
    for item in result:
        labels: Mapping[str, str] = item["metric"]
        scrape = (labels[POD_UID], labels.get(job, ""), labels.get(replica, ""))
        value = float(item["value"][1])
        if labels.get("of") == SCRAPED:
            times[scrape] = value
        else:
            samples[scrape].append((labels["__name__"], labels, value))
    scrapes: dict[str, list[tuple[float, list[Sample]]]] = defaultdict(list)
    for scrape, listed in samples.items():
        if scrape in times:
            scrapes[scrape[0]].append((times[scrape], listed))
    return scrapes


def newest(
    scrapes: Mapping[str, list[tuple[float, list[Sample]]]],
) -> tuple[dict[str, EngineCounters], dict[str, str]]:
    """Each engine by its latest usable scrape, and why others have none."""
    found: dict[str, EngineCounters] = {}
    unusable: dict[str, str] = {}
    for pod_uid, of_engine in scrapes.items():
        usable = []
        for at, samples in of_engine:
            try:
                usable.append(engine_counters(pod_uid, at, samples))
            except Unusable as error:
                unusable[pod_uid] = str(error)
        if usable:
            # Of two at the same time, the one that counted more.
            found[pod_uid] = max(usable, key=lambda counters: (counters.at, counters.ttft[-1][1]))
    return found, unusable
