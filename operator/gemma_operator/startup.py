"""The phases of an engine's start, and how long each took. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from gemma_operator.engine.progress import Marks

# Phases that a Pod alone doesn't show.
TOLD_BY_LOG = ("Downloading", "Loading", "Compiling")
PHASES = ("Scheduling", "Pulling", "Downloading", "Loading", "Compiling", "Ready")


@dataclass(frozen=True, slots=True)
class Startup:
    """How far one engine is: its Pod, the phase it is in, and the whole seconds that the phases before took."""

    pod: str
    phase: str
    seconds: Mapping[str, int]

    def as_status(self) -> dict[str, Any]:
        """The start as it is shown in the status; it changes only with the phase."""
        shown: dict[str, Any] = {"pod": self.pod, "phase": self.phase}
        # Server-side apply makes null of a map that loses all its entries, which the API server then refuses.
        return shown | ({"seconds": dict(self.seconds)} if self.seconds else {})


def startup(pod: Mapping[str, Any], marks: Marks) -> Startup:
    """Phases of a Pod's newest start, from the Pod itself and from what its engine has logged.

    An engine that reads weights from a folder never downloads: its first phase ends with its first word about weights.
    """
    status = pod.get("status", {})
    engine = _engine(status)
    conditions = {c["type"]: c for c in status.get("conditions", []) if c.get("status") == "True"}
    # An engine that fails its readiness probe later on is busy, not starting.
    over = conditions.get("Ready") or (conditions.get("PodScheduled") if engine.get("started") else None) or {}
    began: dict[str, str | None] = {
        "Scheduling": pod["metadata"].get("creationTimestamp"),
        "Pulling": conditions.get("PodScheduled", {}).get("lastTransitionTime"),
        "Downloading": engine.get("state", {}).get("running", {}).get("startedAt"),
        **{phase: at for phase, at in marks if phase in ("Loading", "Compiling")},
        "Ready": over.get("lastTransitionTime"),
    }
    reached = [(phase, _time(at)) for phase in PHASES if (at := began.get(phase))]
    seconds = {phase: max(0, round((after - at).total_seconds())) for (phase, at), (_, after) in pairwise(reached)}
    return Startup(str(pod["metadata"]["name"]), reached[-1][0] if reached else "Scheduling", seconds)


def wants_log(pod: Mapping[str, Any]) -> bool:
    """True where the engine's log says more than the Pod: its container runs, and its start isn't over."""
    engine = _engine(pod.get("status", {}))
    return "running" in engine.get("state", {}) and not engine.get("started")


def _engine(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((c for c in status.get("containerStatuses", []) if c.get("name") == "engine"), {})


def _time(text: str) -> datetime:
    # The kubelet writes nanoseconds, Python reads microseconds.
    head, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{rest[:6]:0<6}+00:00")
