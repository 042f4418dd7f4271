"""One policy under one workload: request by request, tick by tick, the same for every policy."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemma_operator.scaling.counters import Reading
from gemma_operator.scaling.lending import Loans
from gemma_operator.scaling.pool import Fleet
from gemma_operator.simulation.faults import Faults
from gemma_operator.simulation.fleet import Engines, World
from gemma_operator.workload.arrivals import Arrivals

TICK_SECONDS = 15.0
GRACE_SECONDS = 5.0
"""After the last arrival: who has no first token by then has missed."""
PREROLL_SECONDS = 1800.0
BAD_MINUTE = 0.05


class Policy(Protocol):
    """Whatever sizes a fleet, once a tick."""

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        """Replicas to ask for from now on (`now` in epoch seconds)."""
        ...


@runtime_checkable
class Borrowing(Protocol):
    """A policy that may borrow the donors of a batch pool as well."""

    def moves(self, now: float, reading: Reading, fleet: Fleet, batch: Fleet) -> tuple[int, Loans]:
        """Replicas to ask for, and the donors to move."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run, the pre-roll left out. Drops, refusals and what is unfinished are misses."""

    attainment: float
    gpu_hours: float
    bad_minutes: float
    """Share of minutes in which more than 5 % of the requests missed."""
    p95: float
    """Seconds; infinite where more than 5 % have no first token."""
    reversals: int
    """Changes of direction of the replicas asked for."""
    starts: int
    wasted_starts: int
    """Engines deleted within a cold start of becoming Ready, or before."""
    worst_minutes: int
    """The longest run of bad minutes."""
    replicas: tuple[int, ...] = field(repr=False)
    """Asked for at each tick, pre-roll included."""
    digest: str = ""
    """SHA-256 of every first token's time and every tick's replicas."""


def with_preroll(arrivals: Arrivals, seconds: float, length: float) -> Arrivals:
    """The workload's own last part before it, to warm up what policies learn (research/bound.md section 2)."""
    if not seconds:
        return arrivals
    at = arrivals.at
    first = int(np.searchsorted(at, length - seconds))
    order = np.concatenate([np.arange(first, len(at)), np.arange(len(at))])
    moved = np.concatenate([at[first:] - (length - seconds), at + seconds])
    return arrivals.picked(order, moved)


@dataclass(frozen=True, slots=True)
class Tick:
    """The fleet after one tick."""

    at: float
    """Seconds since the workload's start; negative in the pre-roll."""
    asked: int
    ready: int


@dataclass(frozen=True, slots=True)
class Played:
    """A run in full: its outcome, and what it was at each tick and for each request. Times are without the pre-roll."""

    outcome: Outcome
    ticks: tuple[Tick, ...]
    arrived: NDArray[np.float64]
    ttft: NDArray[np.float64]
    """Seconds; not a number where there was none, infinite where the request was refused."""


def play(
    policy: Policy,
    arrivals: Arrivals,
    world: World,
    *,
    length: float,
    slo: float = 0.3,
    initial: int = 1,
    preroll: float = PREROLL_SECONDS,
    faults: Faults | None = None,
) -> Played:
    """Play a workload of `length` seconds under a policy. Faults are in seconds since the workload's start."""
    engines = Engines(world, with_preroll(arrivals, preroll, length), initial)
    faults, end = faults or Faults(), preroll + length
    ticks = []
    for tick in itertools.count(1):
        now = tick * TICK_SECONDS
        if now > end:
            break
        engines.advance(now)
        faults.strike(engines, now - preroll)
        fleet, reading = engines.fleet(), faults.reading(engines.scrape(), now - preroll)
        if isinstance(policy, Borrowing):
            asked, loans = policy.moves(world.epoch + now, reading, fleet, engines.batch_fleet())
            engines.move(loans)
        else:
            asked = policy.replicas(world.epoch + now, reading, fleet)
        engines.resize(asked)
        ticks.append(Tick(now - preroll, asked, len(fleet.members)))
    engines.advance(end + GRACE_SECONDS)
    counted = engines.requests.at >= preroll
    arrived, ttft = engines.requests.at[counted] - preroll, engines.requests.ttft[counted]
    return Played(_outcome(engines, ticks, arrived, ttft, preroll, end, slo), tuple(ticks), arrived, ttft)


def _outcome(
    engines: Engines,
    ticks: list[Tick],
    at: NDArray[np.float64],
    ttft: NDArray[np.float64],
    preroll: float,
    end: float,
    slo: float,
) -> Outcome:
    missed = ~(ttft <= slo)
    minutes = (at // 60).astype(int)
    total = np.bincount(minutes)
    bad = np.bincount(minutes, weights=missed) > BAD_MINUTE * total
    ordered = np.sort(np.where(np.isnan(ttft), np.inf, ttft))
    path = [tick.asked for tick in ticks]
    moves = np.diff(path[int(preroll // TICK_SECONDS) :])
    signs = np.sign(moves[moves != 0])
    low = engines.world.cold_start[0]
    return Outcome(
        attainment=1 - float(missed.mean()) if len(missed) else 1.0,
        gpu_hours=engines.gpu_seconds(preroll, end) / 3600,
        bad_minutes=float(bad[total > 0].mean()) if len(total) else 0.0,
        p95=float(ordered[math.ceil(0.95 * len(ordered)) - 1]) if len(ordered) else 0.0,
        reversals=int(np.count_nonzero(signs[1:] != signs[:-1])),
        starts=sum(pod.created >= preroll for pod, _ in [*engines.gone, *((pod, 0.0) for pod in engines.pods)]),
        wasted_starts=sum(pod.deleted is not None and pod.deleted - pod.ready_at < low for pod, _ in engines.gone),
        worst_minutes=_longest(bad),
        replicas=tuple(path),
        digest=hashlib.sha256(engines.requests.ttft.tobytes() + repr(path).encode()).hexdigest(),
    )


def _longest(bad: NDArray[np.bool_]) -> int:
    return max((len(list(run)) for is_bad, run in itertools.groupby(bad.tolist()) if is_bad), default=0)
