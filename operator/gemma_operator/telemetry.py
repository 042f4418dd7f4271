"""The operator's own metrics (names documented in docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry()

reconciles = Counter(
    "gemma_operator_reconciles", "Reconciles by result (ok, refused, error).", ["result"], registry=REGISTRY
)
reconcile_seconds = Histogram(
    "gemma_operator_reconcile_seconds", "Duration of a reconcile in seconds.", registry=REGISTRY
)
writes = Counter(
    "gemma_operator_writes", "Writes to the API server by verb and kind.", ["verb", "kind"], registry=REGISTRY
)
queue_depth = Gauge("gemma_operator_queue_depth", "Keys that wait in the work queue.", registry=REGISTRY)
crd_missing_fields = Gauge(
    "gemma_operator_crd_missing_fields",
    "Fields that this operator knows and the CRD in the cluster does not, as found at the start.",
    registry=REGISTRY,
)
leading = Gauge(
    "gemma_operator_leading",
    "Scopes (the whole cluster, or one namespace) that this replica acts for; 0 on a standby.",
    registry=REGISTRY,
)
tick_timestamp = Gauge(
    "gemma_operator_last_tick_timestamp_seconds",
    "When the scaler last finished a tick (epoch seconds).",
    registry=REGISTRY,
)
tick_seconds = Histogram(
    "gemma_operator_tick_seconds", "Duration of a scaler tick in seconds, the reading included.", registry=REGISTRY
)

POOL_LABELS = ("namespace", "serving", "pool")
POOL_GAUGES = {
    "slo_ttft_target_seconds": "TTFT target of a pool in seconds.",
    "slo_ttft_percentile": "Share of requests that must be within the TTFT target, in per cent.",
    "desired_replicas": "Engines decided for a pool.",
    "wanted_replicas": "Engines that the demand of a pool asks for, before bounds and budget.",
    "ready_replicas": "Engines of a pool that are Ready.",
    "metrics_missing": "1 where the metrics of a pool are missing.",
    "attainment_low": "Lower bound of the share of requests within the TTFT target.",
    "attainment_high": "Upper bound of the share of requests within the TTFT target.",
}
TERM = "gemma_operator_scaling_term"
PoolLabels = tuple[str, str, str]


class Pools(Collector):
    """What the scaler last came to, pool by pool. Replaced as a whole: a pool that is gone leaves nothing behind."""

    def __init__(self) -> None:
        self._figures: Mapping[PoolLabels, Mapping[str, float]] = {}
        self._terms: Mapping[PoolLabels, Mapping[str, float]] = {}

    def show(
        self, figures: Mapping[PoolLabels, Mapping[str, float]], terms: Mapping[PoolLabels, Mapping[str, float]]
    ) -> None:
        """`figures`: values of POOL_GAUGES by pool, as far as they are known; `terms`: the sum of the decision."""
        self._figures, self._terms = figures, terms

    def collect(self) -> Iterable[Metric]:
        for name, text in POOL_GAUGES.items():
            family = GaugeMetricFamily(f"gemma_operator_{name}", text, labels=POOL_LABELS)
            for pool, figures in self._figures.items():
                if name in figures:
                    family.add_metric(pool, figures[name])
            yield family
        family = GaugeMetricFamily(TERM, "One term of a pool's last decision.", labels=(*POOL_LABELS, "term"))
        for pool, terms in self._terms.items():
            for term, value in terms.items():
                family.add_metric((*pool, term), value)
        yield family


pools = Pools()
REGISTRY.register(pools)


def serve(port: int) -> None:
    """Serve the metrics over HTTP at `port`."""
    start_http_server(port, registry=REGISTRY)
