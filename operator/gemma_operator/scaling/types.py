"""The words of scaling: what is read, what it says, what is decided.

Everything here is a value: no clock, no I/O. Times are epoch seconds, durations are seconds, rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, order=True)
class PoolKey:
    """One pool, by the labels its engines' series carry (`serving` is the label value, not always the full name)."""

    namespace: str
    serving: str
    pool: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.serving}/{self.pool}"


@dataclass(frozen=True)
class EngineSample:
    """The raw counters and gauges of one engine Pod at one scrape."""

    pod_uid: str
    pod: str
    at: float
    """When the metrics source read it (epoch seconds)."""
    ttft_buckets: tuple[tuple[float, float], ...]
    """TTFT histogram since the engine started: (upper edge in seconds, requests at or under it), infinity last."""
    waiting: float
    """Requests queued in the engine."""
    running: float
    """Requests being worked on."""


class MissingReason(StrEnum):
    """Why there is no observation. None of these ever means zero."""

    NOT_CONFIGURED = "NotConfigured"
    """No metrics source is named."""
    QUERY_FAILED = "QueryFailed"
    """The source could not be reached, refused, or answered something else than asked."""
    NO_SERIES = "NoSeries"
    """The source answered, but knows no engine of this pool."""
    STALE = "Stale"
    """The newest samples are too old to act on."""
    PARTIAL_COVERAGE = "PartialCoverage"
    """Some Ready engines have no usable history, so the whole can't be judged."""
    CLOCK_SKEW = "ClockSkew"
    """The clocks of the source and of the operator disagree."""


@dataclass(frozen=True)
class Missing:
    """No observation, and why, in words for the person who has to mend it."""

    reason: MissingReason
    message: str


Reading = Mapping[PoolKey, tuple[EngineSample, ...]] | Missing
"""What a metrics source returns: the newest sample of each engine of each pool, or why there is none."""


@dataclass(frozen=True)
class Slo:
    """At least `percentile` of 100 requests get their first token within `ttft_seconds`."""

    percentile: float
    ttft_seconds: float

    @property
    def allowed_share(self) -> float:
        """The share of requests that may miss (0.05 for a p95)."""
        return 1 - self.percentile / 100


@dataclass(frozen=True)
class Policy:
    """How one pool is to be scaled."""

    minimum: int
    maximum: int
    slo: Slo | None
    window_seconds: float = 60
    """How far back one judgement looks; also how long new Pods must have been Ready before the next one."""
    scale_down_after_seconds: float = 300
    """Length of the unbroken good history before a scale-down (near one measured cold start)."""
    cold_start_deadline_seconds: float = 900
    """After this long, Pods that are still not Ready no longer hold back a scale-up."""


@dataclass(frozen=True)
class Fleet:
    """The pool's Pods as the API server knows them."""

    desired: int
    ready: int
    live_pod_uids: frozenset[str]
    """UIDs of the Ready Pods: only their samples count, and each of them must have one."""
    rolling_out: bool


@dataclass(frozen=True)
class Window:
    """What all live engines of a pool did together over the last `seconds`."""

    seconds: float
    samples: float
    """Requests that got their first token in the window."""
    misses_low: float
    misses_high: float
    """Bounds of how many of them were over the SLO; equal when a bucket edge lies exactly at the SLO."""
    p95_seconds: float | None
    """95th percentile of TTFT, interpolated within its bucket, for people; None without samples."""
    requests_per_second: float
    waiting: float
    running: float
    """Means over the window, summed over the engines."""
    waiting_throughout: float
    """The least that was waiting at any scrape, summed over the engines: above zero, the queue never emptied."""


class Verdict(StrEnum):
    """Whether the SLO holds, as far as the samples can tell."""

    MET = "Met"
    MISSED = "Missed"
    UNDETERMINED = "Undetermined"


@dataclass(frozen=True)
class Judgement:
    """A verdict and the bounds (95 % each side) of the share of requests that miss."""

    verdict: Verdict
    share_low: float
    share_high: float


class Reason(StrEnum):
    """Why a decision is what it is. Stable: shown in status and Events."""

    BELOW_MINIMUM = "BelowMinimum"
    """Fewer replicas than the minimum: raised at once, with or without metrics."""
    ABOVE_MAXIMUM = "AboveMaximum"
    """More replicas than the maximum: lowered at once, with or without metrics."""
    APPLYING = "Applying"
    """What the last decision asked for is not yet seen on the Deployment: asked for again, for one window."""
    NO_SLO = "NoSlo"
    """The pool has no TTFT target, so nothing here moves it."""
    ROLLING_OUT = "RollingOut"
    """Pods are being replaced; what they measure now says little about the pool."""
    PODS_PENDING = "PodsPending"
    """Replicas already asked for are not Ready yet."""
    SETTLING = "Settling"
    """All Pods are Ready, but the window still holds samples from before."""
    METRICS_MISSING = "MetricsMissing"
    """There is no observation to decide on, so nothing moves."""
    SLO_MISSED = "SloMissed"
    """Too many requests are over the SLO: scaled up."""
    QUEUE_STUCK = "QueueStuck"
    """Requests wait and none gets a first token: scaled up."""
    AT_MAXIMUM = "AtMaximum"
    """The SLO is missed, and the maximum allows no more replicas."""
    LOW_LOAD = "LowLoad"
    """One engine less has carried, or can carry, this load: scaled down by one."""
    STEADY = "Steady"
    """Nothing calls for a change."""


@dataclass(frozen=True)
class Decision:
    """How many replicas, and why."""

    replicas: int
    reason: Reason
    message: str
    judgement: Judgement | None
    window: Window | None


@dataclass(frozen=True)
class Load:
    """What one window said of the load, kept while the SLO holds."""

    at: float
    requests_per_second: float
    in_flight: float
    samples: float
    misses: float
    """The upper bound: a scale-down takes no chances."""


@dataclass(frozen=True)
class Memory:
    """What `decide` keeps between ticks. Empty after a restart, which only makes it more careful."""

    at: float = 0
    """The last tick."""
    desired: int = 0
    """The fleet's desired replicas at the last tick: a change from anywhere restarts the waiting."""
    target: int | None = None
    """What the last decision asked for, until the fleet shows it."""
    ready_since: float | None = None
    """Since when every desired Pod is Ready and no rollout runs."""
    unsettled_since: float | None = None
    """Since when that has not been so for a whole window."""
    quiet: tuple[Load, ...] = ()
    """The unbroken history without a miss or a gap, oldest first, no longer than a scale-down needs."""
    met_load: float = 0
    """Highest requests per second per engine at which the SLO was seen met."""
    missed_load: float | None = None
    """Lowest requests per second per engine at which the SLO was lately seen missed."""
    missed_at: float = 0
    """When it last was."""
