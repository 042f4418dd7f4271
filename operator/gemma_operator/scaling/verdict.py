"""Does the SLO hold, as far as the samples can tell?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gemma_operator.scaling.counters import Buckets
from gemma_operator.scaling.pool import Slo

Z = 1.645
"""One-sided 95 % normal quantile of the Wilson bounds: 3 misses of 20 prove more than 5 %, 0 of 60 prove less."""


class Verdict(StrEnum):
    """Whether the SLO holds, as far as the samples can tell."""

    MET = "Met"
    MISSED = "Missed"
    UNDETERMINED = "Undetermined"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Requests that came to an answer or to a refusal, and bounds of how many of them missed the SLO."""

    samples: float = 0.0
    misses_low: float = 0.0
    misses_high: float = 0.0
    """Equal to the lower bound where a bucket edge lies exactly at the SLO."""

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(
            self.samples + other.samples, self.misses_low + other.misses_low, self.misses_high + other.misses_high
        )


NOTHING = Evidence()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the bounds (95 % each side) of the share of requests that miss."""

    verdict: Verdict
    low: float
    high: float
    evidence: Evidence
    seconds: float
    """How far back the evidence goes."""


def judge(evidence: Evidence, slo: Slo, seconds: float) -> Judgement:
    """Is the share of misses proven to be over, or under, what the SLO allows?"""
    low, _ = wilson(evidence.misses_low, evidence.samples)
    _, high = wilson(evidence.misses_high, evidence.samples)
    verdict = Verdict.MET if high < slo.allowed else Verdict.UNDETERMINED
    return Judgement(Verdict.MISSED if low > slo.allowed else verdict, low, high, evidence, seconds)


def wilson(hits: float, total: float) -> tuple[float, float]:
    """Wilson score bounds of a share; (0, 1) when nothing was counted."""
    if total < 1e-6:
        return 0.0, 1.0
    share = hits / total
    spread = Z * math.sqrt(share * (1 - share) / total + (Z / (2 * total)) ** 2)
    middle, scale = share + Z * Z / (2 * total), 1 + Z * Z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def over(buckets: Buckets, slo: Slo) -> Evidence:
    """Observations that took longer than the SLO allows: exact only where an edge lies there."""
    total = buckets[-1][1]
    below, above = 0.0, total
    for edge, count in buckets:
        if math.isclose(edge, slo.seconds, rel_tol=1e-9):
            return Evidence(total, total - count, total - count)
        if edge < slo.seconds:
            below = count
        else:
            above = count
            break
    return Evidence(total, total - above, total - below)


def add(histograms: Iterable[Buckets]) -> Buckets:
    """The sum over the edges that all have; empty for none."""
    listed = [buckets for buckets in histograms if buckets]
    if not listed:
        return ()
    if len(listed) == 1:
        return listed[0]
    tables = [dict(buckets) for buckets in listed]
    shared = set.intersection(*(set(table) for table in tables))
    return tuple((edge, sum(table[edge] for table in tables)) for edge in sorted(shared))


def quantile(buckets: Buckets, share: float) -> float | None:
    """The time that `share` of the observations stay at or under, linear within a bucket, as Prometheus does it.

    In the last, open bucket it is that bucket's lower edge: the true value is at least that. None without samples.
    """
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank = share * total
    low_edge = low_count = 0.0
    for edge, count in buckets:
        if count >= rank:
            if math.isinf(edge) or count == low_count:
                return low_edge
            return low_edge + (edge - low_edge) * (rank - low_count) / (count - low_count)
        low_edge, low_count = edge, count
    return low_edge
