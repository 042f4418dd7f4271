"""Pools without TTFT objective: sized so that what waits is finished by its deadline."""

from __future__ import annotations

from dataclasses import replace

from gemma_operator.scaling import backlog, demand
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.moment import Moment
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Policy

TICK_SECONDS = 15.0


def measure(
    policy: Policy, fleet: Fleet, seen: Observation, memory: Memory, now: float
) -> tuple[Moment | None, Learned]:
    """What this tick says of the work that waits, and the lots after it; no moment where that isn't known."""
    outside = seen.backlog if isinstance(seen.backlog, float | int) else None
    if fleet.members:
        moment = demand.measure(policy, fleet, seen, memory, now)
        if moment is None or seen.metrics is not Metrics.FULL or (policy.wakes_from_zero and outside is None):
            return None, memory.learned
    elif outside is None:
        return None, memory.learned
    else:
        each = demand.work_per_request(policy.profile, memory.moments)
        moment = Moment.of(at=now, seconds=TICK_SECONDS, each=each)
    each = moment.each
    waiting = (seen.waiting + seen.running + (outside or 0.0)) * each
    lots = backlog.update(memory.learned.lots, waiting, seen.finished * each, now, policy.deadline_seconds)
    learned = replace(memory.learned, lots=lots)
    moment.set_needed(_engines(policy, fleet, learned, now))
    return moment, learned


def is_late(learned: Learned, now: float) -> bool:
    """True where some of the work that waits is past its deadline."""
    return any(due <= now for due, _ in learned.lots)


def _engines(policy: Policy, fleet: Fleet, learned: Learned, now: float) -> float:
    """Engines that finish every lot in time: with those there are, else counting the start of others."""
    each = demand.capacity(policy, 0.0, learned)

    def needed(start_seconds: float) -> float:
        load = backlog.required_load(learned.lots, now, policy.deadline_seconds, start_seconds)
        return min(load / each, demand.MOST_ENGINES)

    at_once = needed(0.0)
    if at_once > len(fleet.members):
        at_once = needed(fleet.cold_start_seconds)
    # Whatever waits needs at least an engine to wait for.
    return max(at_once, 1e-6) if learned.lots else 0.0
