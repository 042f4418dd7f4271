"""What is asked for by the demand: the load with its headroom, queues, what was refused, and the gateway's count."""

import math
from dataclasses import replace

import pytest

from gemma_operator.scaling.counters import Missing, MissingReason
from gemma_operator.scaling.decision import Reason
from tests.support.scaling import CAPACITY, DOWN, POLICY, Pool, blind, rate, seen, smooth


@pytest.mark.parametrize(
    ("load", "replicas"), [(0.1, 1), (0.95, 1), (0.98, 2), (2.0, 2), (2.1, 3), (4.1, 4), (8.7, 8), (9.2, 9), (50, 10)]
)
def test_up_to_what_the_demand_needs(load, replicas):
    """One engine carries 0.96, two 1.02 each, eight 1.10 each: more engines need less reserve each."""
    pool = smooth(1)
    pool.run(seen(rate(load)), 60)
    assert pool.desired == replicas


def test_the_target_is_absolute_so_pending_pods_cause_no_cascade():
    pool = smooth(2)
    pool.slow = True
    pool.run(seen(rate(3.5)), 900)
    assert {decision.replicas for decision in pool.log[3:]} == {4}


def test_one_step_up_at_most_doubles_large_fleets():
    pool = smooth(1, replace(POLICY, maximum=1000))
    assert pool.tick(seen(rate(900))).replicas == 5
    assert [pool.tick(seen(rate(900))).replicas for _ in range(3)] == [10, 20, 40]


def test_headroom_before_anything_is_known_is_half_of_the_load():
    pool = Pool(1)
    pool.tick(seen(rate(1.5)))
    assert pool.log[-1].terms.headroom == pytest.approx(0.75)
    assert pool.desired == math.ceil(2.25 / CAPACITY)


def test_media_raise_the_demand_at_the_same_request_rate():
    loads = {}
    for media in (0.1, 0.3):
        pool = smooth(4)
        loads[media] = pool.run(seen(60, media=media), 300).terms
    assert loads[0.3].requests == pytest.approx(loads[0.1].requests)
    assert loads[0.3].level > 1.2 * loads[0.1].level
    assert loads[0.3].media_share == pytest.approx(0.3)


def test_refused_and_queued_requests_are_demand():
    pool = smooth(2)
    decision = pool.run(seen(rate(1.0), refused=rate(1.2), growth=rate(1.0)), 60)
    assert decision.terms.fast == pytest.approx(3.2)
    assert decision.replicas == 4


@pytest.mark.parametrize("share", [0.04, 0.5])
def test_what_is_refused_does_not_show_what_engines_can_carry(share):
    """Limits cut queues short: read as a saturated fleet's, bursts of seconds cut the correction to 0.62, for nothing."""
    pool = smooth(2)
    pool.run(seen(rate(1.0), refused=rate(1.0) * share / (1 - share)), 300)
    assert pool.memory.learned.correction >= 1.0


def test_the_gateways_count_wins_over_the_engines():
    assert smooth(2).run(seen(rate(1.0), offered=rate(3.0)), 60).terms.fast == pytest.approx(3.0)
    unknown = Missing(MissingReason.NO_SERIES, "no such series")
    assert smooth(2).run(seen(rate(1.0), offered=unknown), 60).terms.fast == pytest.approx(1.0)


def test_blind_the_gateways_count_may_raise_and_never_lowers():
    """What a request costs is known from before; without that, or with a count that is missing, it holds."""
    pool = smooth(2)
    pool.run(seen(rate(1.0)), 300)
    raised = pool.tick(replace(blind(), offered=rate(3.0)))
    assert (raised.replicas, raised.reason) == (3, Reason.DEMAND)
    assert raised.message.startswith("2 -> 3 replicas: the gateway counts 98 requests/s, and Prometheus is down")
    assert pool.tick(replace(blind(), offered=rate(0.1))).replicas == 3
    assert pool.tick(replace(blind(), offered=DOWN)).replicas == 3
    assert pool.tick(replace(blind(), offered=1e12)).replicas == 7, "a wild count is held in by the step"
    unknown = Pool(2)
    assert unknown.run(replace(blind(), offered=rate(9.0)), 300).replicas == 2
    waiting = smooth(2)
    waiting.run(seen(rate(1.0)), 300)
    waiting.more = {"unschedulable": 1}
    assert waiting.tick(replace(blind(), offered=rate(9.0))).replicas == 2


def test_a_pool_that_has_lent_engines_keeps_them_beside_its_own_work_and_lowers_nothing():
    pool = smooth(3)
    pool.more = {"away": 1}
    decision = pool.run(seen(rate(0.3)), 1200)
    assert (decision.replicas, decision.reason, decision.away) == (3, Reason.COOLING_DOWN, 1)
    assert decision.message == "held at 3: 2 would do, but what is lent to another pool (1) comes back first"
    decision = pool.run(seen(rate(2.6)), 60)
    assert (decision.wanted, decision.replicas) == (3, 4), "what is away does none of this pool's work"


def test_a_queue_gets_engines_only_if_the_others_would_not_drain_it_meanwhile():
    assert smooth(4).run(seen(rate(1.5), waiting=1000), 60).terms.for_backlog == 0
    assert smooth(4).run(seen(rate(1.8), waiting=30_000), 60).terms.for_backlog == 3
