"""Other autoscalers' formulas on their sources' own examples, and a small comparison from end to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, Scrape
from gemma_operator.scaling.pool import Fleet, Member
from gemma_operator.simulation import peers
from gemma_operator.simulation.bound import clairvoyant
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.measures import Run, interval, summarise
from gemma_operator.simulation.policies import Product, Static
from gemma_operator.simulation.run import play
from gemma_operator.workload.synthetic import constant, sine, synthetic
from tools.compare.report import page

NOW = 1_700_000_000.0


def fleet(ready: int, desired: int | None = None) -> Fleet:
    members = tuple(Member(f"u{i}", NOW - 900, NOW - 600, NOW - 600) for i in range(ready))
    asked = ready if desired is None else desired
    return Fleet(asked, members, pending=asked - ready)


def reading(waiting: Sequence[float], at: float = NOW, good: float = 0.0, late: float = 0.0) -> Scrape:
    """Engines with these queues; each has so many answers under 0.25 s and between 0.25 and 0.3 s."""
    edges = ((0.05, 0.0), (0.25, good), (0.3, good + late), (0.5, good + late), (math.inf, good + late))
    return Scrape({f"u{i}": EngineCounters(f"u{i}", at, edges, 4.0, queue) for i, queue in enumerate(waiting)})


def test_hpa_takes_latency_for_something_that_replicas_divide() -> None:
    """research/autoscaling.md section 0.1: 5 replicas at 120 ms and a target of 300 ms come to 2; 18 s come to 60 times."""
    hpa = peers.Hpa(lambda seen: None, 0.3)
    assert hpa.proposal(0.12, current=5, ready=5) == 2
    assert hpa.proposal(18.0, current=5, ready=5) == 300
    assert hpa.proposal(0.32, current=5, ready=5) == 5, "within the tolerance of 10 %"


def test_hpa_average_value() -> None:
    hpa = peers.Hpa(lambda seen: None, 5.0, absolute=True)
    assert hpa.proposal(40.0, current=2, ready=2) == 8
    assert hpa.proposal(10.4, current=2, ready=2) == 2


def test_hpa_comes_down_to_the_highest_of_five_minutes() -> None:
    values = iter([40.0, 5.0, 5.0])
    hpa = peers.Hpa(lambda seen: next(values), 5.0, absolute=True)
    assert hpa.replicas(NOW, reading([1]), fleet(8)) == 8
    assert hpa.replicas(NOW + 200, reading([1]), fleet(8)) == 8
    assert hpa.replicas(NOW + 400, reading([1]), fleet(8)) == 1


def test_coarse_edges_alarm_at_283_ms() -> None:
    """Section 2.2: with vLLM's edges 0.25 and 0.5 a p95 under 300 ms is read as one over it."""
    exact, coarse = peers.Seen(), peers.Seen()
    for seen in (exact, coarse):
        seen.take(NOW, reading([0.0]))
        seen.take(NOW + 60, reading([0.0], NOW + 60, good=930, late=70))
    assert (exact.p95() or 0) < 0.3 < (coarse.p95(peers.DEFAULT_EDGES) or 0)


@pytest.mark.parametrize(("null_is_zero", "kept"), [(True, False), (False, True)])
def test_keda_takes_nothing_for_zero_unless_told_otherwise(null_is_zero: bool, kept: bool) -> None:
    policy = peers.keda_waiting(null_is_zero=null_is_zero)
    for step in range(30):
        replicas = policy.replicas(NOW + step * 15, Scrape({}), fleet(6))
    assert (replicas == 6) is kept


def test_keda_holds_when_the_query_fails() -> None:
    down = Missing(MissingReason.QUERY_FAILED, "down")
    assert peers.keda_waiting().replicas(NOW, down, fleet(6)) == 6


def test_keda_falls_back_after_more_than_three_errors() -> None:
    """pkg/fallback: what is reported is target x replicas; an empty result is no error."""
    down = Missing(MissingReason.QUERY_FAILED, "down")
    policy = peers.keda_waiting(fallback=6)
    path = [policy.replicas(NOW + step * 15, down, fleet(2)) for step in range(5)]
    assert path == [2, 2, 2, 6, 6]
    empty = peers.keda_waiting(fallback=6)
    assert [empty.replicas(NOW + step * 60, Scrape({}), fleet(2)) for step in range(7)][-1] == 1


