"""Engines that are to be moved between a serving's pools: from what the scaler knows to flips of single Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gemma_operator.desired.names import CLASS, DELETION_COST, LENT
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.lending import Lender, Loans

LENT_COST = "1000"
"""A Pod without a deletion cost has 0: what is lent is the last to go when its own pool shrinks."""
FLIP_SECONDS = 60.0
"""A flip that is refused for so long is planned anew, maybe with another engine."""


@dataclass(frozen=True, slots=True)
class Flip:
    """One engine Pod that is to answer the requests of another class."""

    pool: str
    """The pool that it belongs to."""
    pod: str
    uid: str
    serves: str
    """The class from now on."""
    is_loan: bool
    """False: it comes back to its own pool."""
    at: float
    """When it was decided (epoch seconds)."""
    message: str

    @property
    def metadata(self) -> dict[str, Any]:
        """The Pod's metadata as a merge patch; with its uid it is for this Pod and no later one of its name."""
        since = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        marks = {LENT: since, DELETION_COST: LENT_COST} if self.is_loan else {LENT: None, DELETION_COST: None}
        return {"uid": self.uid, "labels": {CLASS: self.serves}, "annotations": marks}


def flips(
    loans: Loans,
    lenders: Mapping[str, Lender],
    names: Mapping[str, str],
    borrower: str,
    needs: Decision | None,
    now: float,
) -> dict[str, tuple[Flip, ...]]:
    """The flips of each lender's engines. `names`: Pod UID -> name; `needs`: the borrower's decision."""
    found = {}
    for pool, lender in lenders.items():
        back = {uid for _, uid in lender.lent} & set(loans.give_back)
        out = {uid for _, uid in lender.engines} & set(loans.lend)
        found[pool] = (
            *(_flip(pool, uid, names, "interactive", True, now, _lent(pool, borrower, needs)) for uid in _sorted(out)),
            *(_flip(pool, uid, names, "batch", False, now, _back(pool, borrower)) for uid in _sorted(back)),
        )
    return found


def _flip(pool: str, uid: str, names: Mapping[str, str], serves: str, is_loan: bool, now: float, message: str) -> Flip:
    return Flip(pool, names[uid], uid, serves, is_loan, now, f"engine {names[uid]} {message}")


def _sorted(uids: Iterable[str]) -> list[str]:
    return sorted(uids)


def _lent(pool: str, borrower: str, needs: Decision | None) -> str:
    has = "" if needs is None else f", which has {needs.ready + needs.lent} Ready engines and needs more"
    return f"of pool {pool} is lent to pool {borrower}{has}"


def _back(pool: str, borrower: str) -> str:
    return f"goes back to pool {pool}" + (f" from pool {borrower}" if borrower else "")
