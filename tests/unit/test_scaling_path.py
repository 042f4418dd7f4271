"""Counters, windows and decisions together, over a step in load."""

import math
from dataclasses import replace
from itertools import pairwise

from gemma_operator.scaling import (
    EngineSample,
    Fleet,
    History,
    Memory,
    PoolKey,
    decide,
    observe,
)
from tests.unit.test_scaling_decide import POLICY, TICK


class Engines:
    """Counters of engines that each serve up to `capacity` requests/s in time; what is over waits and misses."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.counters: dict[str, list[float]] = {}

    def serve(self, uids, rate: float, seconds: float) -> None:
        for uid in uids:
            counter = self.counters.setdefault(uid, [0.0, 0.0])
            share = rate / len(uids)
            counter[0] += min(share, self.capacity) * seconds * (1 if share <= self.capacity else 0.3)
            counter[1] += min(share, self.capacity) * seconds

    def scrape(self, at: float) -> tuple[EngineSample, ...]:
        return tuple(
            EngineSample(uid, uid, at, ((0.3, in_time), (1.0, total), (math.inf, total)), 0.0, 5.0)
            for uid, (in_time, total) in self.counters.items()
        )


def test_the_whole_path_follows_a_step_in_load_up_and_down():
    """Counters -> observe -> decide, with a cold start of 90 s: 11/s, then 40/s, then 9/s on engines that carry 15/s."""
    key, policy, engines = PoolKey("ns", "chat", "interactive"), replace(POLICY, maximum=6), Engines(15)
    history, memory, desired, seen = History(), Memory(), 1, []
    starts, now = {"pod-0": -1e9}, 0.0
    while now < 3600:
        now += 5
        while len(starts) < desired:
            starts[f"pod-{now:.0f}-{len(starts)}"] = now + 90
        for uid in list(starts)[desired:]:
            del starts[uid]
        ready = [uid for uid, at in starts.items() if at <= now]
        engines.serve(ready, 40 if 600 <= now < 1500 else (9 if now >= 1500 else 11), 5)
        if now % TICK == 0:
            fleet = Fleet(desired, len(ready), frozenset(ready), rolling_out=False)
            history, observation = observe(history, {key: engines.scrape(now)}, key, fleet, policy, now)
            decision, memory = decide(policy, fleet, observation, memory, now)
            desired = decision.replicas
            seen.append((now, desired, decision.reason))
    changes = [(b[0], b[1]) for a, b in pairwise(seen) if a[1] != b[1]]
    assert [replicas for _, replicas in changes] == [2, 3, 2, 1]
    assert changes[0][0] - 600 <= 30
    assert changes[1][0] <= 600 + 2 * (90 + 60 + 2 * TICK)
    assert changes[2][0] >= 1500 + 300