def test_knative_panics_at_twice_and_comes_down_by_half() -> None:
    """autoscaler.go: in panic never fewer; a scale-down at most halves."""
    policy = peers.Knative(10.0)
    assert policy.proposal(NOW, stable=30, panic=30, ready=3) == 3
    assert policy.proposal(NOW + 2, stable=30, panic=65, ready=3) == 7
    assert policy.proposal(NOW + 30, stable=20, panic=10, ready=3) == 7
    assert policy.proposal(NOW + 90, stable=1, panic=1, ready=8) == 4


@pytest.mark.parametrize(
    ("queues", "step"), [([4.0, 3.0], 1), ([9.0, 8.0], 1), ([0.0, 0.0], -1), ([1.2, 1.2], 0), ([0.0], 0)]
)
def test_wva_v1_keeps_spare_room_in_the_queues(queues: list[float], step: int) -> None:
    """Spare of less than 3 of 5 on average: one up. Down only where N - 1 would keep it and two aren't saturated."""
    assert peers.SaturationV1().proposal(queues) == step


def test_wva_v1_waits_for_pending_replicas() -> None:
    assert peers.SaturationV1().replicas(NOW, reading([9.0]), fleet(1, desired=2)) == 2


def test_dynamo_goes_down_only_where_the_rest_would_carry_it() -> None:
    """dynamo#9294: the load of N on N - 1 replicas, under 80 % of what the target leaves."""
    policy = peers.Dynamo(per_replica=20, seconds_per_request=0.05)
    assert policy.proposal([6.0, 0.0]) == 1
    assert policy.proposal([0.0, 0.0]) == -1
    assert policy.proposal([3.0, 3.0]) == 0


def test_rate_feed_forward_counts_what_comes_in_and_holds_its_peak() -> None:
    policy = peers.RateFeedForward(per_replica=10)
    policy.replicas(NOW, reading([0.0]), fleet(1))
    policy.replicas(NOW + 60, reading([0.0], NOW + 60, good=2400), fleet(1))
    assert policy.wanted[-1][1] == 4
    assert policy.replicas(NOW + 120, reading([0.0], NOW + 120, good=2400), fleet(4)) == 4


def test_paired_differences_have_intervals() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.30 / math.sqrt(3))
    assert interval([1.0]).half == math.inf


@dataclass
class Case:
    """A short day, small enough for every run of the tests."""

    seconds: float = 3600.0

    def __post_init__(self) -> None:
        self.arrivals = synthetic(sine(20, 75, self.seconds), self.seconds, seed=3, output_tokens=20).with_media(0.1, 3)


def test_the_comparison_from_end_to_end() -> None:
    """Ours against the static peak and an HPA; the bound is under all of them at equal attainment."""
    case = Case()
    bound = clairvoyant(case.arrivals, case.seconds, World(), most=5)
    runs = []
    for name, make in {"ours": Product, "static": lambda: Static(4), "hpa": lambda: peers.hpa_p95(exact=True)}.items():
        for seed in (0, 1):
            world = World(seed=seed)
            outcome = play(make(), case.arrivals, world, length=case.seconds, initial=2).outcome
            runs.append(Run.of("short day", name, 3, seed, outcome, bound.gpu_hours(outcome.attainment)))
    ours, static, hpa = summarise(runs, "ours")
    assert ours.attainment > 0.96, "the pre-roll knows a falling load only, and then it rises to four times"
    assert ours.gpu_hours < static.gpu_hours
    assert ours.attainment > hpa.attainment
    assert ours.ratio > 0.99, "nothing beats who knows the future"
    assert static.gpu_difference.mean > 0
    shown = page("made by a test", [ours, static, hpa])
    assert "short day" in shown
    assert f"{ours.attainment:.2%}" in shown


def test_constant_load_turns_at_most_twice_an_hour() -> None:
    arrivals = synthetic(constant(60), 5400, seed=5, output_tokens=20).with_media(0.1, 5)
    outcome = play(Product(), arrivals, World(seed=2), length=5400, initial=3).outcome
    assert outcome.reversals <= 3
    assert outcome.attainment > 0.99
