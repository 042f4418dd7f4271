"""What a metrics source delivers: the raw counters of every engine at its newest scrape, by Pod UID.

The source neither differences, sums nor judges; that is done in `observation`, where a reset, a first sample, a flip
of the pool or a gap can be told apart. Times are epoch seconds, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Buckets = tuple[tuple[float, float], ...]
"""A cumulative histogram: (upper edge in seconds, observations at or under it), ascending, infinity last."""

EMBEDDINGS_PER_FRAME = 70
"""Embeddings that Gemma 4's encoder makes of one video frame (research/vllm.md 1.3)."""


@dataclass(frozen=True, slots=True, order=True)
class PoolId:
    """One pool of one serving."""

    namespace: str
    serving: str
    pool: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.serving}/{self.pool}"


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """One engine Pod at one scrape. Counters run since the engine started; `None` means not exported, never zero.

    Data-parallel ranks of a Pod are summed, duplicate scrapes of one engine are not.
    """

    pod_uid: str
    at: float
    """When it was scraped, by the source's clock; with several metrics the oldest of their times."""
    ttft: Buckets
    """Time to first token, of requests that got one."""
    running: float
    """Requests in the running batch."""
    waiting: float
    """Requests in the engine's queue."""
    unanswered: float | None = None
    """Requests that the engine's server has whole, and that had no byte of an answer; those it was never told of by a step too."""
    answered: float | None = None
    """Requests that had the first byte of an answer."""
    itl: Buckets | None = None
    """Time between two outputs of a request."""
    finished: Mapping[str, float] = field(default_factory=dict)
    """Requests that came to their end, by vLLM's `finished_reason` (stop, length, abort, error, repetition)."""
    rejected: float | None = None
    """Requests refused with 503 by the engine's admission limits (vLLM 0.32 and newer)."""
    prompt_tokens: float | None = None
    """Prompt tokens computed: cached ones are not in it."""
    cached_tokens: float | None = None
    """Prompt tokens taken from a cache."""
    generated_tokens: float | None = None
    media_items: float | None = None
    """Images and videos. None where the engine can't count them: see `media_items` in docs/autoscaling.md."""
    media_units: float | None = None
    """Embeddings that the vision encoder made, in video frames (70 embeddings)."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    started_at: float | None = None
    """Start of the engine's process; a change means that its counters began again."""


class MissingReason(StrEnum):
    """Why there is no reading. None of these ever means zero."""

    NOT_CONFIGURED = "NotConfigured"
    """No metrics source is named."""
    UNAUTHORIZED = "Unauthorized"
    """The source refuses our credentials (401, 403)."""
    QUERY_FAILED = "QueryFailed"
    """The source can't be reached, took too long, or answered something else than asked."""
    NO_SERIES = "NoSeries"
    """The source answered, but knows no engine: nothing is scraped, or labels or metric names are others."""
    STALE = "Stale"
    """The newest samples are too old to act on."""
    PARTIAL_COVERAGE = "PartialCoverage"
    """Some Ready engines have no usable sample."""
    CLOCK_SKEW = "ClockSkew"
    """The clocks of the source and of the operator disagree, or the operator's clock jumped."""


@dataclass(frozen=True, slots=True)
class Missing:
    """No reading, and why, in words for the person who has to mend it."""

    reason: MissingReason
    message: str


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one tick's queries brought, for all pools of the cluster."""

    engines: Mapping[str, EngineCounters]
    """By Pod UID. Which engine belongs to which pool is the API server's word, not the series'."""
    backlog: Mapping[PoolId, float | Missing] = field(default_factory=dict)
    """Requests that wait outside of the engines, for pools whose spec names a query for it."""
    offered: Mapping[PoolId, float | Missing] = field(default_factory=dict)
    """Requests per second that clients sent, by the gateway's count, for pools whose spec names a query for it."""
    missing: Missing | None = None
    """Why no engine is in it."""


Reading = Scrape | Missing
