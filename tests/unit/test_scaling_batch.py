"""Batch pools: work by its deadline, and to zero and back."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling import backlog
from gemma_operator.scaling.backlog import required_load
from gemma_operator.scaling.counters import Missing, MissingReason
from gemma_operator.scaling.decision import Kind, Reason
from gemma_operator.scaling.memory import restore
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Policy
from tests.support.scaling import START, TICK, WORK, Pool, blind, seen

HOUR = 3600.0
BATCH = Policy(0, 20, None, deadline_seconds=HOUR, wakes_from_zero=True)
CAPACITY = 0.95 * 1.1
UNKNOWN = Missing(MissingReason.QUERY_FAILED, "the queue's exporter is down")


def empty(waiting: object) -> Observation:
    """What is seen of a pool without engines."""
    return Observation(Metrics.BLIND, backlog=waiting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lots", "load"),
    [
        ((), 0.0),
        (((START + 3000, 1140.0),), 0.5),
        (((START + 3000, 1140.0), (START + 3100, 0.0)), 0.5),
        (((START + 3000, 100.0), (START + 3720, 2900.0)), 1.0),
        (((START + 720, 1.0),), math.inf),
        (((START - 5, 1.0),), math.inf),
    ],
)
def test_the_earliest_deadlines_set_the_pace(lots, load):
    assert required_load(lots, START, HOUR, 0) == pytest.approx(load)


def test_engines_that_must_start_first_have_less_time():
    lots = ((START + 3000, 990.0),)
    assert required_load(lots, START, HOUR, 300) == pytest.approx(0.5)


def test_what_is_done_is_the_earliest_and_what_is_more_has_just_come():
    lots = backlog.update((), 100.0, 0.0, START, HOUR)
    assert [work for _, work in lots] == [100.0]
    later = backlog.update(lots, 120.0, 30.0, START + 600, HOUR)
    assert [work for _, work in later] == [70.0, 50.0]
    assert later[1][0] - later[0][0] == pytest.approx(600)
    assert backlog.update(later, 10.0, 0.0, START + 700, HOUR) == ((later[1][0], 10.0),), "the earliest were taken"
    assert backlog.update(later, 0.0, 0.0, START + 700, HOUR) == ()


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 600)), max_size=40))
def test_lots_always_add_up_and_stay_few(ticks):
    lots, now = (), START
    for waiting, done, seconds in ticks:
        now += seconds
        lots = backlog.update(lots, waiting, done, now, HOUR)
        assert sum(work for _, work in lots) == pytest.approx(waiting, abs=1e-6 * max(1, waiting))
        assert list(lots) == sorted(lots)
    assert len(lots) <= len(ticks) + 1


def test_a_backlog_wakes_a_pool_from_zero():
    pool = Pool(0, BATCH)
    assert pool.tick(empty(0.0)).reason is Reason.STEADY
    decision = pool.tick(empty(1.0))
    assert (decision.replicas, decision.reason) == (1, Reason.BACKLOG)


def test_as_many_engines_as_the_deadline_needs():
    pool = Pool(2, BATCH)
    waiting = 10_000.0
    each = 5e-3 + 500 * 40e-6 + 10 * 0.18e-3 + 0.1 * (30e-3 + 6 * 4e-3 / 3)
    decision = pool.tick(seen(10, backlog=waiting))
    part = HOUR / 24
    due = math.ceil((pool.now + HOUR) / part) * part
    time = due - pool.now - 0.2 * HOUR
    assert decision.wanted == math.ceil(waiting * each / time / CAPACITY)


def test_work_past_its_deadline_asks_for_all_there_is_and_says_so():
    pool = Pool(2, BATCH)
    decision = pool.run(seen(0, backlog=10_000.0), HOUR + 400)
    assert decision.replicas == BATCH.maximum
    assert [finding.kind for finding in decision.findings] == [Kind.DEADLINE_INFEASIBLE]


def test_to_zero_only_after_a_cold_start_without_work_and_only_by_a_source_that_counts_at_zero():
    pool = Pool(2, BATCH)
    pool.run(seen(0, backlog=0.0), 390)
    assert [d.replicas for d in pool.log if d.replicas < d.desired] == [1, 0]
    blindly = Pool(2, replace(BATCH, minimum=1, wakes_from_zero=False))
    blindly.run(seen(0), 900)
    assert blindly.desired == 1


@pytest.mark.parametrize("what", [seen(0, backlog=UNKNOWN), blind(), seen(0, backlog=0.0, metrics=Metrics.PARTIAL)])
def test_an_unknown_backlog_holds(what):
    pool = Pool(3, BATCH)
    pool.run(what, 1200)
    assert pool.desired == 3


def test_an_unknown_backlog_at_zero_holds():
    pool = Pool(0, BATCH)
    decision = pool.run(empty(UNKNOWN), 300)
    assert (decision.replicas, decision.reason) == (0, Reason.METRICS_MISSING)


def test_requests_in_the_engines_are_work_that_waits():
    pool = Pool(1, replace(BATCH, wakes_from_zero=False))
    assert pool.tick(seen(10, waiting=3000.0, running=200.0)).terms.for_demand == 1
    assert pool.tick(seen(10, waiting=300_000.0, running=200.0)).terms.for_demand > 1


def test_deadlines_survive_a_restart():
    pool = Pool(2, BATCH)
    pool.run(seen(1, backlog=5000.0), 300)
    lots = pool.memory.learned.lots
    restored = restore(pool.memory.save()).learned.lots
    assert [(due, pytest.approx(work, abs=0.01)) for due, work in restored] == list(lots)


def test_a_day_of_batch_meets_its_deadlines_with_few_engines():
    """1,000 requests each 10 minutes: the pool neither starves nor keeps more engines than the work needs."""
    pool, waiting, most = Pool(0, replace(BATCH, deadline_seconds=2 * HOUR)), 0.0, 0.0
    engine_hours = 0.0
    for tick in range(int(24 * HOUR / TICK)):
        waiting += 1000 if tick % 40 == 0 else 0
        done = min(waiting, pool.ready * TICK * 1.1 / WORK)
        waiting -= done
        what = seen(done / TICK, backlog=waiting) if pool.ready else empty(waiting)
        late = [finding for finding in pool.tick(what).findings if finding.kind is Kind.DEADLINE_INFEASIBLE]
        assert not late
        most = max(most, pool.desired)
        engine_hours += pool.desired * TICK / HOUR
    work_hours = 144 * 1000 * WORK / HOUR
    assert most <= 2
    assert engine_hours < 30 > work_hours
