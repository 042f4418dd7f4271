"""What is kept of a run, and what it comes to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.demo.load import Outcome, attainment, percentile

BIN_SECONDS = 5


@dataclass(frozen=True)
class Sample:
    """The cluster at one moment, `at` seconds after the load began; engines by pool."""

    at: float
    desired: Mapping[str, int]
    ready: Mapping[str, int]
    borrowed: int
    """Engines of the batch pool that serve the interactive one."""
    conditions: Mapping[str, str]
    """Type -> `Status Reason`."""
    decision: str
    """Of the interactive pool."""
    replicas_written: Mapping[str, int]
    """Generation of each pool's Deployment: it counts every write of its spec."""


@dataclass(frozen=True)
class Bin:
    """The requests that were due within BIN_SECONDS from `at` on."""

    at: float
    sent: int
    within: int
    """Answered whole, with a first token within the target."""
    p95: float | None
    """Seconds; None where it was never answered, or nothing was sent."""


@dataclass
class Recording:
    """One run."""

    name: str
    slo: float
    parts: list[tuple[str, float, float, float]] = field(default_factory=list)
    """Name, rate, start and end of each part."""
    samples: list[Sample] = field(default_factory=list)
    bins: list[Bin] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    load_average: list[float] = field(default_factory=list)
    """Of the machine, over a minute, at the beginning and the end."""

    def take(self, outcomes: Sequence[Outcome], began: float) -> None:
        """Keep the requests, summed up in bins."""
        end = self.parts[-1][3]
        for at in range(0, int(end), BIN_SECONDS):
            due = [o for o in outcomes if at <= o.at - began < at + BIN_SECONDS]
            p95 = percentile(due, 95)
            share = attainment(due, self.slo) or 0.0
            shown = None if p95 is None or p95 == float("inf") else round(p95, 4)
            self.bins.append(Bin(at, len(due), round(share * len(due)), shown))

    def part(self, name: str) -> tuple[float, float]:
        """Start and end of a part."""
        return next((start, end) for found, _, start, end in self.parts if found == name)

    def as_json(self) -> dict[str, Any]:
        """With its figures."""
        return {**asdict(self), "figures": [figures(self, name) for name, *_ in self.parts]}


def figures(recording: Recording, part: str) -> dict[str, Any]:
    """What one part came to."""
    start, end = recording.part(part)
    bins = [one for one in recording.bins if start <= one.at < end]
    samples = [one for one in recording.samples if start <= one.at < end]
    sent = sum(one.sent for one in bins)
    over = sum(BIN_SECONDS for one in bins if one.sent and (one.p95 is None or one.p95 > recording.slo))
    return {
        "part": part,
        "requests": sent,
        "attainment": round(sum(one.within for one in bins) / sent, 4) if sent else None,
        "seconds_over_slo": over,
        "gpu_seconds": round(gpu_seconds(samples)),
        "most_interactive": max((one.desired.get("interactive", 0) for one in samples), default=0),
        "most_borrowed": max((one.borrowed for one in samples), default=0),
        "writes_of_interactive": _changes(one.replicas_written.get("interactive", 0) for one in samples),
    }


def gpu_seconds(samples: Sequence[Sample]) -> float:
    """Engines asked for, each with a GPU from its order on, over time."""
    total = 0.0
    for one, after in itertools.pairwise(samples):
        total += sum(one.desired.values()) * (after.at - one.at)
    return total


def _changes(generations: Iterable[int]) -> int:
    known = [number for number in generations if number]
    return known[-1] - known[0] if known else 0
