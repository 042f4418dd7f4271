"""Donors: warm batch engines that serve an interactive pool while its own engines start.

Only the decision; moving the traffic is the shell's. A lent engine goes back as soon as the pool's own engines carry the
demand: the two pools' engines are set up differently (MTP, budgets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.verdict import Verdict

_KNOWN = (Metrics.FULL, Metrics.PARTIAL)
Engines = tuple[tuple[float, str], ...]
"""(requests in it, Pod UID)"""


@dataclass(frozen=True, slots=True)
class Lender:
    """A batch pool that may lend."""

    decision: Decision
    most: int
    """Engines that it may have lent at a time; 0 calls all of them back."""
    lent: Engines
    """Its engines that serve the borrower now; they are no longer in its `ready`."""
    engines: Engines
    """Its Ready engines that are not lent."""


@dataclass(frozen=True, slots=True)
class Loans:
    """UIDs of the engines to move now."""

    lend: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()


def plan(borrower: Decision | None, lenders: Sequence[Lender]) -> Loans:
    """What an interactive pool borrows and gives back; where there is no borrower, what has to come back.

    It borrows for what is there already; once it misses its SLO, for all that it has asked for. It gives back when its own
    engines carry that with its headroom: between the two nothing moves, so no engine goes to and fro. What a lender can't be
    without goes back at once.
    """
    if owed := [uid for lender in lenders for uid in _least_loaded(lender.lent, _owed(lender))]:
        return Loans(give_back=tuple(owed))
    if borrower is None or (borrower.metrics not in _KNOWN and borrower.ready + borrower.lent):
        return Loans()
    needed, have = _needed(borrower), borrower.ready + borrower.lent
    if (gap := needed - have) > 0:
        return Loans(lend=_least_loaded(_spare(lenders), gap))
    lent = [engine for lender in lenders for engine in lender.lent]
    enough = max(needed, min(borrower.terms.for_demand, borrower.maximum))
    return Loans(give_back=_least_loaded(lent, max(0, have - enough)))


def _needed(borrower: Decision) -> int:
    """Engines that it should have now; one at least, so that somebody answers."""
    terms = borrower.terms
    is_missed = borrower.judgement is not None and borrower.judgement.verdict is Verdict.MISSED
    asked = min(terms.for_demand + terms.for_backlog, max(borrower.replicas, borrower.desired)) if is_missed else 0
    return max(1, min(max(terms.critical, asked), borrower.maximum))


def _owed(lender: Lender) -> int:
    """Engines that have to come back whatever the borrower needs."""
    decision = lender.decision
    # Batch work must not starve: where some waits, one engine stays.
    floor = max(decision.minimum, min(1, decision.terms.for_demand))
    stay = min(len(lender.engines), decision.replicas - len(lender.lent))
    return min(len(lender.lent), max(0, len(lender.lent) - lender.most, floor - stay))


def _spare(lenders: Sequence[Lender]) -> Engines:
    """Engines that the lenders can do without and still meet their deadlines."""
    found: list[tuple[float, str]] = []
    for lender in lenders:
        decision = lender.decision
        if decision.metrics is not Metrics.FULL:
            continue  # What it needs isn't known.
        stay = min(len(lender.engines), decision.replicas - len(lender.lent))
        needed = max(decision.minimum, decision.terms.critical)
        count = min(lender.most - len(lender.lent), stay - needed)
        found += sorted(lender.engines)[: max(0, count)]
    return tuple(found)


def _least_loaded(engines: Sequence[tuple[float, str]], count: int) -> tuple[str, ...]:
    return tuple(uid for _, uid in sorted(engines)[:count])
