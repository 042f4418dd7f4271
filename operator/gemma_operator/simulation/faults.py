"""What may go wrong in the middle of a day: metrics that fail, GPUs and images that aren't there, an operator that isn't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gemma_operator.scaling.counters import Missing, MissingReason, Reading, Scrape
from gemma_operator.simulation.fleet import Engines


class FaultKind(StrEnum):
    """What fails."""

    PROMETHEUS = "prometheus"
    """Prometheus can't be reached."""
    EMPTY = "empty"
    """Prometheus answers, but knows no engine."""
    FROZEN = "frozen"
    """Nothing is scraped: every sample is the last one from before."""
    HALF = "half"
    """Half of the engines are not scraped."""
    OPERATOR = "operator"
    """The operator doesn't run, then starts anew."""
    GPUS = "gpus"
    """No more GPUs are to be had; engines keep those that they have."""
    IMAGE_PULL = "image-pull"
    """No engine starts: those that would be Ready meanwhile begin again at the end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them, from second `start` of the workload to before `end`."""

    kind: FaultKind
    start: float
    end: float


@dataclass(slots=True)
class Faults:
    """All faults of a run. Calls must come in the order of time."""

    listed: Sequence[Fault] = ()
    _before: Reading | None = field(default=None, init=False)

    def at(self, now: float) -> set[FaultKind]:
        """The kinds that hold at a second of the workload."""
        return {fault.kind for fault in self.listed if fault.start <= now < fault.end}

    def strike(self, engines: Engines, now: float) -> None:
        """What happens to the cluster."""
        for kind in (FaultKind.GPUS, FaultKind.IMAGE_PULL):
            ends = [fault.end for fault in self.listed if fault.kind is kind and fault.start <= now < fault.end]
            if kind is FaultKind.GPUS:
                engines.take_free_gpus(bool(ends))
            elif ends:
                engines.hold_starts(engines.now + max(ends) - now)

    def reading(self, reading: Reading, now: float) -> Reading:
        """What the operator reads."""
        kinds = self.at(now)
        if FaultKind.PROMETHEUS in kinds:
            return Missing(MissingReason.QUERY_FAILED, "Prometheus can't be reached")
        if FaultKind.EMPTY in kinds:
            return Scrape({})
        if FaultKind.FROZEN in kinds and self._before is not None:
            return self._before
        if FaultKind.HALF in kinds and isinstance(reading, Scrape):
            return Scrape({uid: seen for uid, seen in reading.engines.items() if int(uid.rpartition("-")[2]) % 2})
        self._before = reading
        return reading
