"""How kstatus, by which Flux and Helm wait, reads a custom resource (sigs.k8s.io/cli-utils/pkg/kstatus, its generic rules)."""

from __future__ import annotations

from typing import Any


def kstatus(obj: dict[str, Any]) -> str:
    """Current, InProgress or Failed. An object of which nothing is known is Current, which is why the CRD has a status default."""
    status = obj.get("status", {})
    seen = status.get("observedGeneration")
    if seen is not None and seen != obj["metadata"].get("generation"):
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"
