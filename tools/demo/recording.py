"""What a demo run records, and what its numbers say. Pure: the report can be made again from the JSON file.

Times called `at`, `start` and `end` are seconds since the load began; durations are seconds.
"""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.demo.load import Outcome, attainment, percentile


@dataclass(frozen=True)
class Phase:
    """A stretch of constant offered load. `rate`: requests a second."""

    name: str
    rate: float
    start: float
    end: float


@dataclass(frozen=True)
class Sample:
    """The interactive pool as the GemmaServing's status and Prometheus showed it."""

    at: float
    desired: int | None
    ready: int | None
    p95: float | None
    conditions: dict[str, str] = field(default_factory=dict)
    decision: str = ""


@dataclass(frozen=True)
class Event:
    """A Kubernetes event about something of ours."""

    at: float
    about: str
    reason: str
    message: str


@dataclass
class Recording:
    serving: str
    engine: str
    started: str
    slo: float
    commands: list[str] = field(default_factory=list)
    deployed: str = ""
    phases: list[Phase] = field(default_factory=list)
    interactive: list[Outcome] = field(default_factory=list)
    batch: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Recording":
        data: dict[str, Any] = json.loads(text)
        for name, kind in _PARTS.items():
            data[name] = [kind(**part) for part in data[name]]
        return cls(**data)


_PARTS: dict[str, Any] = {
    "phases": Phase,
    "interactive": Outcome,
    "batch": Outcome,
    "samples": Sample,
    "events": Event,
}


@dataclass(frozen=True)
class Row:
    """One phase in figures; `p95_prometheus` is the highest seen. None: nothing to say (no requests, no sample)."""

    phase: Phase
    requests: int
    failed: int
    p95: float | None
    p95_prometheus: float | None
    attainment: float | None
    replicas: tuple[int, int] | None
    batch_done: int


def within(outcomes: list[Outcome], start: float, end: float) -> list[Outcome]:
    """The requests that were due in [start, end)."""
    return [outcome for outcome in outcomes if start <= outcome.at < end]


def summarise(recording: Recording) -> list[Row]:
    return [_row(recording, phase) for phase in recording.phases]


def _row(recording: Recording, phase: Phase) -> Row:
    sent = within(recording.interactive, phase.start, phase.end)
    samples = [s for s in recording.samples if phase.start <= s.at < phase.end]
    ready = [s.ready for s in samples if s.ready is not None]
    p95s = [s.p95 for s in samples if s.p95 is not None]
    return Row(
        phase=phase,
        requests=len(sent),
        failed=sum(not outcome.ok for outcome in sent),
        p95=percentile(sent, 95),
        p95_prometheus=max(p95s, default=None),
        attainment=attainment(sent, recording.slo),
        replicas=(ready[0], ready[-1]) if ready else None,
        batch_done=sum(o.ok and phase.start <= o.at + o.seconds < phase.end for o in recording.batch),
    )


def decisions(recording: Recording) -> list[tuple[float, str]]:
    """When the operator's decision for the interactive pool changed its reason or its size, and what it said."""
    changes: list[tuple[float, str]] = []
    last: tuple[str, int | None] = ("", None)
    for sample in recording.samples:
        current = (sample.decision.partition(":")[0], sample.desired)
        if sample.decision and current != last:
            last = current
            if not changes or changes[-1][1] != sample.decision:
                changes.append((sample.at, sample.decision))
    return changes


def shortfalls(recording: Recording) -> list[str]:
    """What is missing from the story: SLO held, load up, SLO missed, scaled up, SLO held again. Empty: nothing."""
    rows = {row.phase.name: row for row in summarise(recording)}
    if not {"warm", "peak"} <= rows.keys():
        return ["the load ended before its peak"]
    warm, peak = rows["warm"], rows["peak"]
    last = rows.get("recovered", peak)
    target = milliseconds(recording.slo)
    found = []
    if warm.p95 is None or warm.p95 > recording.slo:
        found.append(f"before the peak p95 TTFT was {milliseconds(warm.p95)}, not within {target}")
    if not exceeds(peak.p95_prometheus, recording.slo):
        found.append(f"Prometheus never showed p95 TTFT over {target} at {peak.phase.rate:g} req/s")
    if not (warm.replicas and last.replicas and last.replicas[1] > warm.replicas[1]):
        found.append(f"the interactive pool was not scaled up: Ready {_ready(warm)} before, {_ready(last)} at the end")
    if last is peak:
        allowed = peak.phase.end - peak.phase.start
        found.append(f"p95 TTFT did not come back within {target} in the {allowed:.0f} s allowed")
    elif last.attainment is None or last.attainment < 0.95:
        found.append(f"attainment did not recover: {share(last.attainment)} within {target}, 95 % needed")
    failed = sum(row.failed for row in rows.values())
    if failed:
        first = next(outcome for outcome in recording.interactive if not outcome.ok)
        found.append(f"{failed} interactive requests failed, the first with: {first.error}")
    if not any(outcome.ok for outcome in recording.batch):
        found.append("the batch pool completed no request")
    return found


def exceeds(p95: float | None, slo: float) -> bool:
    return p95 is not None and p95 > slo


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if math.isinf(seconds) else f"{seconds * 1000:.0f} ms"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def _ready(row: Row) -> str:
    return str(row.replicas[1]) if row.replicas else "unknown"
