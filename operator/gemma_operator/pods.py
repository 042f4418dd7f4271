"""The Pods of a pool as the autoscaler needs them. Pure: it is given the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gemma_operator.desired.names import CLASS, LENT

PORT_ANNOTATION, PATH_ANNOTATION = "prometheus.io/port", "prometheus.io/path"


@dataclass(frozen=True, slots=True)
class EnginePod:
    """One living Pod of a pool. Times are epoch seconds."""

    uid: str
    name: str
    created_at: float
    ready_at: float | None
    """Since when it is Ready; None where it is not."""
    unschedulable: bool
    """No node has room for it."""
    metrics_url: str | None
    """Where its engine shows its metrics; None while it has no address."""
    serves: str = ""
    """Class of the requests that it answers."""
    lent_at: float | None = None
    """Since when that is another class than its pool's; None where it is not lent."""


def engine_pods(pods: Iterable[Mapping[str, Any]]) -> tuple[EnginePod, ...]:
    """The Pods given, which are alive."""
    return tuple(map(_engine_pod, pods))


def _engine_pod(pod: Mapping[str, Any]) -> EnginePod:
    meta, status = pod["metadata"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    created_at = epoch(meta.get("creationTimestamp"), 0.0)
    return EnginePod(
        uid=meta["uid"],
        name=meta["name"],
        created_at=created_at,
        ready_at=epoch(ready.get("lastTransitionTime"), created_at) if ready.get("status") == "True" else None,
        unschedulable=scheduled.get("reason") == "Unschedulable",
        metrics_url=_metrics_url(status.get("podIP"), meta.get("annotations", {})),
        serves=meta.get("labels", {}).get(CLASS, ""),
        lent_at=_epoch_of(meta.get("annotations", {}).get(LENT)),
    )


def _metrics_url(ip: str | None, annotations: Mapping[str, str]) -> str | None:
    if not ip or PORT_ANNOTATION not in annotations:
        return None
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{annotations[PORT_ANNOTATION]}{annotations.get(PATH_ANNOTATION, '/metrics')}"


def _epoch_of(text: str | None) -> float | None:
    """An annotation that anybody may have changed."""
    try:
        return epoch(text, 0.0) if text else None
    except ValueError:
        return None


def epoch(text: str | None, default: float) -> float:
    """Epoch seconds of Kubernetes's time (RFC 3339, UTC, whole seconds)."""
    if not text:
        return default
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
