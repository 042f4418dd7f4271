"""The product's rule as a policy of the simulator: the same observation, decision and memory as in the operator."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gemma_operator.scaling import headroom, pool
from gemma_operator.scaling.counters import PoolId, Reading
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Observation, Watch, observe
from gemma_operator.scaling.pool import Fleet, Slo
from gemma_operator.scaling.rule import decide

POOL = PoolId("simulated", "serving", "interactive")
DEFAULT = pool.Policy(1, 256, Slo(95, 0.3))


class Product:
    """`decide` with its defaults, or with another policy of the operator."""

    def __init__(self, policy: pool.Policy = DEFAULT) -> None:
        self.policy = policy
        self.watch, self.memory = Watch(), Memory()
        self.decisions: list[Decision] = []

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        self.watch, found = observe(self.watch, reading, {POOL: (self.policy, fleet)}, now)
        decision, self.memory = decide(self.policy, fleet, self.look(found[POOL]), self.memory, now)
        self.decisions.append(decision)
        return decision.replicas

    def look(self, seen: Observation) -> Observation:
        """What the rule gets to see."""
        return seen


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
