"""The operator's own metrics (names documented in docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gemma_operator.figures import Figures

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

SERVING_LABELS = ("namespace", "serving")
POOL_LABELS = (*SERVING_LABELS, "pool")
POOL_GAUGES = {
    "slo_ttft_target_seconds": "TTFT target of a pool in seconds.",
    "slo_ttft_percentile": "Share of requests that must be within the TTFT target, in per cent.",
    "attainment_low": "Lower bound of the share of requests within the TTFT target.",
    "attainment_high": "Upper bound of the share of requests within the TTFT target.",
    "ttft_p95_seconds": "95th percentile of TTFT that the last decision saw, in seconds.",
    "desired_replicas": "Engines decided for a pool.",
    "wanted_replicas": "Engines that the demand of a pool asks for, before bounds and budget.",
    "ready_replicas": "Engines of a pool that are Ready.",
    "pending_replicas": "Pods of a pool that are not Ready yet.",
    "unschedulable_replicas": "Pods of a pool that no node has room for.",
    "lent_replicas": "Engines that another pool has lent to a pool.",
    "away_replicas": "Engines of a pool that it has lent to another.",
    "min_replicas": "Least engines of a pool, the schedule in it.",
    "max_replicas": "Most engines of a pool.",
    "gpus": "GPUs of the engines decided for.",
    "metrics_missing": "1 where the metrics of a pool are missing.",
    "cold_start_seconds": "Mean time from creation to Ready of the Ready engines of a pool, in seconds.",
    "deadline_seconds": "Time from arrival in which a batch pool's work should be finished, in seconds.",
    "backlog_requests": "Requests that are in a batch pool's engines or wait outside of them.",
    "backlog_work_seconds": "Work that waits in a batch pool, in engine-seconds.",
    "backlog_due_timestamp_seconds": "When the earliest of it is due (epoch seconds).",
}
LABELLED_GAUGES = {
    "scaling_term": ("term", "One term of a pool's last decision."),
    "work": ("modality", "Work answered by a pool, in engine-seconds per second."),
    "metrics_state": ("state", "1 for how much of a pool is seen."),
    "decision_reason": ("reason", "1 for the reason of a pool's last decision."),
    "finding": ("kind", "1 for what speaks against how a pool is scaled."),
}
BUDGET = "gemma_operator_gpu_budget"
PoolLabels = tuple[str, str, str]
ServingLabels = tuple[str, str]


class Pools(Collector):
    """What the scaler last came to, pool by pool. Replaced as a whole: a pool that is gone leaves nothing behind."""

    def __init__(self) -> None:
        self._figures: Mapping[PoolLabels, Figures] = {}
        self._budgets: Mapping[ServingLabels, float] = {}

    def show(self, figures: Mapping[PoolLabels, Figures], budgets: Mapping[ServingLabels, float]) -> None:
        """`figures` of each pool; `budgets`: GPUs of the servings that have a budget."""
        self._figures, self._budgets = figures, budgets

    def collect(self) -> Iterable[Metric]:
        for name, text in POOL_GAUGES.items():
            family = GaugeMetricFamily(f"gemma_operator_{name}", text, labels=POOL_LABELS)
            for pool, known in self._figures.items():
                if name in known.plain:
                    family.add_metric(pool, known.plain[name])
            yield family
        for name, (label, text) in LABELLED_GAUGES.items():
            family = GaugeMetricFamily(f"gemma_operator_{name}", text, labels=(*POOL_LABELS, label))
            for pool, known in self._figures.items():
                for value, number in known.labelled.get(name, {}).items():
                    family.add_metric((*pool, value), number)
            yield family
        family = GaugeMetricFamily(BUDGET, "GPUs that the pools of a serving may have together.", labels=SERVING_LABELS)
        for serving, budget in self._budgets.items():
            family.add_metric(serving, budget)
        yield family


pools = Pools()
REGISTRY.register(pools)


def serve(port: int) -> None:
    """Serve the metrics over HTTP at `port`."""
    start_http_server(port, registry=REGISTRY)
