"""The correction of a profile: what misses prove, and what they don't."""

import pytest

from gemma_operator.scaling import feedback
from gemma_operator.scaling.memory import Learned
from gemma_operator.scaling.moment import Moment
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.verdict import Evidence

SLO = Slo(95, 0.3)
PLANNED = 1.1


def moments(*ticks: tuple[float, float]) -> tuple[Moment, ...]:
    """Ticks of one engine, each with its load and its share of misses."""
    return tuple(
        Moment.of(
            at=15.0 * (i + 1),
            seconds=15.0,
            each=0.05,
            demand=load,
            work=load,
            level=load,
            needed=1.0,
            requests=20.0,
            media_share=0.1,
            engines=1,
            ttft=Evidence(300, 300 * miss, 300 * miss),
        )
        for i, (load, miss) in enumerate(ticks)
    )


def after(*ticks: tuple[float, float], correction: float = 1.0) -> float:
    seen = moments(*ticks)
    return feedback.learn(Learned(correction), seen, SLO, 1.0, PLANNED, 0.0, seen[-1].at).correction


def test_bursts_say_nothing_of_the_profile_nor_do_the_ticks_that_answer_them():
    """ServeGen's day at 10:02: the late answers of a burst are counted in the tick after it."""
    burst = ((1.4, 0.9), (0.85, 0.8), (0.7, 0.0))
    assert after(*[(0.6, 0.0), (0.8, 0.0)] * 7, *burst, *burst, correction=1.08) == 1.08


@pytest.mark.parametrize("load", [1.05, 0.9, 0.8])
def test_a_cut_goes_to_just_under_the_load_that_missed(load):
    ticks = [(0.95 * load, 0.1), (load, 0.2)] * 10
    assert 0.95 * 0.95 * load < after(*ticks) * PLANNED < 0.95 * load


def test_a_cut_takes_two_fifths_at_most():
    assert after(*[(0.48, 0.1), (0.5, 0.2)] * 10) == pytest.approx(0.6)


def test_two_short_bursts_prove_nothing():
    """ServeGen's day at 16:09: two of twenty ticks held all misses, at loads that others carried well."""
    ticks = [(0.6 + i / 50, 0.0) for i in range(9)]
    assert after(*ticks, (0.97, 0.9), *ticks, (0.91, 0.9)) == 1.0
