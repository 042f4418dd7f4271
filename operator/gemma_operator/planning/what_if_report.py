"""What would happen, in words and tables for people and as data for programs."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from gemma_operator.planning.plan import HOUR
from gemma_operator.planning.what_if import Answer, Part, bad_minutes
from gemma_operator.scaling.decision import Decision

MOST_DECISIONS = 40
"""In the table; all of them are in the data."""


def show(answer: Answer, console: Console) -> None:
    """Print the tables."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(answer):
        facts.add_row(name, value)
    console.print(facts)
    console.print()
    console.print(_time(answer))
    console.print(_decisions(answer))
    if (more := len(answer.decisions) - MOST_DECISIONS) > 0:
        console.print(f"and {more} more: --output json has them all")
    for at, kind, message in answer.findings:
        console.print(f"{_clock(answer, at)} {kind}: {message}", highlight=False)
    for note in answer.notes:
        console.print(f"note: {note}", highlight=False)


def figures(answer: Answer) -> dict[str, Any]:
    """The same as data; times are seconds since the start, hours are of GPUs."""
    outcome, slo = answer.outcome, answer.policy.ttft
    assert slo is not None
    return {
        "pool": answer.pool,
        "start": datetime.fromtimestamp(answer.start, UTC).isoformat(),
        "workload": {
            "seconds": answer.seconds,
            "requests": answer.requests,
            "refused": answer.refused,
            "mediaShare": answer.media_share,
        },
        "slo": {"percentile": slo.percentile, "seconds": slo.seconds},
        "profile": answer.policy.profile.name,
        "holds": answer.holds,
        "refused": answer.refused,
        "attainment": outcome.attainment,
        "ttft": _number(outcome.p95),
        "badMinutes": bad_minutes(answer),
        "worstMinutes": outcome.worst_minutes,
        "engineHours": outcome.gpu_hours,
        "gpuHours": outcome.gpu_hours * answer.gpus,
        "starts": outcome.starts,
        "wastedStarts": outcome.wasted_starts,
        "reversals": outcome.reversals,
        "digest": outcome.digest,
        "faults": [{"kind": fault.kind.value, "start": fault.start, "end": fault.end} for fault in answer.faults],
        "time": [
            {
                "start": part.start,
                "end": part.end,
                "requests": part.requests,
                "attainment": part.within,
                "ttft": _number(part.ttft),
                "asked": list(part.asked),
                "ready": list(part.ready),
                "faults": list(part.faults),
            }
            for part in answer.parts
        ],
        "ticks": [{"at": tick.at, "asked": tick.asked, "ready": tick.ready} for tick in answer.ticks],
        "decisions": [
            {
                "at": decision.at - answer.start,
                "from": decision.desired,
                "to": decision.replicas,
                "reason": decision.reason.value,
                "message": decision.message,
            }
            for decision in answer.decisions
        ],
        "findings": [{"at": at, "kind": kind, "message": message} for at, kind, message in answer.findings],
        "notes": list(answer.notes),
    }


def _facts(answer: Answer) -> list[tuple[str, str]]:
    outcome, slo = answer.outcome, answer.policy.ttft
    assert slo is not None
    target = f"{slo.seconds * 1000:g} ms"
    media = f"{answer.media_share:.0%} with media" if answer.media_share else "text only"
    asked = [tick.asked for tick in answer.ticks] or [0]
    bad = bad_minutes(answer)
    longest = f", {outcome.worst_minutes} of them in a row" if outcome.worst_minutes > 1 else ""
    hours = (
        f"{outcome.gpu_hours * answer.gpus:.1f} GPU-hours" if answer.gpus else f"{outcome.gpu_hours:.1f} engine-hours"
    )
    wasted = f", {outcome.wasted_starts} of them for nothing" if outcome.wasted_starts else ""
    refused = f"; {answer.refused / answer.requests:.1%} refused" if answer.refused else ""
    return [
        ("workload", f"{answer.requests:,} requests in {answer.seconds / HOUR:.3g} h, {media}; pool {answer.pool}"),
        (
            "SLO",
            f"{'held' if answer.holds else 'MISSED'}: {outcome.attainment:.2%} within {target}, "
            f"{slo.percentile:g} % wanted; p95 {_ttft(outcome.p95)}{refused}",
        ),
        ("bad minutes", f"{bad} with more than 5 % over the target{longest}"),
        ("engines", f"{min(asked)} to {max(asked)}; {outcome.starts} starts{wasted}; turned {outcome.reversals} times"),
        ("cost", hours),
    ]


def _time(answer: Answer) -> Table:
    table = Table(title="Over time", title_justify="left")
    slo = answer.policy.ttft
    assert slo is not None
    columns = (
        "from",
        "requests/s",
        f"within {slo.seconds * 1000:g} ms",
        f"p{slo.percentile:g} TTFT",
        "asked for",
        "Ready",
    )
    for column in columns:
        table.add_column(column, justify="right")
    if answer.faults:
        table.add_column("fails")
    for part in answer.parts:
        table.add_row(*_row(answer, part), *([", ".join(part.faults)] if answer.faults else []))
    return table


def _row(answer: Answer, part: Part) -> list[str]:
    rate = part.requests / (part.end - part.start)
    ttft, within = (_ttft(part.ttft), f"{part.within:.1%}") if part.requests else ("-", "-")
    return [_clock(answer, part.start), f"{rate:.3g}", within, ttft, _range(part.asked), _range(part.ready)]


def _decisions(answer: Answer) -> Table:
    table = Table(title="Decisions", title_justify="left")
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("engines", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("why", ratio=1)
    for decision in answer.decisions[:MOST_DECISIONS]:
        table.add_row(
            _clock(answer, decision.at - answer.start), _moved(decision), decision.reason.value, _why(decision)
        )
    return table


def _moved(decision: Decision) -> str:
    before, after = decision.desired, decision.replicas
    return f"{before}" if before == after else f"{before} -> {after}"


def _why(decision: Decision) -> str:
    """The message without what the other columns say."""
    return decision.message.partition(": ")[2] or decision.message


def _clock(answer: Answer, seconds: float) -> str:
    """The time of day, with the day where there are several."""
    moment = datetime.fromtimestamp(answer.start + seconds, UTC)
    days = (moment.date() - datetime.fromtimestamp(answer.start, UTC).date()).days
    clock = f"{moment:%H:%M:%S}" if seconds % 60 else f"{moment:%H:%M}"
    return f"+{days}d {clock}" if days else clock


def _range(values: tuple[int, int]) -> str:
    low, high = values
    return f"{low}" if low == high else f"{low} to {high}"


def _ttft(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _number(value: float) -> float | None:
    """None where there was no answer: JSON has no infinity."""
    return None if math.isinf(value) else value
