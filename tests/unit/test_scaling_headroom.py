"""Headroom: what is kept free for what may come, and the share of the demand that is left to chance."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.scaling import headroom
from gemma_operator.scaling.headroom import LEAST_CHANCE, MOST_CHANCE, MOST_SHED, WANTED, chance

ALLOWED = 0.05


def learnt(*values: float) -> headroom.Histogram:
    histogram: headroom.Histogram = ()
    for value in values:
        histogram = headroom.learn(histogram, value, 1.0, 15.0)
    return histogram


def test_hours_without_misses_leave_more_to_chance_up_to_a_bound():
    assert chance(0.01, 0.0, ALLOWED, 7200.0) == pytest.approx(0.01 * math.e)
    assert chance(0.02, 0.0, ALLOWED, 7200.0) == MOST_CHANCE


def test_where_the_excess_alone_is_missed_more_may_be_left_to_chance():
    assert chance(0.05, 0.0, ALLOWED, 7200.0, sheds=True) == MOST_SHED
    assert chance(MOST_SHED, 0.0, ALLOWED, 15.0) == MOST_CHANCE, "without limits it goes back at once"


def test_where_the_excess_alone_is_missed_half_an_hour_teaches_as_much_as_two_hours():
    assert chance(0.01, 0.0, ALLOWED, 1800.0, sheds=True) == pytest.approx(0.01 * math.e)


def test_the_misses_that_are_wanted_change_nothing():
    assert chance(0.02, WANTED * ALLOWED, ALLOWED, 7200.0) == pytest.approx(0.02)


def test_one_minute_of_collapse_takes_back_what_two_hours_have_put_by():
    assert chance(0.027, 1.0, ALLOWED, 60.0) == LEAST_CHANCE


@given(
    share=st.floats(LEAST_CHANCE, MOST_CHANCE),
    missed=st.floats(0, 1),
    more=st.floats(0, 1),
    allowed=st.floats(0.001, 0.5),
    seconds=st.floats(0, 120),
)
def test_the_share_stays_within_its_bounds_and_misses_never_raise_it(share, missed, more, allowed, seconds):
    found = chance(share, missed, allowed, seconds)
    assert LEAST_CHANCE <= chance(share, min(1.0, missed + more), allowed, seconds) <= found <= MOST_CHANCE


def test_what_is_left_to_chance_needs_no_headroom():
    rises = learnt(*[0.1] * 98, *[2.0] * 2)
    heights = learnt(*[1.0] * 98, *[3.0] * 2)
    assert headroom.headroom(rises, heights, 1.0, 0.01) == pytest.approx(2.0, rel=0.06)
    assert headroom.headroom(rises, heights, 1.0, 0.03) == pytest.approx(0.1, rel=0.06)


def test_a_load_is_known_after_half_an_hour_of_ticks_however_much_came_in_them():
    histogram: headroom.Histogram = ()
    for tick in range(126):
        assert tick > 110 or not headroom.is_known(histogram)
        height = 0.5 if tick % 10 else 5.0
        histogram = headroom.learn(histogram, height, height, 0.0)
    assert headroom.is_known(histogram), "a bin's edge is up to 5 % over its heights"


def test_ticks_without_load_teach_nothing():
    assert not headroom.is_known(learnt(*[0.0] * 1000))
