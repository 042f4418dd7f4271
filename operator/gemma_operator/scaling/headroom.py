"""What demand may come while an engine starts: learnt, so that smooth load pays for little headroom.

Two histograms of recent days, of the demand in each tick, weighted by that demand, so that a share of one is a share of
the requests: how far it was above the level of one cold start earlier, and how high it was. An engine that would start
too late for it must be there beforehand, but for a share that is left to chance. How large that may be is learnt as
well: fleets are whole engines and a full one misses little at first, so most of it is carried all the same.
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
LEAST_CHANCE, MOST_CHANCE, MOST_SHED = 0.01, 0.03, 0.3
"""Bounds for the share of the demand that is left to chance; the last one where only what is too much is missed (decision 0019)."""
WANTED = 1 / 10
"""Of the misses that the SLO allows, the share that is wanted in the long run: at p95, 0.5 % of the requests."""
EARN_SECONDS, EARN_SHED_SECONDS = 7200.0, 1800.0
"""Without any miss the share grows e-fold in this time; the shorter one where the excess alone is missed: too much costs little (decision 0019)."""
HALF_LIFE_SECONDS = 86_400.0
LEAST_TICKS = 40.0
"""Ticks after which a histogram is believed (10 minutes)."""
KNOWN_TICKS = 120.0
"""Ticks with load before which no engine goes where engines shed: half an hour, as long as the simulator's pre-roll (decision 0018)."""
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


def chance(share: float, missed: float, allowed: float, seconds: float, sheds: bool = False) -> float:
    """The share that is left to chance, after `seconds` in which `missed` of the requests missed an SLO that allows `allowed`.

    `sheds`: engines turn away what is too much for them.
    An integral controller: what is missed less than wanted is put by, and what is missed more is paid back.
    """
    most, earn = (MOST_SHED, EARN_SHED_SECONDS) if sheds else (MOST_CHANCE, EARN_SECONDS)
    grown = share * math.exp((1 - missed / (WANTED * allowed)) * seconds / earn)
    return min(max(grown, LEAST_CHANCE), most)


def headroom(rises: Histogram, heights: Histogram, level: float, share: float) -> float:
    """Engine-seconds per second to keep free beside `level`, where `share` of the demand is left to chance.

    What rises on top of the level, but no more than up to what nearly all demand has stayed under: bursts on a quiet
    load are as high from a busy minute as from a calm one.
    """
    if sum([weight for _, weight in rises]) < LEAST_TICKS * level:
        return level * UNKNOWN_SHARE
    usual = max(quantile(heights, LEAST_CHANCE) - level, NEW_HEIGHT * level)
    return min(quantile(rises, share), usual)


def is_known(heights: Histogram) -> bool:
    """True once enough of the load was seen to take engines away; each tick was added with its height as its weight."""
    seen = sum([weight / _edge(index) for index, weight in heights if index != NONE])
    return seen >= KNOWN_TICKS


def quantile(histogram: Histogram, share: float) -> float:
    """The value that all but `share` of the weight is at or under."""
    wanted, reached = (1 - share) * sum([weight for _, weight in histogram]), 0.0
    for index, weight in histogram:
        reached += weight
        if reached >= wanted:
            return 0.0 if index == NONE else _edge(index)
    return 0.0


def _edge(index: int) -> float:
    """The upper edge of a bin, engine-seconds per second."""
    return LEAST * math.exp(index * GROWTH)
