"""The operator's own metrics (names documented in docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

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
tick_timestamp = Gauge(
    "gemma_operator_last_tick_timestamp_seconds",
    "When the scaler last finished a tick (epoch seconds).",
    registry=REGISTRY,
)
metrics_missing = Gauge(
    "gemma_operator_metrics_missing",
    "1 where the metrics of a pool are missing.",
    ["namespace", "serving", "pool"],
    registry=REGISTRY,
)
desired_replicas = Gauge(
    "gemma_operator_desired_replicas",
    "Engines decided for a pool.",
    ["namespace", "serving", "pool"],
    registry=REGISTRY,
)
slo_target = Gauge(
    "gemma_operator_slo_ttft_target_seconds",
    "TTFT target of a pool in seconds.",
    ["namespace", "serving", "pool"],
    registry=REGISTRY,
)


def forget_pool(namespace: str, serving: str, pool: str) -> None:
    """Drop the series of a pool that is gone."""
    for gauge in (metrics_missing, desired_replicas, slo_target):
        gauge.remove_by_labels({"namespace": namespace, "serving": serving, "pool": pool})


def serve(port: int) -> None:
    """Serve the metrics over HTTP at `port`."""
    start_http_server(port, registry=REGISTRY)
