"""The fluid fleet: the same answer as request by request where both can be had, and fleets of ten thousand engines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gemma_operator.scaling.pool import Slo
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.fluid import Curve, curve_of, flow
from gemma_operator.simulation.policies import DEFAULT, Product
from gemma_operator.simulation.run import TICK_SECONDS, play
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import arrivals_at, sine

WORLD = World(seed=4)
MIX = Arrivals.of(np.arange(1000.0), 500, 20).with_media(0.1, 4)
CARRIES = 25.0


@pytest.fixture(scope="module")
def curve() -> Curve:
    return curve_of(MIX, WORLD, CARRIES, 0.3)


def test_the_curve_rises_from_no_misses_to_nothing_but_misses(curve: Curve) -> None:
    assert curve.missed[0] < 0.01
    assert curve.missed[-1] > 0.9
    assert CARRIES < curve.most < 2 * CARRIES
    assert all(later >= earlier - 0.01 for earlier, later in pairwise(curve.missed))
    assert curve.histogram.sum(axis=1) == pytest.approx(1.0)
    assert curve.each.media_items == pytest.approx(0.1, abs=0.03)


def test_it_agrees_with_request_by_request(curve: Curve) -> None:
    seconds, low, high = 3600.0, 100.0, 220.0
    shape = sine(low, high, seconds)
    at = arrivals_at(shape, seconds, seed=4)
    arrivals = Arrivals.of(at, 500, 20).with_media(0.1, 4)
    exact = play(Product(), arrivals, WORLD, length=seconds, initial=6, preroll=0.0).outcome
    rates = shape(np.arange(0.5, seconds / TICK_SECONDS) * TICK_SECONDS)
    fluid = flow(DEFAULT, rates, curve, WORLD, initial=6)
    assert fluid == flow(DEFAULT, rates, curve, WORLD, initial=6), "the same every time"
    assert fluid.attainment == pytest.approx(exact.attainment, abs=0.03)
    assert fluid.gpu_hours == pytest.approx(exact.gpu_hours, rel=0.08)
    assert max(fluid.replicas) == pytest.approx(max(exact.replicas), abs=2)


def test_ten_thousand_engines(curve: Curve) -> None:
    """Towards the noon of a day that needs 2,500 engines at night and 8,000 then, by 220,000 requests a second."""
    policy = replace(DEFAULT, maximum=20_000, ttft=Slo(95, 0.3))
    rates = sine(70_000, 220_000, 86_400)(np.arange(39_600.0, 43_200.0, TICK_SECONDS))
    found = flow(policy, rates, curve, WORLD, initial=10_000)
    assert 7000 < min(found.replicas) < max(found.replicas) < 10_001
    assert found.attainment > 0.95


def test_overload_waits_and_misses(curve: Curve) -> None:
    policy = replace(DEFAULT, minimum=4, maximum=4)
    found = flow(policy, np.full(40, 4 * curve.most * 1.2), curve, WORLD, initial=4)
    assert found.attainment < 0.1
    assert set(found.replicas) == {4}
