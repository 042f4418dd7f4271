"""The product's rule as a policy of the simulator: the same observation, decision and memory as in the operator."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from gemma_operator.scaling import headroom, lending, pool
from gemma_operator.scaling.counters import PoolId, Reading, Scrape
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.lending import Engines, Lender, Loans
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Observation, Watch, observe
from gemma_operator.scaling.pool import Fleet, Mode, Slo
from gemma_operator.scaling.rule import decide

POOL = PoolId("simulated", "serving", "interactive")
BATCH = PoolId("simulated", "serving", "batch")
DEFAULT = pool.Policy(1, 256, Slo(95, 0.3))


class Product:
    """`decide` with its defaults, or with another policy of the operator."""

    def __init__(self, policy: pool.Policy = DEFAULT) -> None:
        self.policy = policy
        self.watch, self.memory = Watch(), Memory()
        self.decisions: list[Decision] = []

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        self.watch, found = observe(self.watch, reading, {POOL: (self.policy, fleet)}, now)
        return self.decided(found[POOL], fleet, now).replicas

    def decided(self, seen: Observation, fleet: Fleet, now: float) -> Decision:
        decision, self.memory = decide(self.policy, fleet, self.look(seen), self.memory, now)
        self.decisions.append(decision)
        return decision

    def look(self, seen: Observation) -> Observation:
        """What the rule gets to see."""
        return seen


LENDER = pool.Policy(0, 256, mode=Mode.OFF)
"""A batch pool that keeps its size and has nothing to do that can't wait: all its engines may be lent."""


class Borrower(Product):
    """The same with the product's rule for loans, beside a batch pool that lends."""

    def __init__(self, policy: pool.Policy = DEFAULT) -> None:
        super().__init__(policy)
        self.lender = Memory()

    def moves(self, now: float, reading: Reading, fleet: Fleet, batch: Fleet) -> tuple[int, Loans]:
        pools = {POOL: (self.policy, fleet), BATCH: (LENDER, batch)}
        self.watch, found = observe(self.watch, reading, pools, now)
        own = self.decided(found[POOL], fleet, now)
        spare, self.lender = decide(LENDER, batch, found[BATCH], self.lender, now)
        lent = tuple(member for member in fleet.members if member.lent)
        lender = Lender(spare, batch.desired, _loads(lent, reading), _loads(batch.members, reading))
        return own.replicas, lending.plan(own, [lender])


def _loads(members: tuple[pool.Member, ...], reading: Reading) -> Engines:
    engines = reading.engines if isinstance(reading, Scrape) else {}
    return tuple(
        (seen.running + seen.waiting if (seen := engines.get(member.uid)) else math.inf, member.uid)
        for member in members
    )


class Part(StrEnum):
    """A part of the rule that can be left out, to see what it is worth."""

    HEADROOM = "headroom"
    """Room for what may come while an engine starts, as learnt."""
    CORRECTION = "correction"
    """The profile corrected by what was measured."""
    QUEUE = "queue"
    """Engines to work off what waits, and none less while many wait."""
    ARRIVALS = "arrivals"
    """Demand by what comes in: answers, the growth of queues, and refusals; without it by answers alone."""


_NO_HEADROOM: headroom.Histogram = ((headroom.NONE, 1e12),)


class Without(Product):
    """The product's rule without one of its parts."""

    def __init__(self, part: Part, policy: pool.Policy = DEFAULT) -> None:
        super().__init__(policy)
        self.part = part

    def look(self, seen: Observation) -> Observation:
        learned = self.memory.learned
        if self.part is Part.HEADROOM:
            learned = replace(learned, rises=_NO_HEADROOM)
        elif self.part is Part.CORRECTION:
            learned = replace(learned, correction=1.0, too_high=None, trial=None)
        self.memory = replace(self.memory, learned=learned)
        if self.part is Part.QUEUE:
            return replace(seen, waiting=0.0)
        return replace(seen, growth=0.0, refused=0.0) if self.part is Part.ARRIVALS else seen


class Static:
    """Always so many."""

    def __init__(self, replicas: int) -> None:
        self.count = replicas

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        return self.count
