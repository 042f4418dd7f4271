"""The operator's own metrics (names documented in docs/metrics.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import ThreadingWSGIServer

from gemma_operator.figures import Figures

disable_created_metrics()  # type: ignore[no-untyped-call]  # series of their own in this format, which nobody reads
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


class Pools:
    """What the scaler last came to, pool by pool, asked for where somebody reads it: a pool that is gone leaves nothing behind.

    It writes Prometheus' text itself: of 2,000 pools that is 126,000 lines, for which the client takes 1.1 s of CPU, or 1.6 s for
    the form that Prometheus asks of it, at every scrape. Names of Kubernetes' objects and ours hold nothing to escape.
    """

    def __init__(self) -> None:
        self._figures: Callable[[], Mapping[PoolLabels, Figures]] = dict
        self._budgets: Callable[[], Mapping[ServingLabels, float]] = dict

    def show(
        self,
        figures: Callable[[], Mapping[PoolLabels, Figures]],
        budgets: Callable[[], Mapping[ServingLabels, float]],
    ) -> None:
        """What gives the `figures` of each pool, and the `budgets`: GPUs of the servings that have one."""
        self._figures, self._budgets = figures, budgets

    def gauges(self) -> Iterator[str]:
        """Every figure in Prometheus' text format, a gauge at a time: of 2,000 pools all at once take 32 MiB, and so 17.

        They are asked for by the call, so that an error isn't an answer that ends early.
        """
        shown = [(_labels(POOL_LABELS, pool), known) for pool, known in self._figures().items()]
        return self._written(shown, dict(self._budgets()))

    def _written(self, shown: list[tuple[str, Figures]], budgets: Mapping[ServingLabels, float]) -> Iterator[str]:
        for name, text in POOL_GAUGES.items():
            yield _gauge(
                f"gemma_operator_{name}",
                text,
                [(labels, known.plain[name]) for labels, known in shown if name in known.plain],
            )
        for name, (label, text) in LABELLED_GAUGES.items():
            yield _gauge(
                f"gemma_operator_{name}",
                text,
                [
                    (f'{labels},{label}="{value}"', number)
                    for labels, known in shown
                    for value, number in known.labelled.get(name, {}).items()
                ],
            )
        samples = [(_labels(SERVING_LABELS, serving), budget) for serving, budget in budgets.items()]
        yield _gauge(BUDGET, "GPUs that the pools of a serving may have together.", samples)


def _gauge(name: str, text: str, samples: list[tuple[str, float]]) -> str:
    lines = "".join([f"{name}{{{labels}}} {number}\n" for labels, number in samples])
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{lines}"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True))


pools = Pools()


def exposition() -> Iterator[bytes]:
    """All of the operator's metrics in Prometheus' text format, in parts."""
    gauges = (gauge.encode() for gauge in pools.gauges())
    return chain((generate_latest(REGISTRY),), gauges)


def serve(port: int, host: str = "0.0.0.0") -> WSGIServer:
    """Serve the metrics over HTTP at `port`, at any path. Raises OSError where the port is taken."""

    def answer(_: Any, start_response: Any) -> Iterator[bytes]:
        parts = exposition()
        start_response("200 OK", [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)])
        return parts

    server = make_server(host, port, answer, ThreadingWSGIServer, _Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Silent(WSGIRequestHandler):
    """A line of log per scrape says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass
