"""How cheap could it be? The clairvoyant bound B1 of research/bound.md: arrivals and cold starts known, downs free.

From above: schedules of a dynamic programme on the 15 s grid, each then played in the simulator. From below: the same
programme in which every slot's misses are those of engines that were empty `LEAD` slots earlier, and none are counted
while the number has just changed; by weak duality its cost less the price of the allowed misses is under every schedule's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gemma_operator.scaling.counters import Reading
from gemma_operator.scaling.pool import Fleet
from gemma_operator.simulation import engine_kernel as kernel
from gemma_operator.simulation.fleet import EPOCH, World, empty_engines, requests_of
from gemma_operator.simulation.run import TICK_SECONDS, Outcome, play
from gemma_operator.workload.arrivals import Arrivals

START_SECONDS = 330.0
"""Of a start, GPU time that serves nobody: the mean of 226 to 428 s, on the grid (bound.md: 327)."""
LONGEST_START = 428.0
"""Seconds that the slowest start takes (seed 001)."""
ORACLE_MISSES = 0.01
"""Share of a slot's requests that the oracle lets miss."""
LEAD = 1
PRICES = tuple(np.geomspace(0.15, 40, 9))
"""GPU-seconds that one miss is worth: the sweep along the curve."""


@dataclass(frozen=True, slots=True)
class Point:
    """One schedule that was played."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Points of the achieved curve, by attainment, and what no schedule can be under."""

    achieved: tuple[Point, ...]
    lower: tuple[tuple[float, float], ...]
    """(price of a miss, least of GPU-seconds + price x misses)."""
    requests: int

    def gpu_hours(self, attainment: float) -> float:
        """Of the best schedule that reaches an attainment, linear between achieved points (research/bound.md)."""
        shares = [point.attainment for point in self.achieved]
        return float(np.interp(attainment, shares, [point.gpu_hours for point in self.achieved]))

    def least_gpu_hours(self, attainment: float) -> float:
        """No schedule that reaches this attainment costs less."""
        allowed = (1 - attainment) * self.requests
        return max(0.0, *((cost - price * allowed) / 3600 for price, cost in self.lower))


class Schedule:
    """Replicas that serve in each slot; starts are asked for one cold start ahead."""

    def __init__(self, serving: NDArray[np.int64]) -> None:
        self.serving = serving

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        slot = min(round((now - EPOCH) / TICK_SECONDS), len(self.serving) - 1)
        # Between a down and an up lies more than a cold start, else staying is cheaper: so the window's peak is right.
        return int(self.serving[slot : slot + round(START_SECONDS / TICK_SECONDS) + 1].max())


class Oracle:
    """Knows what comes within one cold start and nothing after it: B2 of research/bound.md, at its own misses.

    Enough engines for every slot from now to a start's end; down at once where that allows it.
    """

    def __init__(self, arrivals: Arrivals, seconds: float, world: World, *, slo: float = 0.3, most: int = 64) -> None:
        misses = isolated_misses(arrivals, seconds, world, slo, most)
        requests = np.bincount((arrivals.at // TICK_SECONDS).astype(np.int64), minlength=len(misses))[: len(misses)]
        # More replicas never make more misses, so the first that is good enough is the least.
        is_enough = misses <= ORACLE_MISSES * requests[:, None]
        self.needed = np.where(is_enough.any(axis=1), 1 + np.argmax(is_enough, axis=1), most)
        self.epoch = world.epoch

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        slot = round((now - self.epoch) / TICK_SECONDS)
        ahead = self.needed[slot : slot + math.ceil(LONGEST_START / TICK_SECONDS) + 1]
        return int(ahead.max()) if len(ahead) else fleet.desired


def clairvoyant(arrivals: Arrivals, seconds: float, world: World, *, slo: float = 0.3, most: int = 64) -> Bound:
    """The bound for a workload, up to `most` replicas."""
    misses = isolated_misses(arrivals, seconds, world, slo, most)
    fixed = replace(world, cold_start=(START_SECONDS, START_SECONDS), failed_starts=0.0, epoch=EPOCH)
    lower, played = [], {}
    for price in PRICES:
        cost, _ = cheapest(misses, price, LEAD)
        lower.append((price, cost))
        for cautious in (1.0, 1.6):
            _, serving = cheapest(misses, price * cautious, 0)
            key = serving.tobytes()
            if key not in played:
                played[key] = scheduled(serving, arrivals, seconds, fixed, slo)
    points = [Point(outcome.attainment, outcome.gpu_hours) for outcome in played.values()]
    return Bound(_envelope(points), tuple(lower), len(arrivals))


def scheduled(serving: NDArray[np.int64], arrivals: Arrivals, seconds: float, world: World, slo: float) -> Outcome:
    """A schedule in the simulator."""
    first = int(serving[0])
    return play(Schedule(serving), arrivals, world, length=seconds, slo=slo, initial=first, preroll=0.0).outcome


def isolated_misses(arrivals: Arrivals, seconds: float, world: World, slo: float, most: int) -> NDArray[np.float64]:
    """Misses by slot and replicas (from 1), with engines that were empty `LEAD` slots before."""
    slots = int(np.ceil(seconds / TICK_SECONDS))
    out = np.zeros((slots, most))
    engine = world.engine
    kernel.isolated(
        requests_of(arrivals), empty_engines(world), engine.limits, engine.prices, TICK_SECONDS, LEAD, slo, out
    )
    return out


def cheapest(misses: NDArray[np.float64], price: float, blind: int) -> tuple[float, NDArray[np.int64]]:
    """GPU-seconds and misses at their price along the best path, and, where `blind` is 0, its replicas.

    For `blind` slots after a change no misses are counted.
    """
    slots, most = misses.shape
    count = np.arange(1, most + 1)
    moves = START_SECONDS * np.maximum(count[None, :] - count[:, None], 0.0)
    np.fill_diagonal(moves, np.inf)
    # Cheapest so far, by slots since the last change (at most `blind`) and replicas.
    best = np.zeros((blind + 1, most))
    stayed, origins = np.zeros((2, slots, most), dtype=np.int64)
    for slot in range(slots):
        # What serves in the first slot is free; what is started then serves a cold start later.
        is_early = 0 < slot < START_SECONDS / TICK_SECONDS
        costs = best.min(axis=0)[:, None] + np.where(is_early & (moves > 0), np.inf, moves)
        origins[slot] = np.argmin(costs, axis=0)
        changed = costs.min(axis=0)
        held = best[blind]
        new = np.full_like(best, np.inf)
        if blind:
            new[1:] = best[:-1]
            new[blind] = np.minimum(new[blind], held)
            new[0] = changed
        else:
            stayed[slot] = held <= changed
            new[0] = np.minimum(held, changed)
        new[blind] += price * misses[slot]
        best = new + TICK_SECONDS * count
    path = np.zeros(slots, dtype=np.int64)
    at = int(np.argmin(best[-1]))
    for slot in range(slots - 1, -1, -1) if not blind else ():
        path[slot] = at + 1
        at = at if stayed[slot, at] else int(origins[slot, at])
    return float(best.min()), path


def _envelope(points: list[Point]) -> tuple[Point, ...]:
    """The points that no other beats in both, by attainment."""
    out: list[Point] = []
    for point in sorted(points, key=lambda point: (point.gpu_hours, -point.attainment)):
        if not out or point.attainment > out[-1].attainment:
            out.append(point)
    return tuple(out)
