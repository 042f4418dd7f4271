"""What one engine did between two scrapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from gemma_operator.scaling.counters import Buckets, EngineCounters

FAILURES = ("error", "abort")
"""Values of `finished_reason` that are misses: nobody got a whole answer."""


@dataclass(frozen=True, slots=True)
class Increase:
    """Growth of one engine's counters over `seconds`."""

    seconds: float
    ttft: Buckets
    itl: Buckets | None = None
    finished: float = 0.0
    failed: float = 0.0
    rejected: float = 0.0
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    media_items: float | None = None
    media_units: float | None = None
    waiting: float = 0.0
    """Growth of the queue; negative where it shrank."""

    @property
    def answered(self) -> float:
        """Requests that got their first token."""
        return self.ttft[-1][1]


def is_sound(sample: EngineCounters) -> bool:
    """No NaN, infinity, negative or non-cumulative value: such a sample is dropped whole, never read as zero."""
    optional = (
        sample.rejected, sample.prompt_tokens, sample.generated_tokens, sample.media_items, sample.media_units,
    )  # fmt: skip
    values = (sample.at, sample.waiting, sample.running, *sample.finished.values())
    return (
        _is_histogram(sample.ttft)
        and (sample.itl is None or _is_histogram(sample.itl))
        and all(math.isfinite(value) and value >= 0 for value in values)
        and all(value is None or (math.isfinite(value) and value >= 0) for value in optional)
    )


def _is_histogram(buckets: Buckets) -> bool:
    """Between a first count that is none below zero and a last one that is finite, counts that never fall are sound."""
    return (
        bool(buckets)
        and buckets[-1][0] == math.inf
        and buckets[0][1] >= 0
        and math.isfinite(buckets[-1][1])
        and all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(buckets))
    )


def increase(old: EngineCounters, new: EngineCounters) -> Increase:
    """From one sample of an engine to a later one; an engine that restarted in between counts from zero."""
    if _restarted(old, new):
        began = old.at if new.started_at is None else max(old.at, new.started_at)
        return since_start(new, began)
    return _increase(old, new, new.at - old.at)


def since_start(new: EngineCounters, began: float) -> Increase:
    """Everything that an engine counted since it began at `began`."""
    return _increase(None, new, max(new.at - began, 1.0))


def _restarted(old: EngineCounters, new: EngineCounters) -> bool:
    if old.started_at is not None and new.started_at is not None and abs(new.started_at - old.started_at) > 1:
        return True
    pairs = [
        (old.ttft[-1][1], new.ttft[-1][1]),
        *((old.finished.get(reason, 0.0), count) for reason, count in new.finished.items()),
        (old.prompt_tokens or 0.0, new.prompt_tokens or math.inf),
        (old.generated_tokens or 0.0, new.generated_tokens or math.inf),
    ]
    return any(after < before for before, after in pairs)


def _increase(old: EngineCounters | None, new: EngineCounters, seconds: float) -> Increase:
    failed = {reason: new.finished.get(reason, 0.0) for reason in FAILURES}
    before = old.finished if old else {}
    return Increase(
        seconds=seconds,
        ttft=_grown(old.ttft if old else None, new.ttft),
        itl=_grown_itl(old, new),
        finished=sum(new.finished.values()) - sum(before.values()),
        failed=sum(count - before.get(reason, 0.0) for reason, count in failed.items()),
        rejected=_less(new.rejected, old.rejected if old else 0.0) or 0.0,
        prompt_tokens=_less(new.prompt_tokens, old.prompt_tokens if old else 0.0),
        generated_tokens=_less(new.generated_tokens, old.generated_tokens if old else 0.0),
        media_items=_less(new.media_items, old.media_items if old else 0.0),
        media_units=_less(new.media_units, old.media_units if old else 0.0),
        waiting=new.waiting - (old.waiting if old else 0.0),
    )


def _grown_itl(old: EngineCounters | None, new: EngineCounters) -> Buckets | None:
    """What was not read before, as nobody judged it, says nothing yet: it counts since the engine's start."""
    if new.itl is None or (old and old.itl is None):
        return None
    return _grown(old.itl if old else None, new.itl)


def _grown(old: Buckets | None, new: Buckets) -> Buckets:
    """The difference of two readings of one histogram; with other edges than before it counts from zero."""
    if not old or [edge for edge, _ in old] != [edge for edge, _ in new]:
        return new
    pairs = zip(new, old, strict=True)
    return tuple([(edge, count - before if count > before else 0.0) for (edge, count), (_, before) in pairs])


def _less(new: float | None, old: float | None) -> float | None:
    """The growth of a counter. One that was not exported before, or fell, says nothing yet."""
    return None if new is None or old is None or new < old else new - old
