"""Many runs of several policies: means, worst seeds, cost over the bound, and paired differences with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gemma_operator.simulation.run import Outcome

T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t, two-sided 95 %, by degrees of freedom from 1; beyond, the normal 1.96 plus a little is near enough."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one workload with one pair of seeds."""

    workload: str
    policy: str
    trace_seed: int
    seed: int
    bound: float
    """GPU-hours of the clairvoyant schedule of the same attainment."""
    attainment: float
    gpu_hours: float
    bad_minutes: float
    reversals: int
    wasted_starts: int
    worst_minutes: int
    """The longest run of bad minutes."""
    digest: str

    @classmethod
    def of(cls, workload: str, policy: str, trace_seed: int, seed: int, outcome: Outcome, bound: float) -> Run:
        return cls(
            workload,
            policy,
            trace_seed,
            seed,
            round(bound, 4),
            round(outcome.attainment, 6),
            round(outcome.gpu_hours, 4),
            round(outcome.bad_minutes, 4),
            outcome.reversals,
            outcome.wasted_starts,
            outcome.worst_minutes,
            outcome.digest[:16],
        )

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What two runs of the same have in common."""
        return self.workload, self.policy, self.trace_seed, self.seed

    @property
    def ratio(self) -> float:
        return self.gpu_hours / self.bound


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half the width of its 95 % interval."""

    mean: float
    half: float


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent values; infinitely wide for a single one, unknown for none."""
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, math.inf)
    free = len(values) - 1
    t = T_95[free - 1] if free <= len(T_95) else 1.96 + 2.6 / free
    return Interval(statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy on one workload, over all seeds."""

    workload: str
    policy: str
    runs: int
    attainment: float
    worst: float
    gpu_hours: float
    ratio: float
    bad_minutes: float
    reversals: float
    wasted_starts: float
    worst_minutes: float
    """The longest run of bad minutes: how long it takes to recover."""
    attainment_difference: Interval
    """To the reference policy, seed by seed, in points."""
    gpu_difference: Interval
    """In GPU-hours."""


def summarise(runs: Sequence[Run], reference: str) -> list[Summary]:
    """A summary for each workload and policy, in the order of their first run."""
    keys = list(dict.fromkeys((run.workload, run.policy) for run in runs))
    return [_summary([run for run in runs if (run.workload, run.policy) == key], runs, reference) for key in keys]


def _summary(own: Sequence[Run], runs: Sequence[Run], reference: str) -> Summary:
    def mean(name: str) -> float:
        return statistics.fmean(float(getattr(run, name)) for run in own)

    others = {
        (run.trace_seed, run.seed): run for run in runs if run.policy == reference and run.workload == own[0].workload
    }
    pairs = [(run, others[run.trace_seed, run.seed]) for run in own if (run.trace_seed, run.seed) in others]
    return Summary(
        workload=own[0].workload,
        policy=own[0].policy,
        runs=len(own),
        attainment=mean("attainment"),
        worst=min(run.attainment for run in own),
        gpu_hours=mean("gpu_hours"),
        ratio=mean("ratio"),
        bad_minutes=mean("bad_minutes"),
        reversals=mean("reversals"),
        wasted_starts=mean("wasted_starts"),
        worst_minutes=mean("worst_minutes"),
        attainment_difference=interval([100 * (a.attainment - b.attainment) for a, b in pairs]),
        gpu_difference=interval([a.gpu_hours - b.gpu_hours for a, b in pairs]),
    )
