"""The scaling rule: what it does tick by tick, and what it never does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling import (
    Fleet,
    Memory,
    Missing,
    MissingReason,
    Policy,
    Reason,
    Slo,
    Verdict,
    Window,
    decide,
    judge,
)
from gemma_operator.scaling.decide import wilson

SLO = Slo(95, 0.3)
POLICY = Policy(1, 8, SLO, window_seconds=60, scale_down_after_seconds=300, cold_start_deadline_seconds=900)
TICK = 15
DOWN = Missing(MissingReason.QUERY_FAILED, "Prometheus is down")


def window(samples=600.0, misses=0.0, *, high=None, rate=None, running=20.0, waiting=0.0, throughout=0.0) -> Window:
    return Window(
        seconds=60,
        samples=samples,
        misses_low=misses,
        misses_high=misses if high is None else high,
        p95_seconds=0.2 if samples else None,
        requests_per_second=samples / 60 if rate is None else rate,
        waiting=waiting,
        running=running,
        waiting_throughout=throughout,
    )


GOOD = window(600, 0)
BAD = window(600, 60)
AWFUL = window(600, 400)
IDLE = window(0, 0, running=0)
STUCK = window(0, 0, waiting=9, throughout=4)


class Pool:
    """A pool whose Pods become Ready at once, or when a test says so."""

    def __init__(self, replicas: int, policy: Policy = POLICY, start: float = 1_000_000) -> None:
        self.policy, self.now, self.memory = policy, start, Memory()
        self.desired = self.ready = replicas
        self.rolling_out = self.slow = False
        self.log: list[tuple[float, Reason, int]] = []

    def tick(self, seen, seconds: float = TICK):
        self.now += seconds
        fleet = Fleet(self.desired, self.ready, frozenset(map(str, range(self.ready))), self.rolling_out)
        decision, self.memory = decide(self.policy, fleet, seen, self.memory, self.now)
        self.desired = decision.replicas
        self.ready = min(self.ready, self.desired) if self.slow else self.desired
        self.log.append((self.now, decision.reason, decision.replicas))
        return decision

    def run(self, seen, seconds: float):
        return [self.tick(seen) for _ in range(round(seconds / TICK))][-1]

    def settle(self, seen=GOOD):
        self.run(seen, self.policy.window_seconds + TICK)
        return self


@pytest.mark.parametrize(
    ("samples", "misses", "high", "verdict"),
    [
        (0, 0, 0, Verdict.UNDETERMINED),
        (20, 2, 2, Verdict.UNDETERMINED),
        (20, 3, 3, Verdict.MISSED),
        (60, 5, 5, Verdict.UNDETERMINED),
        (60, 6, 6, Verdict.MISSED),
        (60, 0, 0, Verdict.MET),
        (60, 1, 1, Verdict.UNDETERMINED),
        (300, 8, 8, Verdict.MET),
        (300, 9, 9, Verdict.UNDETERMINED),
        (300, 22, 22, Verdict.MISSED),
        (300, 0, 100, Verdict.UNDETERMINED),
        (300, 8, 21, Verdict.UNDETERMINED),
    ],
)
def test_verdicts_need_proof(samples, misses, high, verdict):
    assert judge(window(samples, misses, high=high), SLO).verdict is verdict


@settings(deadline=None)
@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_hold_the_share(counts):
    low, high = wilson(*counts)
    assert 0 <= low <= counts[0] / counts[1] + 1e-12
    assert counts[0] / counts[1] - 1e-12 <= high <= 1


@pytest.mark.parametrize(
    ("percentile", "misses", "verdict"), [(100, 1, Verdict.MISSED), (0, 600, Verdict.UNDETERMINED)]
)
def test_extreme_percentiles(percentile, misses, verdict):
    assert judge(window(600, misses), Slo(percentile, 0.3)).verdict is verdict


@pytest.mark.parametrize("seen", [GOOD, AWFUL, IDLE, DOWN])
@pytest.mark.parametrize(("desired", "to", "reason"), [(0, 2, "BelowMinimum"), (9, 4, "AboveMaximum")])
def test_bounds_win_at_once_with_and_without_metrics(seen, desired, to, reason):
    decision = Pool(desired, replace(POLICY, minimum=2, maximum=4)).tick(seen)
    assert (decision.replicas, decision.reason) == (to, reason)


@pytest.mark.parametrize(
    ("replicas", "seen", "to", "reason"),
    [
        (1, BAD, 2, Reason.SLO_MISSED),
        (4, BAD, 5, Reason.SLO_MISSED),
        (1, AWFUL, 2, Reason.SLO_MISSED),
        (4, AWFUL, 6, Reason.SLO_MISSED),
        (5, AWFUL, 8, Reason.SLO_MISSED),
        (7, AWFUL, 8, Reason.SLO_MISSED),
        (8, AWFUL, 8, Reason.AT_MAXIMUM),
        (2, STUCK, 3, Reason.QUEUE_STUCK),
        (8, STUCK, 8, Reason.AT_MAXIMUM),
        (2, window(0, 0, waiting=9, throughout=0), 2, Reason.STEADY),
        (2, GOOD, 2, Reason.STEADY),
        (2, window(30, 2), 2, Reason.STEADY),
        (2, DOWN, 2, Reason.METRICS_MISSING),
    ],
)
def test_a_settled_pool(replicas, seen, to, reason):
    decision = Pool(replicas).settle().tick(seen)
    assert (decision.replicas, decision.reason) == (to, reason)


def test_messages_say_the_numbers():
    pool = Pool(2).settle()
    assert pool.tick(BAD).message == (
        "2 -> 3 replicas: 60 of 600 requests in 60 s took over 300 ms to the first token (p95 about 200 ms); "
        "8.2% to 12.2% miss, 5.0% may: SLO missed"
    )
    assert pool.tick(BAD).message == "held at 3: a judgement needs all replicas Ready for 60 s"
    assert Pool(2).settle().tick(DOWN).message == "held at 2: Prometheus is down (QueryFailed)"
    assert "0 to 9 of 30 requests" in Pool(2).settle().tick(window(30, 0, high=9)).message
    assert "no requests in 60 s" in Pool(1).settle().tick(IDLE).message


def test_old_misses_do_not_fire_twice():
    """Pods are Ready at once, but for one window the samples still come from before."""
    pool = Pool(1).settle()
    assert pool.tick(BAD).replicas == 2
    assert {pool.tick(BAD).reason for _ in range(4)} == {Reason.SETTLING}
    assert pool.desired == 2
    assert pool.tick(BAD).replicas == 3


def test_pending_pods_stop_a_cascade_until_the_deadline():
    pool = Pool(2).settle()
    pool.slow = True
    pool.run(AWFUL, 14 * 60)
    assert pool.desired == 3
    assert pool.log[-1][1] is Reason.PODS_PENDING
    pool.run(AWFUL, 2 * 60)
    assert pool.desired == 5


def test_flapping_pods_do_not_hold_for_ever():
    """Overload makes readiness probes fail: the pool never settles, yet has to grow."""
    pool = Pool(2).settle()
    pool.slow = True
    for _ in range(70):
        pool.ready = 3 - pool.ready
        pool.tick(AWFUL)
    assert pool.desired == 3


def unseen(replicas, seen):
    """A pool whose last decision is not on the Deployment: on its way, failed once, or undone by someone."""
    pool = Pool(replicas).settle()
    assert any(pool.tick(seen).replicas != replicas for _ in range(30))
    pool.desired = pool.ready = replicas
    return pool


@pytest.mark.parametrize(("replicas", "seen", "wanted"), [(1, BAD, 2), (8, IDLE, 7)])
def test_a_change_not_yet_seen_is_asked_for_again(replicas, seen, wanted):
    """A hold in between must not take it back; after a window it takes new evidence."""
    pool = unseen(replicas, seen)
    for _ in range(3):
        decision = pool.tick(seen)
        assert (decision.replicas, decision.reason) == (wanted, Reason.APPLYING)
        pool.desired = pool.ready = replicas
    assert pool.tick(seen).reason is Reason.SETTLING


@pytest.mark.parametrize(
    ("replicas", "first", "then", "wanted"), [(1, BAD, DOWN, 2), (8, IDLE, DOWN, 8), (8, IDLE, BAD, 8)]
)
def test_only_more_is_asked_for_again_against_the_evidence(replicas, first, then, wanted):
    assert unseen(replicas, first).tick(then).replicas == wanted


def test_a_change_not_yet_seen_stays_within_new_bounds():
    pool = Pool(4).settle()
    assert pool.tick(AWFUL).replicas == 6
    pool.desired, pool.policy = 4, replace(POLICY, maximum=5)
    assert pool.tick(AWFUL).replicas == 5


def test_a_rollout_freezes_both_ways():
    for seen in (AWFUL, IDLE):
        pool = Pool(3).settle()
        pool.rolling_out = True
        assert pool.run(seen, 800).reason is Reason.ROLLING_OUT
        assert pool.desired == 3


def test_a_pool_without_slo_is_left_alone():
    pool = Pool(3, replace(POLICY, slo=None))
    for seen in (GOOD, AWFUL, IDLE, DOWN):
        assert pool.run(seen, 1200).reason is Reason.NO_SLO
    assert pool.desired == 3


def learned(replicas: int, met: float) -> Pool:
    """A pool that has carried `met` requests/s on each of its engines within the SLO."""
    return Pool(replicas).settle(window(met * replicas * 60, 0))


def test_scale_down_takes_a_full_history_then_one_at_a_time():
    pool = learned(4, met=10)
    start = pool.now
    pool.run(window(60 * 10), 3000)
    steps = [(at, replicas) for at, reason, replicas in pool.log if reason is Reason.LOW_LOAD]
    assert [replicas for _, replicas in steps] == [3, 2]
    assert steps[0][0] - start >= 300
    assert steps[1][0] - steps[0][0] >= 300 + 60


def test_a_smaller_fleet_must_have_headroom():
    """8/s on 1 engine is under 90 % of the 10/s that an engine carried; 10/s and 9.1/s are not."""
    for total, to in ((8.9, 1), (9.1, 2), (10, 2)):
        pool = learned(2, met=10)
        pool.run(window(60 * total), 3000)
        assert pool.desired == to, total


def test_the_peak_of_the_history_counts_not_its_end():
    pool = learned(2, met=10)
    for _ in range(20):
        pool.run(window(60 * 12), TICK)
        pool.run(window(60 * 1), 240)
    assert pool.desired == 2
    assert pool.run(window(60 * 1), 330).replicas == 1


@pytest.mark.parametrize("broken", [DOWN, BAD])
def test_one_miss_or_gap_starts_the_history_again(broken):
    pool = Pool(8).settle()
    pool.run(IDLE, 290)
    pool.tick(broken)
    assert pool.run(IDLE, 300).replicas == 8
    assert pool.run(IDLE, 60).replicas == 7


def test_undetermined_windows_that_add_up_to_a_miss_do_not_scale_down():
    pool = Pool(3).settle()
    pool.run(window(30, 2, running=0.5), 1200)
    assert pool.desired == 3


def test_coarse_edges_do_not_scale_down():
    pool = Pool(3).settle()
    pool.run(window(600, 0, high=200, running=0.5), 1200)
    assert pool.desired == 3


def test_light_load_scales_down_without_having_seen_a_peak():
    """After an operator restart at night nothing is known of what an engine carries."""
    pool = Pool(4).settle(window(18, 0, running=0.6))
    pool.run(window(18, 0, running=0.6), 3000)
    assert pool.desired == 1
    pool = Pool(4).settle(window(600, 0, running=8))
    pool.run(window(600, 0, running=8), 3000)
    assert pool.desired == 4


def test_a_load_that_was_too_much_is_not_tried_again_for_an_hour():
    pool = Pool(1).settle(window(60 * 10))
    pool.tick(window(60 * 8, 100))
    assert pool.desired == 2
    pool.run(window(60 * 7.5), 3400)
    assert pool.desired == 2
    pool.run(window(60 * 7.5), 600)
    assert pool.desired == 1


def test_never_to_zero():
    pool = Pool(2, replace(POLICY, minimum=0)).settle(IDLE)
    pool.run(IDLE, 7200)
    assert pool.desired == 1


@pytest.mark.parametrize("jump", [-86_400, 3600])
@pytest.mark.parametrize("seen", [IDLE, BAD])
def test_a_clock_that_jumps_moves_nothing(jump, seen):
    pool = Pool(4).settle()
    pool.run(IDLE, 270)
    pool.now += jump
    assert pool.tick(seen).replicas == 4
    assert pool.run(BAD, 75).replicas == 5, "a window later it works again"


def test_an_outage_at_the_peak_changes_nothing_and_recovers_within_two_windows():
    pool = Pool(3).settle(window(1800))
    assert pool.run(DOWN, 600).replicas == 3
    assert pool.run(BAD, 60).replicas == 4


observations = st.one_of(
    st.just(DOWN),
    st.builds(
        lambda n, share, spread, running, waiting, throughout: window(
            n, n * share, high=n * min(1, share + spread), running=running, waiting=waiting, throughout=throughout
        ),
        st.integers(0, 5000),
        st.floats(0, 1),
        st.sampled_from([0, 0, 0.3]),
        st.floats(0, 200),
        st.floats(0, 50),
        st.sampled_from([0, 0, 3]),
    ),
)
ticks = st.lists(
    st.tuples(observations, st.booleans(), st.booleans(), st.sampled_from([5, 15, 15, 15, 60, 400, -50])), max_size=80
)


@settings(max_examples=150, deadline=None)
@given(
    bounds=st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted),
    start=st.integers(0, 9),
    script=ticks,
    has_slo=st.booleans(),
)
def test_what_never_happens(bounds, start, script, has_slo):
    low, high = bounds
    policy = replace(POLICY, minimum=low, maximum=high, slo=SLO if has_slo else None)
    pool = Pool(start, policy)
    pool.slow = True
    good_since = math.inf
    began = pool.now
    for seen, gets_ready, rolls, seconds in script:
        if gets_ready:
            pool.ready = pool.desired
        pool.rolling_out = rolls and gets_ready
        before, pending, rolling = pool.desired, pool.ready < pool.desired, pool.rolling_out
        decision = pool.tick(seen, seconds)
        assert low <= decision.replicas <= high
        inside = low <= before <= high
        if inside and isinstance(seen, Missing):
            assert decision.replicas == before
        if inside and (pending or rolling) and pool.now - began < policy.cold_start_deadline_seconds:
            assert decision.replicas <= before
        if inside and (pending or rolling or not has_slo):
            assert decision.replicas >= before
        missed = not isinstance(seen, Missing) and judge(seen, SLO).verdict is Verdict.MISSED
        if isinstance(seen, Missing) or missed or pending or rolling or seconds < 0:
            good_since = math.inf
        elif math.isinf(good_since):
            good_since = pool.now
        if inside and decision.replicas < before:
            assert decision.replicas == before - 1
            assert pool.now - good_since >= policy.scale_down_after_seconds
            good_since = math.inf
        assert decision.message
        assert len(pool.memory.quiet) <= 2 + policy.scale_down_after_seconds / 5


@settings(deadline=None)
@given(seen=observations, replicas=st.integers(1, 8), met=st.floats(0, 1000))
def test_an_empty_memory_never_moves_a_pool_within_its_bounds(seen, replicas, met):
    """Just restarted: whatever is seen first, the pool stays as it is."""
    fleet = Fleet(replicas, replicas, frozenset(), rolling_out=False)
    for memory in (Memory(), Memory(met_load=met)):
        assert decide(POLICY, fleet, seen, memory, 1e9)[0].replicas == replicas


@settings(deadline=None)
@given(samples=st.integers(0, 2000), share=st.floats(0, 1), more=st.floats(0, 1), replicas=st.integers(1, 8))
def test_more_misses_never_mean_fewer_replicas(samples, share, more, replicas):
    def replicas_at(missing_share):
        pool = Pool(replicas).settle(window(5000, 0))
        pool.run(IDLE, 330 if replicas > 1 else TICK)
        return pool.tick(window(samples, samples * missing_share)).replicas

    assert replicas_at(max(share, more)) >= replicas_at(min(share, more))
