"""How much a pool's demand rises while an engine starts: learnt, so that smooth load pays for little headroom.

A rise is the highest demand within one cold start, less the level of demand before it. What is kept is a histogram of
rises over recent days: an engine that would start too late for them must be there beforehand.
"""

from __future__ import annotations

import math

Rises = tuple[tuple[int, float], ...]
"""Histogram of rises: (bin, weight), ascending."""

GROWTH = math.log(1.05)
"""Each bin's upper edge is 5 % over the one before."""
LEAST = 1e-3
"""Engine-seconds per second: a smaller rise is none."""
NONE = -1000
"""The bin of what did not rise."""
QUANTILE = 0.9
"""So many rises the headroom covers. The rest costs misses for at most one cold start each: about 99 % of the requests
stay within the SLO. In the closed loop of the tests 0.85 saves a tenth of the GPU-hours of bursty load, and loses up to
two points of its attainment."""
HALF_LIFE_SECONDS = 86_400.0
LEAST_WEIGHT = 40.0
"""Ticks after which the histogram is believed (10 minutes)."""
UNKNOWN_SHARE = 0.5
"""Headroom before that, as a share of the level."""


def learn(rises: Rises, rise: float, seconds: float) -> Rises:
    """Add a rise seen now; `seconds` passed since the last one."""
    fade = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    index = NONE if rise <= LEAST else math.ceil(math.log(rise / LEAST) / GROWTH)
    weights = {at: weight * fade for at, weight in rises if weight * fade > 1e-3}
    weights[index] = weights.get(index, 0.0) + 1.0
    return tuple(sorted(weights.items()))


def headroom(rises: Rises, level: float) -> float:
    """Engine-seconds per second to keep free beside `level`."""
    total = sum(weight for _, weight in rises)
    if total < LEAST_WEIGHT:
        return level * UNKNOWN_SHARE
    reached = 0.0
    for index, weight in rises:
        reached += weight
        if reached >= QUANTILE * total:
            return 0.0 if index == NONE else LEAST * math.exp(index * GROWTH)
    return 0.0
