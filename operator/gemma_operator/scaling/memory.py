"""What `decide` keeps between ticks: a recent history in memory, and what was learnt, which survives a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemma_operator.scaling import codec
from gemma_operator.scaling.backlog import Lots
from gemma_operator.scaling.headroom import LEAST_CHANCE, Histogram
from gemma_operator.scaling.moment import Moments, within

VERSION = 3
READABLE = (2, 3)
"""Version 2 had no `chance`."""
KEEP_SECONDS = 1200.0
MOST_GAP_SECONDS = 120.0
"""After a longer pause between two ticks the history is broken."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The capacity was taken for lower than before; whether that helps shows once more engines are there."""

    correction: float
    """Before the cut."""
    load: float
    share: float
    """Load per engine and share of misses at the cut."""


@dataclass(frozen=True, slots=True)
class Down:
    """A scale-down that was decided."""

    at: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Learned:
    """What survives a restart of the operator, in the status of the serving."""

    correction: float = 1.0
    """Factor on the profile's capacity (kappa)."""
    too_high: float | None = None
    """The correction that was last found to be too high, and when it was cut."""
    cut_at: float = 0.0
    trial: Trial | None = None
    infeasible_until: float = 0.0
    """Until then, more engines are known not to help."""
    rises: Histogram = ()
    """How far demand was above the level of one cold start earlier."""
    heights: Histogram = ()
    """How high demand was."""
    chance: float = LEAST_CHANCE
    """Share of the demand that headroom leaves to chance."""
    hours: tuple[float, ...] = (0.0,) * 24
    """Peak of the demand in each hour of the day (UTC), of today or a share of an earlier day's."""
    lots: Lots = ()
    """Batch work that waits, by deadline."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Empty at first; after a restart only `learned` is there, which makes the next decisions more careful."""

    learned: Learned = Learned()
    at: float = 0.0
    """The last tick."""
    moments: Moments = ()
    whole_since: float | None = None
    """Since when every tick saw all engines."""
    calm_since: float | None = None
    """Since when the fleet is settled: all is seen, no engine is younger than a minute, no rollout."""
    down: Down | None = None
    """The last scale-down."""

    def save(self) -> dict[str, Any]:
        """A small JSON object for the status."""
        return {"version": VERSION, **codec.encode(_rounded(self.learned))}


def restore(saved: Mapping[str, Any] | None) -> Memory:
    """Memory after a restart. What a version that isn't known wrote, or can't be read, is forgotten."""
    if not saved or saved.get("version") not in READABLE:
        return Memory()
    try:
        return Memory(codec.decode(Learned, {key: value for key, value in saved.items() if key != "version"}))
    except (TypeError, ValueError, KeyError, AttributeError):
        return Memory()


def resume(memory: Memory, now: float) -> Memory:
    """The memory at a new tick: history that is too old is dropped, all of it after a pause or a jump of the clock."""
    if not memory.at <= now <= memory.at + MOST_GAP_SECONDS:
        learned = memory.learned
        if now < memory.at:
            learned = replace(learned, cut_at=0.0, too_high=None, infeasible_until=0.0, trial=None)
        return Memory(learned, at=now)
    return replace(memory, moments=within(memory.moments, now - KEEP_SECONDS))


def _rounded(learned: Learned) -> Learned:
    return replace(
        learned,
        correction=round(learned.correction, 4),
        chance=round(learned.chance, 4),
        rises=_shortened(learned.rises),
        heights=_shortened(learned.heights),
        hours=tuple(round(peak, 3) for peak in learned.hours),
        lots=tuple((round(due), round(work, 2)) for due, work in learned.lots),
    )


def _shortened(histogram: Histogram) -> Histogram:
    return tuple((index, float(f"{weight:.3g}")) for index, weight in histogram)
