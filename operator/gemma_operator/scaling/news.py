"""When a decision shows another picture than the one that is shown, and when more was learnt than is written down. Pure.

Measured values move all the time: writing each of them down costs a fleet of a thousand servings 33 writes a second for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from gemma_operator.scaling import headroom
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Learned

SHARE = 0.25
"""A figure that moved by less than this share of itself shows the same picture."""
LEAST_CORRECTION = 0.02
LEAST_LOAD = 0.1
"""Engine-seconds per second: what was learnt of less doesn't matter."""
MORE = 8.0
"""The same, seen in so many times as many requests, is more: it isn't forgotten as soon."""


def is_news(shown: Decision, new: Decision) -> bool:
    """True for another outcome, and for a figure that has moved by more than a quarter, and enough to matter."""
    return _outcome(shown) != _outcome(new) or any(
        _has_moved(before, after, least)
        for (before, least), (after, _) in zip(_figures(shown), _figures(new), strict=True)
    )


def is_lesson(written: Learned, learned: Learned) -> bool:
    """True where a restart that reads what is `written` would decide otherwise than by what has been learnt since."""
    return (
        _facts(written) != _facts(learned)
        or abs(written.correction - learned.correction) > LEAST_CORRECTION
        or not 1 / MORE < _weight(learned) / _weight(written) < MORE
        or any(map(_has_moved, _loads(written), _loads(learned), repeat(LEAST_LOAD)))
    )


def _facts(learned: Learned) -> tuple[object, ...]:
    is_known = headroom.is_known(learned.heights)
    return learned.too_high, learned.cut_at, learned.trial, learned.infeasible_until, learned.lots, is_known


def _weight(learned: Learned) -> float:
    return max(1.0, sum(weight for _, weight in learned.heights))


def _loads(learned: Learned) -> tuple[float, ...]:
    """What headroom and the usual need of an hour are made from."""
    rises = headroom.quantile(learned.rises, learned.chance)
    return rises, headroom.quantile(learned.heights, headroom.LEAST_CHANCE), *learned.hours


def _outcome(decision: Decision) -> tuple[object, ...]:
    verdicts = [judgement and judgement.verdict for judgement in (decision.judgement, decision.itl)]
    return (
        decision.replicas, decision.wanted, decision.reason, decision.metrics, decision.desired, decision.ready, decision.lent, decision.away,
        decision.minimum, decision.maximum, decision.dry_run, [finding.kind for finding in decision.findings], verdicts,
    )  # fmt: skip


def _figures(decision: Decision) -> Iterator[tuple[float | None, float]]:
    """What people look at, and the least change of it that matters."""
    yield decision.terms.requests, 0.5
    yield decision.terms.level, 0.1
    yield decision.terms.capacity, 0.05
    yield decision.p95, 0.05
    for judgement in (decision.judgement, decision.itl):
        yield (judgement.low if judgement else None), 0.02
        yield (judgement.high if judgement else None), 0.02


def _has_moved(before: float | None, after: float | None, least: float) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(least, SHARE * max(abs(before), abs(after)))
