"""Batch pools: how many engines finish what waits by its deadline, the earliest first."""

from __future__ import annotations

import math
from itertools import accumulate

Lots = tuple[tuple[float, float], ...]
"""Work that waits: (when it is due in epoch seconds, engine-seconds), the earliest first."""

LOTS = 24
"""A deadline is told apart into so many parts."""
MARGIN = 0.2
"""Share of the deadline that is kept back for what goes wrong on the way."""


def update(lots: Lots, waiting: float, done: float, now: float, deadline_seconds: float) -> Lots:
    """The lots after a tick in which `done` engine-seconds were finished and `waiting` are there.

    What was finished is taken from the earliest lots; what is there beyond the rest has just come.
    """
    rest = _take(lots, done)
    more = waiting - sum(work for _, work in rest)
    if more < 0:
        return _take(rest, -more)
    part = max(deadline_seconds / LOTS, 1.0)
    due = math.ceil((now + deadline_seconds) / part) * part
    merged = dict(rest)
    merged[due] = merged.get(due, 0.0) + more
    return tuple(sorted((due, work) for due, work in merged.items() if work > 0))


def required_load(lots: Lots, now: float, deadline_seconds: float, start_seconds: float) -> float:
    """Engine-seconds per second from `start_seconds` on that finish every lot in time; infinite where none does."""
    lead = now + start_seconds + MARGIN * deadline_seconds
    summed = accumulate(work for _, work in lots)
    return max(
        (work / (due - lead) if due > lead else math.inf for (due, _), work in zip(lots, summed, strict=True)),
        default=0.0,
    )


def _take(lots: Lots, work: float) -> Lots:
    out = []
    for due, own in lots:
        used = min(own, work)
        work -= used
        if own > used:
            out.append((due, own - used))
    return tuple(out)
