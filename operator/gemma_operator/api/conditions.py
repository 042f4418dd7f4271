"""Condition types and reasons of a GemmaServing, and how a new set replaces an old one.

Ready, Reconciling and Stalled follow kstatus (sigs.k8s.io/cli-utils/pkg/kstatus).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

READY = "Ready"
RECONCILING = "Reconciling"
STALLED = "Stalled"
SLO_MET = "SLOMet"
METRICS_AVAILABLE = "MetricsAvailable"
ENGINES_PROGRESSING = "EnginesProgressing"
CAPACITY_AVAILABLE = "CapacityAvailable"
SCALING_ACTIVE = "ScalingActive"
SCALING_SOUND = "ScalingSound"
VALID = "Valid"
SETTINGS_SOUND = "SettingsSound"
UPDATE_AVAILABLE = "UpdateAvailable"
SOLE_OPERATOR = "SoleOperator"
ROUTING_READY = "RoutingReady"
TYPES = (
    READY,
    RECONCILING,
    STALLED,
    VALID,
    SETTINGS_SOUND,
    UPDATE_AVAILABLE,
    SOLE_OPERATOR,
    ROUTING_READY,
    SLO_MET,
    METRICS_AVAILABLE,
    ENGINES_PROGRESSING,
    CAPACITY_AVAILABLE,
    SCALING_ACTIVE,
    SCALING_SOUND,
)

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition before it is stamped with a time; `reason` is CamelCase and stable, `message` is for people."""

    type: str
    status: Status
    reason: str
    message: str


def merge(
    old: Iterable[Mapping[str, Any]], new: Iterable[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """Stamp `new` conditions; `lastTransitionTime` (RFC 3339) moves only where the status changed."""
    before = {condition.get("type"): condition for condition in old}
    merged = []
    for condition in new:
        previous = before.get(condition.type, {})
        same = previous.get("status") == condition.status
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": previous["lastTransitionTime"] if same else now,
            }
        )
    return merged
