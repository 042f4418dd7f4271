"""A pool in seconds, driven by `decide` through real counters: to judge the rule, not the engine.

Requests are a fluid that all engines share alike; engine-seconds wait in one queue. How many of the requests miss 300 ms
follows from the load of the last five seconds as in `simulation.step_model` (one to four engines, Poisson arrivals),
and all do that wait longer than 0.2 s. Issue 7's simulator replaces this by requests one by one.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gemma_operator.scaling.counters import EngineCounters, Missing, PoolId, Reading, Scrape
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Watch, observe
from gemma_operator.scaling.pool import Fleet, Member, Policy
from gemma_operator.scaling.profile import DEFAULT_PROFILE
from gemma_operator.scaling.rule import decide

POOL = PoolId("ns", "serving", "interactive")
TICK = 15
START = 1_700_000_000.0
SATURATED = 1.2
"""Engine-seconds per second that an engine answers at most."""
CURVE = ((0.75, 0.001), (0.9, 0.004), (0.98, 0.012), (1.07, 0.045), (1.16, 0.22), (1.2, 0.5), (1.4, 1.0))
"""Load per engine and share of misses."""
EDGES = (0.1, 0.25, 0.3, 0.5, 2.5, math.inf)


@dataclass(frozen=True)
class Traffic:
    """What comes in one second."""

    requests: float
    prompt_tokens: float = 500.0
    generated_tokens: float = 10.0
    media_share: float = 0.1
    hopeless: float = 0.0
    """Share of requests that miss on an empty engine."""


@dataclass
class Engine:
    """One Pod with its counters."""

    uid: str
    created_at: float
    ready_at: float
    good: float = 0.0
    missed: float = 0.0
    rejected: float = 0.0
    prompt: float = 0.0
    generated: float = 0.0
    media: float = 0.0


@dataclass
class Result:
    """What came of a run."""

    attainment: float
    gpu_hours: float
    reversals: int
    bad_minutes: float
    """Share of minutes with more than 5 % misses."""
    replicas: list[int] = field(repr=False)
    """At each tick."""
    decisions: list[Decision] = field(repr=False)


@dataclass
class Loop:
    """One pool under one policy. `fault` may change what the metrics source reads."""

    policy: Policy
    replicas: int = 1
    seed: int = 0
    cold_start: tuple[float, float] = (226.0, 428.0)
    strength: float = 1.0
    """What an engine really carries over what the built-in profile says."""
    queue_limit: float = math.inf
    """Engine-seconds per engine that may wait; the rest is refused with 503."""
    fault: Callable[[Reading, float], Reading] = lambda reading, _: reading
    room: int = 10_000
    """Engines that the cluster has GPUs for."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.engines = [Engine(f"e{i}", START - 1000, START - 1000 + 327) for i in range(self.replicas)]
        self.now, self.queue, self.recent = START, 0.0, 0.0
        self.watch, self.memory = Watch(), Memory()

    def run(self, traffic: Sequence[Traffic], preroll: int = 0) -> Result:
        """Play the traffic second by second; the first `preroll` seconds don't count."""
        total = missed = minute = minute_missed = gpu = 0.0
        minutes = bad = reversals = direction = 0
        replicas: list[int] = []
        decisions: list[Decision] = []
        for second, flow in enumerate(traffic):
            self.now += 1
            late = self._second(flow)
            if second >= preroll:
                gpu += min(len(self.engines), self.room)
                total, missed = total + flow.requests, missed + late
                minute, minute_missed = minute + flow.requests, minute_missed + late
                if second % 60 == 59:
                    minutes, bad = minutes + 1, bad + (minute_missed > 0.05 * minute)
                    minute = minute_missed = 0.0
            if second % TICK == TICK - 1:
                decision = self._tick()
                decisions.append(decision)
                change = decision.replicas - decision.desired
                if change and second >= preroll:
                    reversals += direction * change < 0
                    direction = 1 if change > 0 else -1
                replicas.append(decision.replicas)
        return Result(1 - missed / max(total, 1), gpu / 3600, reversals, bad / max(minutes, 1), replicas, decisions)

    @property
    def ready(self) -> list[Engine]:
        return [engine for engine in self.engines[: self.room] if engine.ready_at <= self.now]

    def _second(self, flow: Traffic) -> float:
        """Returns the requests of this second that miss."""
        ready, costs = self.ready, DEFAULT_PROFILE.costs
        media = flow.requests * flow.media_share
        each = costs.request + flow.prompt_tokens * costs.prompt_token + flow.generated_tokens * costs.generated_token
        work = flow.requests * each + media * (costs.media_item + 6 * costs.media_unit)
        if not ready:
            return flow.requests
        can = SATURATED * self.strength * len(ready)
        room = max(0.0, self.queue_limit * len(ready) + can - self.queue)
        refused = max(0.0, work - room) / work if work else 0.0
        taken = work * (1 - refused)
        answered = min(self.queue + taken, can)
        before, self.queue = self.queue, self.queue + taken - answered
        waits = (before + self.queue) / 2 / can
        self.recent += (work / len(ready) / self.strength - self.recent) / 5
        share = 1.0 if waits > 0.2 else max(_share(self.recent), flow.hopeless)
        served = answered / work * flow.requests if work else 0.0
        self.per_request = work / flow.requests if flow.requests else 0.03
        for engine in ready:
            engine.good += served * (1 - share) / len(ready)
            engine.missed += served * share / len(ready)
            engine.rejected += flow.requests * refused / len(ready)
            engine.prompt += served * flow.prompt_tokens / len(ready)
            engine.generated += served * flow.generated_tokens / len(ready)
            engine.media += served * flow.media_share / len(ready)
        return flow.requests * (refused + (1 - refused) * share)

    def _tick(self) -> Decision:
        reading = self.fault(Scrape({engine.uid: self._sample(engine) for engine in self.ready}), self.now)
        fleet = self.fleet()
        self.watch, found = observe(self.watch, reading, {POOL: (self.policy, fleet)}, self.now)
        decision, self.memory = decide(self.policy, fleet, found[POOL], self.memory, self.now)
        self._resize(decision.replicas)
        return decision

    def fleet(self) -> Fleet:
        members = tuple(Member(e.uid, e.created_at, e.ready_at, e.ready_at) for e in self.ready)
        return Fleet(
            desired=len(self.engines),
            members=members,
            pending=len(self.engines) - len(members),
            unschedulable=max(0, len(self.engines) - self.room),
        )

    def _resize(self, replicas: int) -> None:
        while len(self.engines) < replicas:
            start = self.random.uniform(*self.cold_start)
            self.engines.append(Engine(f"e{self.now}-{len(self.engines)}", self.now, self.now + start))
        self.engines.sort(key=lambda engine: engine.ready_at)
        del self.engines[replicas:]

    def _sample(self, engine: Engine) -> EngineCounters:
        waiting = self.queue / max(len(self.ready), 1) / self.per_request
        total = engine.good + engine.missed
        counts = (engine.good * 0.6, engine.good * 0.9, engine.good, engine.good + engine.missed * 0.5, total, total)
        return EngineCounters(
            pod_uid=engine.uid,
            at=self.now,
            ttft=tuple(zip(EDGES, counts, strict=True)),
            running=max(0.0, self.recent * 3),
            waiting=waiting,
            finished={"stop": total},
            rejected=engine.rejected,
            prompt_tokens=engine.prompt,
            generated_tokens=engine.generated,
            media_items=engine.media,
            started_at=engine.created_at,
        )


def _share(load: float) -> float:
    if load <= CURVE[0][0]:
        return 0.0
    for (low, at_low), (high, at_high) in itertools.pairwise(CURVE):
        if load <= high:
            return at_low + (at_high - at_low) * (load - low) / (high - low)
    return 1.0


def poisson(rate: float, rng: random.Random) -> float:
    """Requests of one second: the normal approximation is good enough for sums over ticks."""
    return max(0.0, round(rng.gauss(rate, math.sqrt(rate))))


def shaped(rates: Sequence[float], seed: int = 0, like: Traffic | None = None) -> list[Traffic]:
    """Traffic with these mean rates per second."""
    rng, like = random.Random(seed), like or Traffic(0.0)
    return [replace(like, requests=poisson(rate, rng)) for rate in rates]


def outage(begin: float, end: float, missing: Missing) -> Callable[[Reading, float], Reading]:
    """A fault: between two times nothing is read."""
    return lambda reading, now: missing if begin <= now < end else reading
