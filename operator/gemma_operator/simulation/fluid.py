"""A fleet as a fluid: for thousands of engines, where single requests no longer matter.

What one engine of a large fleet does at a rate (misses, histogram) is measured once in the simulator. Then each tick is
a sum: so many requests over so many engines, what they can't answer waits, and all who wait longer than the SLO miss.
The rule is the product's own, and gets the observation that its scrapes would have led to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gemma_operator.scaling import pool
from gemma_operator.scaling.counters import Buckets
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import MOST_COLD_START_SECONDS, Fleet, Member
from gemma_operator.scaling.profile import Rates
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling.verdict import Evidence
from gemma_operator.simulation.fleet import EPOCH, Engines, World, requests_of
from gemma_operator.simulation.run import TICK_SECONDS
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import constant, synthetic

Floats = NDArray[np.float64]
ENGINES = 8
"""Of the fleet in which the curve is measured: many share what comes more evenly than few."""
MEASURED_SECONDS = 60.0
LOADS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 2.0)
"""Of what an engine carries, the rates at which it is measured."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One engine of a large fleet, by the rate of its requests."""

    rates: Floats
    """Per second, ascending."""
    missed: Floats
    """Share of them over the SLO."""
    histogram: Floats
    """Share of them in each bucket of TTFT (columns), by rate (rows)."""
    most: float
    """Answers per second of an engine that has always something to do."""
    each: Rates
    """Of one request."""


@dataclass(frozen=True, slots=True)
class FluidOutcome:
    """What came of a run."""

    attainment: float
    gpu_hours: float
    replicas: tuple[int, ...] = field(repr=False)
    """Asked for at each tick."""


def curve_of(mix: Arrivals, world: World, carries: float, slo: float) -> Curve:
    """Measure an engine with the requests of `mix`, around the rate that it carries (requests per second)."""
    rows, missed, most = [], [], 0.0
    for load in LOADS:
        rate = load * carries * ENGINES
        at = synthetic(constant(rate), MEASURED_SECONDS, seed=world.seed).at
        pick = np.random.default_rng((world.seed, 5)).integers(0, len(mix), len(at))
        engines = Engines(world, mix.picked(pick, at), ENGINES)
        engines.advance(MEASURED_SECONDS)
        # The first seconds fill the engines.
        counted = engines.requests.ttft[at > MEASURED_SECONDS / 6]
        answered = np.where(np.isnan(counted), np.inf, counted)
        missed.append(float(np.mean(~(answered <= slo))))
        bins = np.bincount(np.searchsorted(world.edges, answered), minlength=len(world.edges) + 1)
        rows.append(bins / max(len(answered), 1))
        most = max(most, float(np.isfinite(answered).sum()) / (MEASURED_SECONDS * 5 / 6) / ENGINES)
    return Curve(np.array(LOADS) * carries, np.array(missed), np.array(rows), most, _each(mix))


def flow(
    policy: pool.Policy,
    rates: Floats,
    curve: Curve,
    world: World,
    *,
    initial: int,
    slo: float = 0.3,
) -> FluidOutcome:
    """Play requests per second (one value for each tick) under the product's rule."""
    fleet, memory, starts = _Fluid(world, initial), Memory(), world.stream("cold start")
    queue = within = total = gpu_seconds = 0.0
    path, asked = [], initial
    for number, rate in enumerate(rates.tolist(), 1):
        now = number * TICK_SECONDS
        fleet.follow(asked, now, starts)
        ready = len(fleet.members)
        able = ready * curve.most
        served = min(rate + queue / TICK_SECONDS, able)
        before, queue = queue, max(0.0, queue + (rate - served) * TICK_SECONDS)
        wait = (before + queue) / 2 / able if able else math.inf
        share = float(np.interp(served / max(ready, 1), curve.rates, curve.missed)) if wait <= slo / 2 else 1.0
        total, within = total + rate, within + rate * (1 - share)
        gpu_seconds += TICK_SECONDS * fleet.present
        seen = _observation(served, share, wait, queue, before, ready, curve, world)
        decision, memory = decide(policy, fleet.seen(asked), seen, memory, EPOCH + now)
        asked = decision.replicas
        path.append(asked)
    return FluidOutcome(within / total if total else 1.0, gpu_seconds / 3600, tuple(path))


class _Fluid:
    """Engines that come as they do in the simulator, without slots or queues of their own."""

    def __init__(self, world: World, replicas: int) -> None:
        self._low, self._high = world.cold_start
        old = EPOCH - MOST_COLD_START_SECONDS
        start = (self._low + self._high) / 2
        self.members = tuple(Member(f"engine-{n}", old, old + start, old + start) for n in range(replicas))
        self._starting: list[tuple[float, float]] = []
        self._made = replicas

    @property
    def present(self) -> int:
        return len(self.members) + len(self._starting)

    def follow(self, asked: int, now: float, starts: np.random.Generator) -> None:
        """So many replicas from now on; what is due has become Ready."""
        more = asked - self.present
        if more > 0:
            self._starting += [(now + float(start), now) for start in starts.uniform(self._low, self._high, more)]
        elif more < 0:
            self._starting.sort()
            cut = min(-more, len(self._starting))
            del self._starting[len(self._starting) - cut :]
            self.members = self.members[: len(self.members) + more + cut]
        due = [entry for entry in self._starting if entry[0] <= now]
        if due:
            self._starting = [entry for entry in self._starting if entry[0] > now]
            new = tuple(
                Member(f"engine-{self._made + n}", EPOCH + made, EPOCH + at, EPOCH + at)
                for n, (at, made) in enumerate(due)
            )
            self._made += len(due)
            self.members += new

    def seen(self, asked: int) -> Fleet:
        return Fleet(asked, self.members, pending=len(self._starting))


def _observation(
    served: float, share: float, wait: float, queue: float, before: float, ready: int, curve: Curve, world: World
) -> Observation:
    """What the scrapes of this tick would have come to."""
    answers = served * TICK_SECONDS
    row = [float(np.interp(served / max(ready, 1), curve.rates, column)) for column in curve.histogram.T]
    if share == 1.0 and math.isfinite(wait):
        row = [0.0] * len(row)
        row[int(np.searchsorted(world.edges, wait))] = 1.0
    counts = np.cumsum(np.array(row) * answers).tolist()
    buckets: Buckets = tuple(zip((*world.edges, math.inf), counts, strict=True))
    each = curve.each
    return Observation(
        Metrics.FULL,
        coverage=1.0,
        seconds=TICK_SECONDS,
        rates=Rates(
            served,
            *(
                None if value is None else value * served
                for value in (each.prompt_tokens, each.generated_tokens, each.media_items, each.media_units)
            ),
        ),
        growth=(queue - before) / TICK_SECONDS,
        ttft=Evidence(answers, share * answers, share * answers),
        buckets=buckets,
        finished=answers,
        waiting=queue,
        running=served,
    )


def _each(mix: Arrivals) -> Rates:
    requests = requests_of(mix)
    return Rates(
        1.0,
        float(requests.prompt.mean()),
        float(requests.output.mean()),
        float(np.mean(requests.media > 0)),
        float(requests.units.mean()),
    )
