"""A decision as a person would work it out, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from gemma_operator.scaling.decision import Decision, Terms
from gemma_operator.scaling.verdict import Judgement


def explain(decision: Decision) -> str:
    """The sum behind a decision, for the terminal."""
    return "\n".join([decision.message, *(f"  {name:<12} {text}" for name, text in _lines(decision))])


def _lines(decision: Decision) -> Iterator[tuple[str, str]]:
    terms = decision.terms
    lent = f", {decision.lent} lent to it" if decision.lent else ""
    away = f", {decision.away} lent to another pool" if decision.away else ""
    yield "engines", f"{decision.desired} asked for, {decision.ready} Ready{lent}{away}"
    yield "metrics", decision.metrics.value
    if decision.judgement:
        yield "TTFT", _judged(decision.judgement, decision.p95)
    if decision.itl:
        yield "ITL", _judged(decision.itl, None)
    if terms.capacity:
        yield from _sum(decision, terms)
    scheduled = f" ({terms.scheduled} by the schedule)" if terms.scheduled else ""
    yield "bounds", f"{decision.minimum}{scheduled} to {decision.maximum}"
    yield "reason", decision.reason.value
    for finding in decision.findings:
        yield "note", f"{finding.kind.value}: {finding.message}"


def _sum(decision: Decision, terms: Terms) -> Iterator[tuple[str, str]]:
    each = f"{terms.capacity:.2f} = operating point {terms.operating_point:.2f} x correction {terms.correction:.2f}"
    rest = terms.capacity / (terms.operating_point * terms.correction) if terms.operating_point else 1.0
    if decision.judgement is None:
        yield "capacity", f"{terms.capacity:.2f} of work per engine and second"
        yield "backlog", f"needs {terms.for_demand} to be finished by its deadline"
        return
    yield "traffic", f"{terms.requests:.1f} requests/s, {terms.media_share:.2f} images or videos in each"
    yield "load", f"{terms.fast:.2f} in the last minute, {terms.level:.2f} in five minutes"
    ahead = f"while an engine starts ({terms.cold_start:.0f} s)"
    yield "headroom", f"{terms.headroom:.2f}, what may come on top {ahead}, but for {terms.chance:.1%} of the demand"
    yield "capacity", f"{each} x {rest:.2f} for sharing" + (", profile stale" if rest < 1 else "")
    planned = max(terms.fast, terms.level + terms.headroom)
    larger = f"max({terms.fast:.2f}, {terms.level:.2f} + {terms.headroom:.2f})"
    yield "demand", f"{larger} / {terms.capacity:.2f} = {planned / terms.capacity:.2f} -> {terms.for_demand}"
    if terms.for_backlog:
        yield "queue", f"{terms.for_backlog} more to work it off"
    room = decision.wanted * terms.capacity - planned
    yield "wanted", f"{decision.wanted}; rounding leaves a load of {room:.2f} free"


def _judged(judgement: Judgement, p95: float | None) -> str:
    evidence = judgement.evidence
    if not evidence.samples:
        return f"no requests in {judgement.seconds:.0f} s"
    low, high = evidence.misses_low, evidence.misses_high
    counted = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    about = f", p95 about {p95 * 1000:.0f} ms" if p95 is not None else ""
    return (
        f"{judgement.verdict.value}: {counted} of {evidence.samples:.0f} missed in {judgement.seconds:.0f} s "
        f"({judgement.low:.1%} to {judgement.high:.1%}){about}"
    )
