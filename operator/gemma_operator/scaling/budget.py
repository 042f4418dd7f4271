"""One GPU budget over the pools of a serving: who gets how many engines when there aren't enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gemma_operator.scaling.decision import Decision, Reason
from gemma_operator.scaling.observation import Metrics


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pool asks for."""

    decision: Decision
    gpus: int
    """GPUs of one engine."""
    interactive: bool
    writes: bool = True
    """False where the operator doesn't write the replicas (DryRun, Off, External): the pool keeps what it has."""


def allocate(budget: int | None, claims: Mapping[str, Claim]) -> dict[str, Decision]:
    """The decisions of all pools of a serving within a budget of GPUs (None: without limit).

    Each of the layers is served in turn, one engine of each pool at a time: what can't be moved now, minima and a first
    engine for batch work that waits, interactive demand, batch deadlines, the interactive rest, the batch rest. A pool
    gives up first, and another gets more at a later tick, so that the sum is never above the budget on the way.
    """
    if budget is None:
        return {name: claim.decision for name, claim in claims.items()}
    costly = {name: claim for name, claim in claims.items() if claim.gpus}
    granted = dict.fromkeys(costly, 0)
    left = budget
    for layer in _layers(costly):
        left = _serve(layer, costly, granted, left)
    free = budget - sum(claim.decision.desired * claim.gpus for claim in costly.values())
    out = {name: claim.decision for name, claim in claims.items()}
    for name in sorted(costly, key=lambda name: (not costly[name].interactive, name)):
        claim, grant = costly[name], granted[name]
        before = claim.decision.desired
        if grant > before:
            grant = before + min(grant - before, max(0, free) // claim.gpus)
            free -= (grant - before) * claim.gpus
        if grant != claim.decision.replicas and claim.writes:
            out[name] = _limited(claim.decision, grant, budget)
    return out


def _layers(claims: Mapping[str, Claim]) -> Iterator[dict[str, int]]:
    """Engines up to which each pool is served, layer by layer; a later layer may not lower an earlier one's number."""
    fixed = {name: claim.decision.desired for name, claim in claims.items() if not _may_shrink(claim)}
    wanted = {name: claim.decision.replicas for name, claim in claims.items() if claim.writes}
    interactive = {name: count for name, count in wanted.items() if claims[name].interactive}
    batch = {name: count for name, count in wanted.items() if not claims[name].interactive}
    yield {name: count for name, count in fixed.items() if claims[name].interactive}
    yield {name: count for name, count in fixed.items() if not claims[name].interactive}
    yield {name: min(count, claims[name].decision.minimum) for name, count in interactive.items()}
    yield {name: min(count, _batch_floor(claims[name].decision)) for name, count in batch.items()}
    yield {name: min(count, claims[name].decision.terms.critical) for name, count in interactive.items()}
    yield {name: min(count, _batch_critical(claims[name].decision)) for name, count in batch.items()}
    yield interactive
    yield batch


def _may_shrink(claim: Claim) -> bool:
    """A pool whose load isn't known keeps what it has, as one that somebody else sizes."""
    return claim.writes and claim.decision.metrics is Metrics.FULL


def _batch_floor(decision: Decision) -> int:
    """Batch work must not starve: where some waits, one engine is kept for it, beside those that are lent."""
    return max(decision.minimum, min(1, decision.terms.for_demand)) + decision.away


def _batch_critical(decision: Decision) -> int:
    return decision.terms.critical + decision.away


def _serve(layer: Mapping[str, int], claims: Mapping[str, Claim], granted: dict[str, int], left: int) -> int:
    """Grant one engine to each pool in turn until the layer is served or the budget spent; returns what is left."""
    waiting = [name for name in sorted(layer) if granted[name] < layer[name]]
    while waiting:
        for name in list(waiting):
            if claims[name].gpus > left:
                waiting.remove(name)
                continue
            granted[name] += 1
            left -= claims[name].gpus
            if granted[name] >= layer[name]:
                waiting.remove(name)
    return left


def _limited(decision: Decision, grant: int, budget: int) -> Decision:
    before = decision.desired
    if grant < before:
        reason, text = (
            Reason.OVER_BUDGET,
            f"{before} -> {grant} replicas: a budget of {budget} GPUs is needed elsewhere",
        )
    elif grant == before:
        reason, text = Reason.BUDGET_SPENT, f"held at {before}: a budget of {budget} GPUs is spent"
    else:
        reason, text = decision.reason, f"{before} -> {grant} replicas: a budget of {budget} GPUs allows no more"
    return replace(decision, replicas=grant, reason=reason, message=f"{text} ({decision.message})")
