"""What demand may come while an engine starts: learnt, so that smooth load pays for little headroom.

Two histograms of recent days, of the demand in each tick, weighted by that demand, so that a share of one is a share of
the requests: how far it was above the level of one cold start earlier, and how high it was. An engine that would start
too late for it must be there beforehand.
"""

from __future__ import annotations

import math

Histogram = tuple[tuple[int, float], ...]
"""(bin, weight), ascending."""

GROWTH = math.log(1.05)
"""Each bin's upper edge is 5 % over the one before."""
LEAST = 1e-3
"""Engine-seconds per second: less than that is nothing."""
NONE = -1000
"""The bin of nothing, and of a demand that did not rise."""
QUANTILE = 0.99
"""So much of the demand is planned for: at p95, a fifth of the misses that the SLO allows."""
HALF_LIFE_SECONDS = 86_400.0
LEAST_TICKS = 40.0
"""Ticks after which a histogram is believed (10 minutes)."""
UNKNOWN_SHARE = 0.5
"""Headroom before that, as a share of the level."""
NEW_HEIGHT = 0.25
"""Headroom above everything that was seen, as a share of the level: where load grows, the past is no limit."""


def learn(histogram: Histogram, value: float, weight: float, seconds: float) -> Histogram:
    """Add a value seen now; `seconds` passed since the last one."""
    fade = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    index = NONE if value <= LEAST else math.ceil(math.log(value / LEAST) / GROWTH)
    weights = {at: own * fade for at, own in histogram if own * fade > 1e-3}
    weights[index] = weights.get(index, 0.0) + weight
    return tuple(sorted(weights.items()))


def headroom(rises: Histogram, heights: Histogram, level: float) -> float:
    """Engine-seconds per second to keep free beside `level`.

    What rises on top of the level, but no more than up to what nearly all demand has stayed under: bursts on a quiet
    load are as high from a busy minute as from a calm one.
    """
    if sum(weight for _, weight in rises) < LEAST_TICKS * level:
        return level * UNKNOWN_SHARE
    usual = max(quantile(heights) - level, NEW_HEIGHT * level)
    return min(quantile(rises), usual)


def quantile(histogram: Histogram) -> float:
    """The value that `QUANTILE` of the weight is at or under."""
    total, reached = sum(weight for _, weight in histogram), 0.0
    for index, weight in histogram:
        reached += weight
        if reached >= QUANTILE * total:
            return 0.0 if index == NONE else LEAST * math.exp(index * GROWTH)
    return 0.0
