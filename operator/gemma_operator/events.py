"""The Events of a look: what has turned in the status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_operator.status import WITHOUT_SPARE

# Conditions of which each turn is an Event, and the status that is a Warning.
BAD = {
    "Ready": "False",
    "Stalled": "True",
    "SLOMet": "False",
    "MetricsAvailable": "False",
    "EnginesProgressing": "False",
    "CapacityAvailable": "False",
    "ScalingSound": "False",
    "UpdateAvailable": "",
    "SoleOperator": "False",
    "RoutingReady": "False",
}


def events_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(type, reason, message) for each condition that turned, and for each change of a pool's size."""
    events = []
    for kind, bad in BAD.items():
        before, after = condition_of(old, kind).get("status"), condition_of(new, kind)
        if not after:
            continue
        turned = after["status"] != before and (before is not None or (kind, after["status"]) == ("Stalled", "True"))
        if turned and after["status"] != "Unknown" and (kind, after["status"]) != ("Stalled", "False"):
            level = "Warning" if after["status"] == bad else "Normal"
            events.append((level, after["reason"], f"{kind} is {after['status']}: {after['message']}"))
    rollout = condition_of(new, "Reconciling")
    if rollout.get("reason") == WITHOUT_SPARE != condition_of(old, "Reconciling").get("reason"):
        events.append(("Warning", WITHOUT_SPARE, rollout["message"]))
    for name, pool in new.get("pools", {}).items():
        before_desired = old.get("pools", {}).get(name, {}).get("desired")
        if before_desired and before_desired != pool["desired"]:
            change = f"{before_desired} -> {pool['desired']} replicas"
            why = pool.get("lastDecision", {}).get("message", "")
            events.append(("Normal", "Scaled", f"pool {name}: {why if why.startswith(change) else change}"))
        was, would_be = (_dry(found.get("pools", {}).get(name, {})) for found in (old, new))
        if would_be and was.partition(":")[0] != would_be.partition(":")[0]:
            events.append(("Normal", "DryRun", f"pool {name}: {would_be}"))
    return events


def _dry(pool: Mapping[str, Any]) -> str:
    """What `mode: DryRun` would have done; empty where that is nothing."""
    last = pool.get("lastDecision", {})
    return str(last["message"]) if last.get("record", {}).get("dry_run") else ""


def condition_of(status_: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition by its type; empty where the status has none."""
    return next((c for c in status_.get("conditions", []) if c["type"] == kind), {})
