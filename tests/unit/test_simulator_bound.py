"""The clairvoyant bound: right on cases that can be counted by hand, and never above what a schedule achieves."""

from __future__ import annotations

import numpy as np

from gemma_operator.simulation.bound import START_SECONDS, cheapest, clairvoyant, isolated_misses
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.policies import Static
from gemma_operator.simulation.run import TICK_SECONDS, play
from gemma_operator.workload.synthetic import constant, step, synthetic


def misses_of(needed: list[int], most: int = 4) -> np.ndarray:
    """A hundred misses in each slot with fewer replicas than needed."""
    return np.array([[100.0 * (count < need) for count in range(1, most + 1)] for need in needed])


def test_constant_need_is_met_by_as_many() -> None:
    cost, path = cheapest(misses_of([3] * 40), price=100, blind=0)
    assert path.tolist() == [3] * 40
    assert cost == 3 * 40 * TICK_SECONDS


def test_a_rise_is_started_ahead_and_a_short_valley_is_sat_out() -> None:
    deep = cheapest(misses_of([3] * 30 + [1] * 60 + [3] * 30), price=100, blind=0)[1]
    short = cheapest(misses_of([3] * 30 + [1] * 10 + [3] * 30), price=100, blind=0)[1]
    assert set(deep[30:90]) == {1}
    assert set(short) == {3}, "two starts cost more than ten slots"


def test_a_burst_is_given_up_where_its_misses_are_cheaper_than_starts() -> None:
    needed = [1] * 30 + [2] * 2 + [1] * 30
    assert set(cheapest(misses_of(needed), price=0.5, blind=0)[1]) == {1}
    assert max(cheapest(misses_of(needed), price=10, blind=0)[1]) == 2


def test_nothing_started_in_the_first_cold_start_serves_in_it() -> None:
    early = int(START_SECONDS / TICK_SECONDS) // 2
    path = cheapest(misses_of([1] * early + [2] * 4 + [1] * 60), price=1, blind=0)[1]
    assert path[0] == path[early], "what isn't there from the beginning can't be there"


def test_misses_fall_with_replicas() -> None:
    arrivals = synthetic(constant(60), 60, seed=1, output_tokens=10)
    found = isolated_misses(arrivals, 60, World(), slo=0.3, most=4)
    assert found.shape == (4, 4)
    assert (np.diff(found, axis=1) <= 0).all()
    assert found[:, 0].min() > 0
    assert found[:, 3].max() == 0


def test_the_bound_is_between_its_lower_side_and_the_best_static_fleet() -> None:
    arrivals = synthetic(step(25, 75, 1200), 2400, seed=2, output_tokens=10)
    bound = clairvoyant(arrivals, 2400, World(), most=5)
    static = play(Static(3), arrivals, World(), length=2400, initial=3, preroll=0).outcome
    for attainment in (0.97, 0.99):
        assert bound.least_gpu_hours(attainment) <= bound.gpu_hours(attainment) <= static.gpu_hours
    assert bound.achieved[-1].attainment > 0.99
