"""Donors: warm batch engines that serve an interactive pool while its own engines start.

Only the decision; moving the traffic (label, drain, check that nothing runs) is the shell's. A lent engine goes back as
soon as the pool's own engines carry the demand: the two pools' engines are set up differently (MTP, budgets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma_operator.scaling.decision import Decision


@dataclass(frozen=True, slots=True)
class Lender:
    """A batch pool that may lend."""

    decision: Decision
    most: int
    """Engines that it may have lent at a time."""
    lent: int
    """Engines that it has lent now; they are no longer in its `ready`."""
    engines: tuple[tuple[float, str], ...]
    """Its Ready engines that are not lent: (requests in it, Pod UID)."""


@dataclass(frozen=True, slots=True)
class Loans:
    """UIDs of the engines to move now."""

    lend: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()


def plan(borrower: Decision, borrowed: Sequence[tuple[float, str]], lenders: Sequence[Lender]) -> Loans:
    """What an interactive pool borrows and gives back; `borrowed` is (requests in it, UID) of the engines it has.

    It borrows for what is there already, and gives back once its own engines carry that with its headroom: between
    the two nothing moves, so no engine goes to and fro.
    """
    terms = borrower.terms
    have = borrower.ready + len(borrowed)
    if (gap := min(terms.critical, borrower.maximum) - have) > 0:
        return Loans(lend=_least_loaded(_spare(lenders), gap))
    enough = max(terms.critical, min(terms.for_demand, borrower.maximum))
    return Loans(give_back=_least_loaded(borrowed, min(len(borrowed), max(0, have - enough))))


def _spare(lenders: Sequence[Lender]) -> list[tuple[float, str]]:
    """Engines that the lenders can do without and still meet their deadlines."""
    found = []
    for lender in lenders:
        # Batch work must not starve: where some waits, one engine stays.
        needed = max(lender.decision.minimum, lender.decision.terms.critical)
        count = min(lender.most - lender.lent, len(lender.engines) - needed)
        found += sorted(lender.engines)[: max(0, count)]
    return found


def _least_loaded(engines: Sequence[tuple[float, str]], count: int) -> tuple[str, ...]:
    return tuple(uid for _, uid in sorted(engines)[:count])
