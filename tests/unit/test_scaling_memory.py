"""What survives a restart, records that replay, and decisions explained."""

import json
from dataclasses import replace

import pytest

from gemma_operator.scaling import codec, record
from gemma_operator.scaling.counters import Missing, MissingReason
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.explain import explain
from gemma_operator.scaling.headroom import LEAST_CHANCE
from gemma_operator.scaling.memory import VERSION, Learned, Memory, Trial, restore
from gemma_operator.scaling.pool import Policy, Slo
from gemma_operator.scaling.record import Record
from gemma_operator.scaling.schedule import Slot
from tests.support.scaling import POLICY, Pool, blind, fleet, seen

LEARNED = Learned(
    correction=0.875,
    too_high=1.0,
    cut_at=1_700_000_000.5,
    trial=Trial(1.0, 0.8, 0.07),
    rises=((-1000, 12.5), (40, 3.25)),
    chance=0.025,
    hours=(0.5, *[0.0] * 23),
    lots=((1_700_003_600.0, 12.25),),
)


def test_what_was_learnt_survives():
    assert restore(json.loads(json.dumps(Memory(LEARNED).save()))).learned == LEARNED


def test_what_version_2_wrote_is_kept():
    """It knew nothing of what is left to chance, so that begins anew."""
    saved = {**Memory(replace(LEARNED, chance=LEAST_CHANCE)).save(), "version": 2}
    assert "chance" not in saved
    assert restore(saved).learned == replace(LEARNED, chance=LEAST_CHANCE)


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {},
        {"version": VERSION + 1, "correction": 0.5},
        {"version": VERSION, "correction": "much"},
        {"version": VERSION, "correction": True},
        {"version": VERSION, "unknown": 1},
        {"version": VERSION, "rises": 7},
        {"version": VERSION, "rises": [[1]]},
        {"version": VERSION, "trial": {"load": 1}},
    ],
)
def test_what_cannot_be_read_is_forgotten(saved):
    assert restore(saved) == Memory()


def test_half_a_day_leaves_a_small_memory():
    pool = Pool(3)
    for tick in range(2880):
        pool.tick(seen(40 + 30 * (tick % 97) / 97 + (tick % 11)))
    assert len(json.dumps(pool.memory.save())) < 3000
    assert len(pool.memory.moments) <= 81


def records():
    policy = replace(POLICY, itl=Slo(95, 0.05), schedule=(Slot(frozenset({0, 1}), 480, 500, 2, "Europe/Berlin"),))
    pool = Pool(2, policy)
    ticks = [seen(40), seen(90, missed=0.5, growth=4.0), blind(), seen(20, offered=Missing(MissingReason.STALE, "old"))]
    for what in [*ticks * 5, *[seen(10)] * 40]:
        before, state = pool.memory, fleet(pool.ready, pool.desired)
        made = pool.tick(what)
        yield Record(pool.now, policy, state, what, before, made)


def test_records_replay_to_the_same_decision():
    for made in records():
        again = record.load(json.loads(json.dumps(made.dump())))
        assert again == made
        assert record.replay(again) == made.decision


def test_infinity_survives_json():
    assert codec.decode(Slo, json.loads(json.dumps(codec.encode(Slo(95, float("inf")))))) == Slo(95, float("inf"))


def test_an_explanation_is_the_sum_a_person_would_do():
    pool = Pool(1)
    pool.memory = Memory(Learned(rises=((100, 1000.0),), heights=((200, 1000.0),)))
    made = pool.run(seen(60), 60)
    shown = explain(made)
    assert made.reason == "Demand" or made.replicas == made.desired
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines()[1:])
    assert lines["traffic"] == "60.0 requests/s, 0.10 images or videos in each"
    assert lines["load"] == "1.84 in the last minute, 1.84 in five minutes"
    assert lines["capacity"] == "1.02 = operating point 0.96 x correction 1.00 x 1.06 for sharing"
    assert lines["headroom"].startswith("0.13, what may come on top while an engine starts (300 s)")
    assert lines["demand"] == "max(1.84, 1.84 + 0.13) / 1.02 = 1.93 -> 2"
    assert lines["wanted"] == "2; rounding leaves a load of 0.07 free"
    assert lines["TTFT"].startswith("Met: 0 of 3600 missed in 60 s (0.0% to 0.1%), p95 about")
    assert lines["bounds"] == "1 to 10"


def test_explanations_of_other_states():
    assert "MetricsBlind: Prometheus is down" in explain(Pool(2).tick(blind()))
    batch = Pool(1, Policy(0, 5, None, wakes_from_zero=True)).tick(seen(1, backlog=50.0))
    assert "needs 1 to be finished by its deadline" in explain(batch)
    idle = Pool(1).run(seen(0), 60)
    assert "no requests in 900 s" in explain(idle)
    decoded = codec.decode(Decision, json.loads(json.dumps(codec.encode(idle))))
    assert explain(decoded) == explain(idle)
