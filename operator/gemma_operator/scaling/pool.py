"""What is wanted of a pool, and what there is of it. Times are epoch seconds, durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gemma_operator.scaling.profile import DEFAULT_PROFILE, Profile
from gemma_operator.scaling.schedule import Slot

COLD_START_SECONDS = 330.0
"""Creation to Ready while none was measured: the middle of 226 to 428 s (seed 001)."""

MOST_COLD_START_SECONDS = 1800.0
"""A Pod that took longer has lost its readiness meanwhile, and got it back."""


class Mode(StrEnum):
    """Who moves the replicas of a pool."""

    AUTO = "Auto"
    """The operator decides and writes."""
    DRY_RUN = "DryRun"
    """The operator decides and reports, and writes nothing."""
    OFF = "Off"
    """Nobody: the pool stays at the size it has."""
    EXTERNAL = "External"
    """Another autoscaler (HPA, KEDA) writes the replicas; the operator only judges."""


@dataclass(frozen=True, slots=True)
class Slo:
    """At least `percentile` of 100 observations are at or under `seconds`."""

    percentile: float
    seconds: float

    @property
    def allowed(self) -> float:
        """The share that may miss (0.05 for a p95)."""
        return 1 - self.percentile / 100


@dataclass(frozen=True, slots=True)
class Policy:
    """How one pool is to be scaled."""

    minimum: int
    maximum: int
    ttft: Slo | None = None
    """Objective of the time to first token; None for a pool that is sized by its backlog."""
    itl: Slo | None = None
    """Objective of the time between two outputs; judged and reported, more replicas are asked for by TTFT alone."""
    mode: Mode = Mode.AUTO
    schedule: tuple[Slot, ...] = ()
    profile: Profile = DEFAULT_PROFILE
    deadline_seconds: float = 3600.0
    """Without TTFT objective: a request should be finished this long after it came."""
    wakes_from_zero: bool = False
    """The pool's backlog is counted outside of its engines, so it may have none of them."""
    sheds: bool = False
    """Its engines turn away what they can't answer in time."""


@dataclass(frozen=True, slots=True)
class Member:
    """One Ready engine that gets the pool's traffic."""

    uid: str
    created_at: float
    ready_at: float
    joined_at: float
    """Since when the pool's traffic reaches it: when it became Ready, or when it was lent to this pool."""
    lent: bool = False
    """It belongs to another pool, which has lent it to this one."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pool's engines as the API server knows them."""

    desired: int
    """Replicas asked for. Engines that it has lent to another pool are in it, those lent to it are not."""
    members: tuple[Member, ...] = ()
    pending: int = 0
    """Pods that are not Ready yet."""
    unschedulable: int = 0
    """Those of them that no node has room for."""
    rolling_out: bool = False
    """Pods are being replaced by a newer revision."""
    away: int = 0
    """Engines that it has lent to another pool; they are no members."""

    @property
    def cold_start_seconds(self) -> float:
        """Mean time from creation to Ready of the engines at hand; the default while there are none."""
        times = [max(member.ready_at - member.created_at, 1.0) for member in self.members]
        measured = [seconds for seconds in times if seconds <= MOST_COLD_START_SECONDS]
        return sum(measured) / len(measured) if measured else COLD_START_SECONDS
