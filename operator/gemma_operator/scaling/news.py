"""When a decision shows another picture than the one that is shown. Pure.

Measured values move all the time: writing each of them down costs a fleet of a thousand servings 33 writes a second for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma_operator.scaling.decision import Decision

SHARE = 0.25
"""A figure that moved by less than this share of itself shows the same picture."""


def is_news(shown: Decision, new: Decision) -> bool:
    """True for another outcome, and for a figure that has moved by more than a quarter, and enough to matter."""
    return _outcome(shown) != _outcome(new) or any(
        _has_moved(before, after, least)
        for (before, least), (after, _) in zip(_figures(shown), _figures(new), strict=True)
    )


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
