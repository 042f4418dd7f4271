"""What clients would see of a fleet, and what other settings of its engines would carry: by the step model.

The only part of the planner that replays requests; a faster simulator can take its place.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np

from gemma_operator.planning.load import STEP, Counts, Load
from gemma_operator.planning.replay import Ask, ttfts
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import DEFAULT_PROFILE, Profile
from gemma_operator.simulation.step_model import Costs, EngineConfig
from gemma_operator.workload.arrivals import Arrivals

MOST_REQUESTS = 1000
"""Replayed per sample; of more, an even part goes through as many fewer engines."""
SPAN, RUN_UP = 120.0, 30.0
"""Seconds that are replayed around a moment, and before it to fill the engines."""
STRATA = ((0.5, 0.7), (0.85, 0.25), (0.98, 0.045), (1.0, 0.005))
"""(quantile of load per engine that is replayed, share of all requests that it stands for)"""
_SEARCH_REQUESTS, _SEARCH_STEPS, _WIDER = 300, 4, 1.6
_LOWEST = 1 / 64
"""Of the guess: at so low a rate a request is alone."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients would see."""

    attainment: float
    """Share of all requests within the SLO."""
    usual: float
    """Seconds of TTFT at the SLO's percentile, in the middle of the requests by load per engine."""
    worst: float
    """The same in the half minute with most load per engine."""


@dataclass(frozen=True, slots=True)
class Engines:
    """How the fleet's engines are modelled."""

    config: EngineConfig = field(default_factory=EngineConfig)
    costs: Costs = field(default_factory=Costs)
    uses_prefixes: bool = False

    @classmethod
    def of(cls, profile: Profile, media_share: float) -> Engines:
        """The step model, as much faster or slower as the profile's operating point is above or below the built-in one."""
        built_in = replace(DEFAULT_PROFILE, burstiness=profile.burstiness)
        work = profile.operating_point(media_share) / built_in.operating_point(media_share)
        return cls(costs=Costs().scaled(1 / work))


def seen_by_clients(arrivals: Arrivals, load: Load, up: Counts, slo: Slo, engines: Engines, seed: int) -> Seen:
    """Attainment and TTFT, from replays of a few moments between the usual and the busiest."""
    busy = load.work / up
    order = np.argsort(busy, kind="stable")
    weight = np.cumsum(load.requests[order])
    if not weight[-1]:
        return Seen(1.0, 0.0, 0.0)
    attainment, times = 0.0, []
    for quantile, share in STRATA:
        step = int(order[min(int(np.searchsorted(weight, quantile * weight[-1] - 1e-9)), len(order) - 1)])
        measured = _replayed(arrivals, (step + 0.5) * STEP, int(up[step]), engines, seed)
        attainment += share * float(np.mean(measured <= slo.seconds)) if len(measured) else share
        times.append(float(np.quantile(measured, slo.percentile / 100)) if len(measured) else 0.0)
    return Seen(attainment, times[0], max(times))


def _replayed(arrivals: Arrivals, middle: float, count: int, engines: Engines, seed: int) -> np.ndarray:
    start = max(0.0, middle - SPAN / 2)
    asked = arrivals.crop(max(0.0, start - RUN_UP), start + SPAN)
    thin = max(1, min(count, -(-len(asked) // MOST_REQUESTS)))
    first = random.Random(f"{seed} {middle}").randrange(thin)
    asks = _asks(asked, np.arange(first, len(asked), thin), engines)
    measured = np.array(ttfts(asks, engines.config, engines.costs, max(1, round(count / thin))))
    return measured[[ask.at >= min(start, RUN_UP) for ask in asks]] if len(measured) else measured


def capacity(arrivals: Arrivals, slo: Slo, engines: Engines, guess: float, seed: int) -> float:
    """Requests/s that one engine carries of this mix, with random arrivals; 0 where the SLO can't be held at all."""
    rng = random.Random(f"{seed} capacity")
    index = np.array([rng.randrange(len(arrivals)) for _ in range(_SEARCH_REQUESTS)])
    asks = _asks(arrivals, index, engines)
    gaps = np.cumsum([rng.expovariate(1.0) for _ in asks])

    def holds(rate: float) -> bool:
        moved = [replace(ask, at=float(at / rate)) for ask, at in zip(asks, gaps, strict=True)]
        within = sum(ttft <= slo.seconds for ttft in ttfts(moved, engines.config, engines.costs))
        return within >= slo.percentile / 100 * len(moved)

    low = guess
    if holds(low):
        while low < guess / _LOWEST and holds(low * _WIDER):
            low *= _WIDER
    else:
        low /= _WIDER
        while not holds(low):
            low /= _WIDER
            if low < guess * _LOWEST:
                return 0.0
    high = low * _WIDER
    for _ in range(_SEARCH_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _asks(arrivals: Arrivals, index: Counts, engines: Engines) -> list[Ask]:
    cached = arrivals.repeated_tokens if engines.uses_prefixes else np.zeros(len(arrivals), dtype=np.int32)
    columns = (arrivals.at, arrivals.prompt_tokens, arrivals.output_tokens, arrivals.frames, cached)
    return [Ask(*row) for row in zip(*(column[index].tolist() for column in columns), strict=True)]
