"""A decision: how many replicas, why, and the sum that led there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.verdict import Judgement


class Reason(StrEnum):
    """Why a decision is what it is. Stable: shown in status and Events."""

    MODE_OFF = "ModeOff"
    """`scaling.mode` is Off: the pool keeps the size it has."""
    EXTERNAL = "External"
    """`scaling.mode` is External: another autoscaler writes the replicas."""
    BELOW_MINIMUM = "BelowMinimum"
    """Fewer replicas than the minimum (or the schedule's): raised at once, with or without metrics."""
    ABOVE_MAXIMUM = "AboveMaximum"
    """More replicas than the maximum: lowered at once, with or without metrics."""
    OVER_BUDGET = "OverBudget"
    """The GPU budget doesn't allow what this pool has: lowered for another pool."""
    BUDGET_SPENT = "BudgetSpent"
    """The GPU budget doesn't allow what this pool needs: held."""
    DEMAND = "Demand"
    """More work comes, or may come while an engine starts, than the replicas carry: raised."""
    BACKLOG = "Backlog"
    """What waits isn't finished in time by the replicas there are: raised."""
    AT_MAXIMUM = "AtMaximum"
    """More replicas are needed than the maximum allows."""
    NO_CAPACITY = "NoCapacity"
    """Pods wait for a node with room, so no more are asked for."""
    LOW_DEMAND = "LowDemand"
    """Fewer engines have been enough for a whole cold start: lowered."""
    IDLE = "Idle"
    """Nothing was asked of the pool for a whole cold start: lowered."""
    METRICS_MISSING = "MetricsMissing"
    """Nothing is known of the load: held."""
    SAFE_FLOOR = "SafeFloor"
    """Nothing has been known for longer than an engine takes to start: raised to what this hour usually needs."""
    ROLLING_OUT = "RollingOut"
    """Pods are being replaced: nothing is lowered meanwhile."""
    COOLING_DOWN = "CoolingDown"
    """Fewer would do, but not yet for long enough."""
    STEADY = "Steady"
    """The replicas fit the demand."""


class Kind(StrEnum):
    """What a person should know beside the size. Stable: reasons of conditions."""

    METRICS_PARTIAL = "MetricsPartial"
    METRICS_BLIND = "MetricsBlind"
    SLO_INFEASIBLE = "SloInfeasible"
    NO_CAPACITY = "NoCapacity"
    ROUTER_SKEW = "RouterSkew"
    PROFILE_STALE = "ProfileStale"
    PROFILE_UNREADABLE = "ProfileUnreadable"
    PROFILE_WRONG = "ProfileWrong"
    DEADLINE_INFEASIBLE = "DeadlineInfeasible"
    COARSE_BUCKETS = "CoarseBuckets"


@dataclass(frozen=True, slots=True)
class Finding:
    """A state that scaling alone can't mend, and what to do about it."""

    kind: Kind
    message: str


@dataclass(frozen=True, slots=True)
class Terms:
    """The sum, term by term. Loads are engine-seconds per second."""

    requests: float = 0.0
    """Requests per second that came in the last minute, queued and refused ones included."""
    media_share: float = 0.0
    fast: float = 0.0
    """Mean load over the last minute."""
    level: float = 0.0
    """Mean load over the last five minutes."""
    headroom: float = 0.0
    """Load that may come on top while an engine starts."""
    chance: float = 0.0
    """Share of the demand for which even that isn't enough."""
    operating_point: float = 0.0
    """Load per engine at which the SLO still holds, by the profile."""
    correction: float = 1.0
    """Factor on it, by what was measured (kappa)."""
    capacity: float = 0.0
    """Load that is planned for each engine of a fleet as large as needed."""
    for_demand: int = 0
    """Engines for the demand and its headroom."""
    for_backlog: int = 0
    """Engines more, to work off what waits in the queues."""
    critical: int = 0
    """Engines without which requests that are here already miss the SLO or their deadline."""
    scheduled: int = 0
    """Engines that the schedule asks for."""
    cold_start: float = 0.0
    """Seconds that an engine takes from creation to Ready."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one tick came to for one pool."""

    at: float
    replicas: int
    """What should be written; the present number where nothing should be."""
    wanted: int
    """What the demand asks for, before bounds and budget."""
    reason: Reason
    message: str
    metrics: Metrics
    desired: int
    """Replicas asked for before this decision."""
    ready: int
    lent: int
    """Engines of another pool that are lent to this one."""
    minimum: int
    """With the schedule in it."""
    maximum: int
    terms: Terms = Terms()
    judgement: Judgement | None = None
    itl: Judgement | None = None
    p95: float | None = None
    """95th percentile of TTFT in seconds, interpolated, for people."""
    findings: tuple[Finding, ...] = ()
    dry_run: bool = False
    """The rule came to another number, which isn't written: see the message."""
    away: int = 0
    """Engines of this pool that are lent to another one."""
