"""Engine counters of all pools from Prometheus, in one query.

The query asks for raw samples (a range vector), not for rates: their timestamps show what is stale, and differences
are the business of `scaling.window`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from gemma_operator.scaling import EngineSample, Missing, MissingReason, PoolKey, Reading

LOOKBACK_SECONDS = 60
MAX_CLOCK_SKEW_SECONDS = 30
MAX_ERROR_CHARACTERS = 300
MALFORMED = (LookupError, TypeError, ValueError, RecursionError)
"""What reading JSON of an unexpected form raises."""

BUCKET, WAITING, RUNNING = (
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
)
METRICS = (BUCKET, WAITING, RUNNING)
TARGET_LABELS = ("namespace", "serving", "pool", "pod_uid")
QUERY = (
    f'{{__name__=~"{"|".join(METRICS).replace(":", "[:_]")}",'
    + ",".join(f'{label}!=""' for label in TARGET_LABELS)
    + f"}}[{LOOKBACK_SECONDS}s]"
)


class PrometheusSource:
    """A `MetricsSource` that asks a Prometheus server (or what speaks its query API) at `url`."""

    def __init__(self, url: str, token_file: Path | None = None, timeout_seconds: float = 5) -> None:
        self._name = f"Prometheus at {_without_credentials(url)}"
        self._token_file = token_file
        # No retries: a tick that got no answer holds, and the next one asks again.
        self._client = PrometheusConnect(url=url.rstrip("/"), timeout=timeout_seconds, retry=Retry(total=0))

    def read(self, now: float) -> Reading:
        try:
            if self._token_file:
                # Read each time: the kubelet rotates service account tokens.
                self._client.headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
            answer = self._client.custom_query(QUERY)
        except (PrometheusApiClientException, HTTPError, OSError, *MALFORMED) as error:
            return Missing(MissingReason.QUERY_FAILED, f"{self._name} could not be read: {_explain(error)}")
        try:
            samples = parse(answer)
        except MALFORMED as error:
            message = f"{self._name} answered something else than a range vector: {_explain(error)}"
            return Missing(MissingReason.QUERY_FAILED, message)
        if not samples:
            return Missing(
                MissingReason.NO_SERIES,
                f"{self._name} answered, but in {LOOKBACK_SECONDS} s has not seen {', '.join(METRICS)} "
                f"with labels {', '.join(TARGET_LABELS)}: does it scrape the engine Pods and set these labels?",
            )
        ahead = max(sample.at for engines in samples.values() for sample in engines) - now
        if ahead > MAX_CLOCK_SKEW_SECONDS:
            return Missing(
                MissingReason.CLOCK_SKEW,
                f"the newest sample of {self._name} is {ahead:.0f} s ahead of this operator's clock "
                f"({MAX_CLOCK_SKEW_SECONDS} s are allowed): set the clocks right",
            )
        return samples


class _Series(NamedTuple):
    metric: str
    edge: float
    at: float
    value: float


def parse(result: Iterable[Mapping[str, Any]]) -> dict[PoolKey, tuple[EngineSample, ...]]:
    """The newest sample of each engine Pod in a range vector. Engines that lack one of the metrics are left out."""
    pods: dict[tuple[PoolKey, str, str], dict[str, dict[object, list[_Series]]]]
    pods = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for item in result:
        labels = dict(item["metric"])
        at, value = item["values"][-1]
        spelling = labels.pop("__name__")
        # Before version 3, Prometheus is given vllm_… by exporters that escape names for OpenMetrics.
        metric = spelling.replace("vllm_", "vllm:", 1)
        series = _Series(metric, float(labels.pop("le", "nan")), float(at), float(value))
        key = PoolKey(*(labels.pop(name) for name in ("namespace", "serving", "pool")))
        pod_uid, pod, engine = labels.pop("pod_uid"), labels.pop("pod", ""), labels.pop("engine", "")
        # What still differs names the scrape: two jobs or two Prometheus replicas may see the same engine.
        scrape = (spelling == metric, frozenset(labels.items()))
        pods[key, pod_uid, pod][engine][scrape].append(series)
    samples: dict[PoolKey, list[EngineSample]] = defaultdict(list)
    for (key, pod_uid, pod), engines in pods.items():
        if sample := _sample(pod_uid, pod, [_newest(scrapes.values()) for scrapes in engines.values()]):
            samples[key].append(sample)
    return {key: tuple(listed) for key, listed in samples.items()}


def _newest(scrapes: Iterable[list[_Series]]) -> list[_Series]:
    """The series of the latest scrape; of two equally late ones the one that counted more."""

    def rank(scrape: list[_Series]) -> tuple[float, float]:
        at = max(series.at for series in scrape)
        counts = [series.value for series in scrape if series.metric == BUCKET and series.at == at]
        return at, max((count for count in counts if not math.isnan(count)), default=0.0)

    newest = max(scrapes, key=rank)
    at, _ = rank(newest)
    return [series for series in newest if series.at == at]


def _sample(pod_uid: str, pod: str, engines: list[list[_Series]]) -> EngineSample | None:
    """One Pod's engines (data-parallel ranks) together; None if a metric is missing in any of them."""
    values: dict[tuple[str, float], float] = defaultdict(float)
    for engine in engines:
        if {series.metric for series in engine} != set(METRICS):
            return None
        for series in engine:
            values[series.metric, 0.0 if math.isnan(series.edge) else series.edge] += series.value
    return EngineSample(
        pod_uid=pod_uid,
        pod=pod,
        at=min(series.at for engine in engines for series in engine),
        ttft_buckets=tuple(sorted((edge, count) for (metric, edge), count in values.items() if metric == BUCKET)),
        waiting=values[WAITING, 0.0],
        running=values[RUNNING, 0.0],
    )


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _explain(error: Exception) -> str:
    """An exception in one short line without what could be a secret."""
    text = re.sub(r" with url: \S+", "", " ".join(str(error).split()))
    text = re.sub(r"//[^/@\s]*@", "//", text)
    shown = text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"
    return f"{type(error).__name__}: {shown}"
