"""Small builders for tests of the autoscaler."""

from __future__ import annotations

import math
from dataclasses import replace

from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, PoolId, Scrape
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Member, Policy, Slo
from gemma_operator.scaling.profile import Rates
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling.verdict import Evidence

POOL = PoolId("ns", "serving", "interactive")
TTFT = Slo(95, 0.3)
POLICY = Policy(1, 10, TTFT)
DOWN = Missing(MissingReason.QUERY_FAILED, "Prometheus is down")
START = 1_700_000_000.0
TICK = 15.0
COLD_START = 300.0
WORK = 0.0306
"""Engine-seconds of the usual request here: 500 prompt tokens, 10 generated, an item of media in every tenth."""
CAPACITY = 0.95 * 0.96
"""Load planned for each engine: safety times operating point at 10 % media."""
SMOOTH = Learned(rises=((-1000, 1000.0),))
"""A load that is known not to rise."""


def counters(uid: str = "a", at: float = START, good: float = 0.0, slow: float = 0.0, **more: object) -> EngineCounters:
    """An engine that has answered `good` requests within 300 ms and `slow` ones in 1 s."""
    total = good + slow
    base = EngineCounters(
        pod_uid=uid,
        at=at,
        ttft=((0.1, good / 2), (0.3, good), (0.5, good), (1.0, total), (math.inf, total)),
        running=0.0,
        waiting=0.0,
        finished={"stop": total},
        prompt_tokens=total * 500,
        generated_tokens=total * 10,
        media_items=total / 10,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def scrape(*engines: EngineCounters) -> Scrape:
    return Scrape({engine.pod_uid: engine for engine in engines})


def member(uid: str, ready_at: float = START - 10_000, **more: object) -> Member:
    base = Member(uid, ready_at - COLD_START, ready_at, ready_at)
    return replace(base, **more)  # type: ignore[arg-type]


def fleet(ready: int, desired: int | None = None, **more: object) -> Fleet:
    """Engines that have been Ready for long."""
    wanted = ready if desired is None else desired
    base = Fleet(wanted, tuple(member(str(i)) for i in range(ready)), pending=max(0, wanted - ready))
    return replace(base, **more)  # type: ignore[arg-type]


def seen(rate: float, *, missed: float = 0.0, seconds: float = TICK, media: float = 0.1, **more: object) -> Observation:
    """What a tick brings at `rate` requests per second, of which a share has missed."""
    count = rate * seconds
    base = Observation(
        metrics=Metrics.FULL,
        coverage=1.0,
        seconds=seconds,
        rates=Rates(rate, rate * 500, rate * 10, rate * media),
        ttft=Evidence(count, count * missed, count * missed),
        buckets=((0.3, count * (1 - missed)), (math.inf, count)),
        finished=count,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def blind(metrics: Metrics = Metrics.BLIND) -> Observation:
    return Observation(metrics, missing=DOWN)


class Pool:
    """A pool whose Pods become Ready at once, or when a test says so."""

    def __init__(self, replicas: int = 2, policy: Policy = POLICY, start: float = START) -> None:
        self.policy, self.now, self.memory = policy, start, Memory()
        self.desired = self.ready = replicas
        self.slow = False
        self.more: dict[str, object] = {}
        self.log: list[Decision] = []

    def tick(self, what: Observation, seconds: float = TICK) -> Decision:
        self.now += seconds
        pool = fleet(self.ready, self.desired, **self.more)
        decision, self.memory = decide(self.policy, pool, what, self.memory, self.now)
        self.desired = decision.replicas
        self.ready = min(self.ready, self.desired) if self.slow else self.desired
        self.log.append(decision)
        return decision

    def run(self, what: Observation, seconds: float) -> Decision:
        return [self.tick(what) for _ in range(max(1, round(seconds / TICK)))][-1]


def rate(load: float) -> float:
    """Requests per second that are so much load."""
    return load / WORK


def smooth(replicas: int, policy: Policy = POLICY) -> Pool:
    pool = Pool(replicas, policy)
    pool.memory = Memory(SMOOTH)
    return pool
