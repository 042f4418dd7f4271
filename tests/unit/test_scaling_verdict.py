"""Verdicts: what the samples prove, exactly or between two edges."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.verdict import Evidence, Verdict, add, judge, over, quantile, wilson
from tests.support.scaling import TTFT

EXACT = ((0.25, 60.0), (0.3, 90.0), (0.5, 95.0), (math.inf, 100.0))
COARSE = ((0.25, 60.0), (0.5, 95.0), (math.inf, 100.0))


@pytest.mark.parametrize(
    ("samples", "low", "high", "verdict"),
    [
        (0, 0, 0, Verdict.UNDETERMINED),
        (20, 2, 2, Verdict.UNDETERMINED),
        (20, 3, 3, Verdict.MISSED),
        (60, 0, 0, Verdict.MET),
        (60, 5, 5, Verdict.UNDETERMINED),
        (60, 6, 6, Verdict.MISSED),
        (300, 8, 8, Verdict.MET),
        (300, 22, 22, Verdict.MISSED),
        (300, 0, 100, Verdict.UNDETERMINED),
        (3600, 158, 158, Verdict.MET),
    ],
)
def test_verdicts_need_proof(samples, low, high, verdict):
    assert judge(Evidence(samples, low, high), TTFT, 60).verdict is verdict


@settings(deadline=None)
@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_hold_the_share(counts):
    low, high = wilson(*counts)
    assert 0 <= low <= counts[0] / counts[1] + 1e-12
    assert counts[0] / counts[1] - 1e-12 <= high <= 1


@pytest.mark.parametrize(
    ("buckets", "slo", "found"),
    [
        (EXACT, TTFT, Evidence(100, 10, 10)),
        (COARSE, TTFT, Evidence(100, 5, 40)),
        (COARSE, Slo(95, 0.5), Evidence(100, 5, 5)),
        (COARSE, Slo(95, 0.1), Evidence(100, 40, 100)),
        (COARSE, Slo(95, 9.0), Evidence(100, 0, 5)),
    ],
)
def test_misses_are_exact_at_an_edge_and_bounds_between_two(buckets, slo, found):
    assert over(buckets, slo) == found


def test_histograms_with_different_edges_are_added_over_those_that_all_have():
    assert add([EXACT, COARSE]) == ((0.25, 120.0), (0.5, 190.0), (math.inf, 200.0))
    assert add([EXACT, EXACT])[1] == (0.3, 180.0)
    assert add([]) == ()


@pytest.mark.parametrize(("share", "value"), [(0.6, 0.25), (0.75, 0.275), (0.95, 0.5), (0.99, 0.5), (0.3, 0.125)])
def test_quantiles_are_linear_within_a_bucket(share, value):
    assert quantile(EXACT, share) == pytest.approx(value)


def test_no_samples_have_no_quantile():
    assert quantile((), 0.95) is None
    assert quantile(((0.3, 0.0), (math.inf, 0.0)), 0.95) is None
