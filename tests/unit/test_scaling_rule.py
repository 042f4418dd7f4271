"""The scaling rule: what it does tick by tick, and what it never does."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling.decision import Kind, Reason
from gemma_operator.scaling.memory import Memory, restore
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.pool import Mode, Slo
from gemma_operator.scaling.profile import DEFAULT_PROFILE
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling.schedule import Slot
from tests.support.scaling import (
    COLD_START,
    POLICY,
    SMOOTH,
    START,
    TICK,
    Pool,
    blind,
    fleet,
    rate,
    seen,
    smooth,
)


@pytest.mark.parametrize("what", [seen(10), seen(1000), blind(), blind(Metrics.BLIND_LONG)])
@pytest.mark.parametrize(("desired", "to", "reason"), [(0, 2, "BelowMinimum"), (9, 4, "AboveMaximum")])
def test_bounds_win_at_once_with_and_without_metrics(what, desired, to, reason):
    decision = Pool(desired, replace(POLICY, minimum=2, maximum=4)).tick(what)
    assert (decision.replicas, decision.reason) == (to, reason)


def test_at_maximum_it_says_so():
    pool = smooth(10)
    decision = pool.run(seen(rate(20)), 60)
    assert (decision.replicas, decision.reason) == (10, Reason.AT_MAXIMUM)
    assert "the maximum is 10" in decision.message


def test_down_one_at_a_time_after_a_whole_cold_start():
    pool = smooth(4)
    start = pool.now
    pool.run(seen(rate(0.5)), 1200)
    downs = [(d.at - start, d.replicas) for d in pool.log if d.reason is Reason.LOW_DEMAND]
    assert [replicas for _, replicas in downs] == [3, 2, 1]
    assert downs[0][0] >= COLD_START
    assert all(later - earlier >= 60 for (earlier, _), (later, _) in itertools.pairwise(downs))


def test_with_admission_limits_none_goes_before_the_load_is_known():
    """Half an hour of ticks, and the cold start and the reaction before the first one is learnt."""
    shedding = replace(POLICY, sheds=True)
    pool = Pool(4, shedding)
    start = pool.now
    pool.run(seen(rate(0.5)), 3600)
    first = next(decision for decision in pool.log if decision.reason is Reason.LOW_DEMAND)
    assert first.at - start >= 1800 + COLD_START
    assert pool.desired < 4
    idle = Pool(4, shedding)
    idle.run(seen(0), 900)
    assert idle.desired < 4, "nothing is learnt where nothing comes"


def test_the_peak_of_the_history_counts():
    pool = smooth(4)
    for _ in range(10):
        pool.run(seen(rate(0.5)), 240)
        pool.run(seen(rate(3.5)), 30)
    assert pool.desired == 4


def test_the_smaller_fleet_needs_slack():
    for load, replicas in ((0.89, 1), (0.94, 2)):
        pool = smooth(2)
        pool.run(seen(rate(load)), 900)
        assert pool.desired == replicas, load


def test_idle_is_proven_by_counters():
    pool = smooth(2)
    pool.run(seen(0), 400)
    assert [d.reason for d in pool.log if d.replicas < d.desired] == [Reason.IDLE]


@pytest.mark.parametrize(
    ("hindrance", "more"),
    [
        ({"stuck": True}, {}),
        ({"waiting": 100.0}, {}),
        ({}, {"rolling_out": True}),
        ({"metrics": Metrics.PARTIAL, "coverage": 0.75}, {}),
    ],
)
def test_what_forbids_a_scale_down(hindrance, more):
    pool = smooth(4)
    pool.more = more
    pool.run(seen(rate(0.7), **hindrance), 240)
    pool.run(seen(rate(1.2), **hindrance), 1200)
    assert pool.desired == 4


def test_a_missed_slo_forbids_a_scale_down_where_engines_help():
    """Until it is tried whether they do."""
    pool, well = smooth(4), smooth(4)
    pool.run(seen(rate(2.3), missed=0.07), 600)
    assert min(d.replicas for d in pool.log) == 4
    assert well.run(seen(rate(2.3)), 600).replicas < 4


def test_pending_pods_forbid_a_scale_down_unless_no_node_has_room():
    pool = smooth(4)
    pool.ready, pool.slow = 3, True
    pool.run(seen(rate(0.5)), 900)
    assert pool.desired == 4
    pool.more = {"unschedulable": 1}
    pool.run(seen(rate(0.5)), 60)
    assert pool.desired == 3


def test_no_room_means_no_more_are_asked_for():
    pool = smooth(3)
    pool.ready, pool.slow, pool.more = 2, True, {"unschedulable": 1}
    decision = pool.run(seen(rate(5)), 3600)
    assert {d.replicas for d in pool.log} == {3}
    assert decision.reason is Reason.NO_CAPACITY
    assert Kind.NO_CAPACITY in [finding.kind for finding in decision.findings]


@pytest.mark.parametrize("gap", [blind(), seen(1, metrics=Metrics.PARTIAL, coverage=0.5)])
def test_one_gap_starts_the_history_again(gap):
    pool = smooth(4)
    pool.run(seen(rate(0.5)), 285)
    pool.tick(gap)
    pool.run(seen(rate(0.5)), 285)
    assert pool.desired == 4
    pool.run(seen(rate(0.5)), 30)
    assert pool.desired == 3


def test_an_outage_at_the_peak_changes_nothing_and_is_over_within_two_windows():
    pool = smooth(4)
    pool.run(seen(rate(3.5)), 600)
    assert pool.run(blind(), 600).reason is Reason.METRICS_MISSING
    assert {d.replicas for d in pool.log} == {4}
    assert pool.run(seen(rate(4.5)), 60).replicas == 5


def test_blind_for_long_goes_to_what_this_hour_usually_needs():
    pool = smooth(2)
    pool.memory = Memory(replace(SMOOTH, hours=(4.5,) * 24))
    assert pool.tick(blind()).replicas == 2
    decision = pool.tick(blind(Metrics.BLIND_LONG))
    assert (decision.replicas, decision.reason) == (5, Reason.SAFE_FLOOR)
    assert pool.tick(blind(Metrics.BLIND_LONG)).reason is Reason.METRICS_MISSING


def test_partial_metrics_raise_by_one_and_lower_nothing():
    pool = smooth(2)
    assert pool.tick(seen(rate(6), metrics=Metrics.PARTIAL, coverage=0.5)).replicas == 3


def test_a_restart_holds_and_keeps_what_was_learnt():
    pool = smooth(4)
    pool.run(seen(rate(1.5)), 270)
    saved = pool.memory.save()
    pool.memory = restore(saved)
    assert pool.memory.learned.rises[0][0] == -1000
    pool.run(seen(rate(1.5)), 285)
    assert {d.replicas for d in pool.log} == {4}
    pool.run(seen(rate(1.5)), 30)
    assert pool.desired == 3


@pytest.mark.parametrize("jump", [-86_400, 3600])
def test_a_clock_that_jumps_lowers_nothing(jump):
    pool = smooth(4)
    pool.run(seen(rate(0.5)), 290)
    pool.now += jump
    pool.run(seen(rate(0.5)), 270)
    assert pool.desired == 4


@pytest.mark.parametrize(
    ("mode", "reason"), [(Mode.OFF, Reason.MODE_OFF), (Mode.EXTERNAL, Reason.EXTERNAL), (Mode.DRY_RUN, Reason.DEMAND)]
)
def test_modes_that_write_nothing(mode, reason):
    pool = smooth(2, replace(POLICY, mode=mode))
    decision = pool.run(seen(rate(5)), 60)
    assert (decision.replicas, decision.reason) == (2, reason)
    assert decision.wanted == 5
    assert decision.dry_run == (mode is Mode.DRY_RUN)
    if mode is Mode.DRY_RUN:
        assert decision.message.startswith("would be 2 -> 5 replicas")


def test_modes_that_write_nothing_do_not_clamp_either():
    for mode in (Mode.OFF, Mode.EXTERNAL, Mode.DRY_RUN):
        assert Pool(20, replace(POLICY, mode=mode)).tick(seen(1)).replicas == 20


def test_a_schedule_raises_the_floor_one_cold_start_early_and_holds_it():
    slot = Slot(frozenset(range(7)), 8 * 60, 9 * 60, 5)
    eight = START - START % 86_400 + 8 * 3600
    pool = Pool(1, replace(POLICY, schedule=(slot,)), start=eight - 600)
    pool.memory = Memory(SMOOTH)
    while pool.now < eight + 1800:
        pool.tick(seen(1))
    first = next(d for d in pool.log if d.replicas > 1)
    assert (first.replicas, first.reason) == (5, Reason.BELOW_MINIMUM)
    assert eight - 330 <= first.at <= eight - 270
    assert pool.desired == 5
    assert "the schedule asks for 5" in first.message


def test_a_stale_profile_is_planned_with_more_care():
    policy = replace(POLICY, profile=replace(DEFAULT_PROFILE, stale=True))
    decision = smooth(1, policy).run(seen(rate(1.8)), 60)
    assert decision.replicas == 3
    assert [finding.kind for finding in decision.findings] == [Kind.PROFILE_STALE]


def test_findings_say_what_to_do():
    decision = smooth(2).tick(seen(1, skewed="uid-7"))
    assert "uid-7" in decision.findings[0].message
    assert "replicas are held" in smooth(2).tick(blind()).findings[0].message


def test_an_itl_objective_is_judged_beside():
    pool = smooth(2, replace(POLICY, itl=Slo(95, 0.05)))
    decision = pool.run(seen(10, itl=seen(10, missed=0.5).ttft), 60)
    assert decision.itl.verdict == "Missed"
    assert decision.judgement.verdict == "Met"


observations = st.one_of(
    st.sampled_from([blind(), blind(Metrics.BLIND_LONG)]),
    st.builds(
        lambda load, missed, waiting, stuck, partial: seen(
            rate(load),
            missed=missed,
            waiting=waiting,
            stuck=stuck,
            metrics=Metrics.PARTIAL if partial else Metrics.FULL,
            coverage=0.6 if partial else 1.0,
        ),
        st.floats(0, 12),
        st.sampled_from([0, 0, 0.03, 0.3, 1]),
        st.sampled_from([0, 0, 50]),
        st.booleans(),
        st.booleans(),
    ),
)
ticks = st.lists(
    st.tuples(
        observations, st.booleans(), st.booleans(), st.integers(0, 2), st.sampled_from([5, 15, 15, 15, 60, 400, -50])
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(bounds=st.tuples(st.integers(1, 6), st.integers(1, 9)).map(sorted), start=st.integers(1, 9), script=ticks)
def test_what_never_happens(bounds, start, script):
    low, high = bounds
    pool = Pool(start, replace(POLICY, minimum=low, maximum=high))
    pool.slow = True
    whole_since = math.inf
    for what, gets_ready, rolls, unschedulable, seconds in script:
        if gets_ready:
            pool.ready = pool.desired
        pending = pool.desired - pool.ready
        pool.more = {"rolling_out": rolls, "unschedulable": min(unschedulable, pending)}
        before = pool.desired
        decision = pool.tick(what, seconds)
        assert low <= decision.replicas <= high
        if what.metrics is not Metrics.FULL or not 0 <= seconds <= 120:
            whole_since = math.inf
        elif math.isinf(whole_since):
            whole_since = pool.now
        if not low <= before <= high:
            continue
        if decision.replicas < before:
            assert before - decision.replicas == 1
            assert what.metrics is Metrics.FULL
            assert not rolls
            assert pending <= min(unschedulable, pending)
            assert not what.stuck
            assert pool.now - whole_since >= 120
        if what.metrics is Metrics.BLIND or pool.more["unschedulable"]:
            assert decision.replicas <= before
        if what.metrics is Metrics.PARTIAL:
            assert decision.replicas <= before + 1
        assert decision.message


@settings(max_examples=50, deadline=None)
@given(loads=st.lists(st.floats(0.1, 6), min_size=1, max_size=30), more=st.floats(0.1, 5))
def test_more_load_never_means_fewer_replicas(loads, more):
    def replicas(factor):
        pool = smooth(3)
        return [pool.tick(seen(rate(load * factor))).replicas for load in loads]

    assert all(a <= b for a, b in zip(replicas(1), replicas(1 + more), strict=True))


def test_the_same_inputs_give_the_same_decision():
    pool = smooth(3)
    pool.run(seen(rate(2)), 600)
    inputs = (POLICY, fleet(3), seen(rate(2)), pool.memory, pool.now + TICK)
    assert decide(*inputs) == decide(*inputs)
