"""One decision with all that went into it, so that it can be made again anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma_operator.scaling import codec
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Observation
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.rule import decide


@dataclass(frozen=True, slots=True)
class Record:
    """The inputs of one tick of one pool, and what was decided."""

    at: float
    policy: Policy
    fleet: Fleet
    observation: Observation
    memory: Memory
    """Before the decision."""
    decision: Decision

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        out: dict[str, Any] = codec.encode(self)
        return out


def load(data: Mapping[str, Any]) -> Record:
    """A record from JSON. Raises TypeError, ValueError or KeyError for what is none."""
    return codec.decode(Record, data)


def replay(record: Record) -> Decision:
    """The decision made again."""
    decision, _ = decide(record.policy, record.fleet, record.observation, record.memory, record.at)
    return decision
