"""The product's rule as a policy of the simulator: the same observation, decision and memory as in the operator."""

from __future__ import annotations

from gemma_operator.scaling import pool
from gemma_operator.scaling.counters import PoolId, Reading
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Watch, observe
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
        decision, self.memory = decide(self.policy, fleet, found[POOL], self.memory, now)
        self.decisions.append(decision)
        return decision.replicas


class Static:
    """Always so many."""

    def __init__(self, replicas: int) -> None:
        self.count = replicas

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        return self.count
