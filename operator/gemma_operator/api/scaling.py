"""How many engines a pool has, and the objective that they hold."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from gemma_operator.api.base import ApiModel, Name, Rule, ShortText, distinct
from gemma_operator.api.values import Duration, Schema, duration_seconds

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
TimeOfDay = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5)]
PromQL = Annotated[str, Field(min_length=1, max_length=2048)]
Cost = Annotated[float, Field(ge=0, le=100000)]
GpuBudget = Annotated[int, Field(ge=0, le=100000)]


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("no such time zone; use a name like UTC or Europe/Berlin") from None
    return name


class Replicas(ApiModel):
    """Bounds for the number of engines; equal bounds switch autoscaling off."""

    min: Annotated[int, Field(ge=0, le=10000)] = 1
    """Fewest engines. 0 is allowed for batch pools only."""
    max: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Most engines; `min` where absent (a fixed size, at least 1)."""

    RULES = (
        Rule(
            "replicas-ordered",
            "!has(self.max) || self.max >= (has(self.min) ? self.min : 1)",
            lambda r: r.max is None or r.max >= r.min,
            "replicas.max must be at least replicas.min, which is 1 where absent",
            shows=("max", "min"),
        ),
    )

    @property
    def ceiling(self) -> int:
        """Most engines, in pieces."""
        return max(1, self.min) if self.max is None else self.max


class LatencyTarget(ApiModel):
    """`percentile` per cent of the requests must be at or under `target`."""

    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95
    """Share of requests, in per cent."""
    target: Duration = "300ms"
    """Longest time, for instance 300ms; from 10ms to 10m."""

    RULES = (
        Rule(
            "target-reachable",
            "!has(self.target) || (duration(self.target) >= duration('10ms') && duration(self.target) <= duration('10m'))",
            lambda t: 0.01 <= t.seconds <= 600,
            "a latency target is from 10ms to 10m",
            shows=("target",),
        ),
    )

    @property
    def seconds(self) -> float:
        """The target in seconds."""
        return duration_seconds(self.target)


class ItlTarget(ApiModel):
    """`percentile` per cent of the times between two outputs must be at or under `target`."""

    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95
    """Share of the intervals, in per cent."""
    target: Duration
    """Longest interval, for instance 50ms; from 1ms to 10s."""

    RULES = (
        Rule(
            "itl-target-reachable",
            "duration(self.target) >= duration('1ms') && duration(self.target) <= duration('10s')",
            lambda t: 0.001 <= t.seconds <= 10,
            "a target between two outputs is from 1ms to 10s",
            shows=("target",),
        ),
    )

    @property
    def seconds(self) -> float:
        """The target in seconds."""
        return duration_seconds(self.target)


class Slo(ApiModel):
    """Service level objective of a pool."""

    ttft: LatencyTarget = LatencyTarget()
    """Time to first token."""
    itl: ItlTarget | None = None
    """Time between two outputs of a request; judged and reported where set."""


class ScheduleSlot(ApiModel):
    """At least `min` engines in a part of the week, for load that is known beforehand. They are started early enough."""

    days: Annotated[
        list[Weekday], Field(max_length=7), AfterValidator(distinct), Schema({"x-kubernetes-list-type": "set"})
    ] = []
    """Days on which it begins; every day where absent."""
    start: TimeOfDay
    """For instance 08:00."""
    end: TimeOfDay
    """For instance 18:30; at or before `start` it is on the next day."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_known_zone)] = "UTC"
    """Name in the time zone database, for instance Europe/Berlin."""
    min: Annotated[int, Field(ge=1, le=10000)]
    """Fewest engines meanwhile; replicas.max still holds."""


class WorkCosts(ApiModel):
    """What a request costs an engine, in milliseconds; what is absent is as measured with gemma-4-E4B on one GPU."""

    request: Cost | None = None
    """Each request."""
    prompt_token: Cost | None = None
    """Each prompt token that is computed (not taken from a cache)."""
    generated_token: Cost | None = None
    """Each token of an answer."""
    media_item: Cost | None = None
    """Each image or video."""
    media_unit: Cost | None = None
    """Each video frame, or 70 embeddings of an image."""


class OperatingPoint(ApiModel):
    """The highest load per engine at which the SLO still holds."""

    media_share: Annotated[float, Field(ge=0, le=1)]
    """Images and videos per request."""
    burstiness: Annotated[float, Field(ge=0.1, le=100)] = 1.0
    """Coefficient of variation of the gaps between requests; 1 is random arrivals."""
    load: Annotated[float, Field(gt=0, le=1000)]
    """Costs of all requests of a second, in seconds."""


class MeasuredWith(ApiModel):
    """What a profile was measured with. Where the pool has something else the profile is stale, and trusted less."""

    model: ShortText | None = None
    """Hub id or served name of the model."""
    engine_version: ShortText | None = None
    """vLLM version, for instance 0.32.0."""
    gpu: ShortText | None = None
    """GPU, for instance h100 or NVIDIA-H100-80GB-HBM3."""


class CapacityProfile(ApiModel):
    """What an engine carries, as `gemma-operator profile` measures it; built-in values where absent."""

    costs: WorkCosts = WorkCosts()
    """Costs of a request."""
    points: Annotated[list[OperatingPoint], Field(max_length=64)] = []
    """Measured operating points; the autoscaler goes between them, never beyond."""
    media_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Images and videos per request where the engines can't count them."""
    burstiness: Annotated[float, Field(ge=0.1, le=100)] = 1.0
    """How bursty this pool's clients are within seconds."""
    measured_with: MeasuredWith = MeasuredWith()
    """What it was measured with."""


class ProfileKey(ApiModel):
    """A capacity profile in a ConfigMap in the namespace of the GemmaServing, as `gemma-operator profile` prints it."""

    name: Name
    """Name of the ConfigMap."""
    key: Name = "profile.yaml"
    """Key within the ConfigMap."""


class Scaling(ApiModel):
    """How the number of engines is decided between replicas.min and replicas.max."""

    mode: Literal["Auto", "DryRun", "Off", "External"] = "Auto"
    """Auto decides and writes; DryRun decides, reports and writes nothing; Off keeps the size; External leaves it to an HPA or KEDA."""
    schedule: Annotated[list[ScheduleSlot], Field(max_length=32)] = []
    """Floors by the clock."""
    profile: CapacityProfile | None = None
    """What an engine carries, where it was measured."""
    profile_from: ProfileKey | None = None
    """The same from a ConfigMap; a change is taken over within five minutes."""
    offered_query: PromQL | None = None
    """PromQL for the requests per second that clients send, by a gateway's counter; the engines' own counters where absent."""
    backlog_query: PromQL | None = None
    """Batch pools: PromQL for the number of requests that wait outside of the engines, for instance in a queue."""
    deadline: Duration | None = None
    """Batch pools: how long after its arrival a request should be finished; 1h where absent, from 1m to 168h."""
    lend: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Batch pools: engines that may serve the interactive pool at a time, while it is short of its own; none where absent."""

    RULES = (
        Rule(
            "deadline-reachable",
            "!has(self.deadline) || (duration(self.deadline) >= duration('1m') && duration(self.deadline) <= duration('168h'))",
            lambda s: s.deadline is None or 60 <= duration_seconds(s.deadline) <= 168 * 3600,
            "a deadline is from 1m to 168h",
            shows=("deadline",),
        ),
        Rule(
            "one-profile",
            "!has(self.profile) || !has(self.profileFrom)",
            lambda s: s.profile is None or s.profile_from is None,
            "profile and profileFrom are both set: remove one",
        ),
    )
