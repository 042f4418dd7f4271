"""The whole rule in a closed loop with real counters: what it holds, what it costs, and that it does no harm."""

import math
from dataclasses import replace

import pytest

from gemma_operator.scaling.counters import Missing, MissingReason, Scrape
from gemma_operator.scaling.decision import Kind, Reason
from gemma_operator.scaling.memory import restore
from gemma_operator.scaling.pool import Policy, Slo
from tests.support.closed_loop import START, Loop, Traffic, outage, shaped

POLICY = Policy(1, 64, Slo(95, 0.3))
DOWN = Missing(MissingReason.QUERY_FAILED, "down")
WARM = 1800
MORE_VIDEO = Traffic(0, media_share=0.3)


def kinds(result):
    return {finding.kind for finding in result.decisions[-1].findings}


def test_half_a_day_of_slow_swing_is_followed_at_few_gpu_hours():
    rates = [60 + 50 * math.sin(second / 43_200 * 2 * math.pi) for second in range(43_200)]
    result = Loop(POLICY, replicas=3).run(shaped([60] * WARM + rates), preroll=WARM)
    assert result.attainment >= 0.99
    assert result.gpu_hours < 0.7 * 12 * max(result.replicas), "clearly less than the peak all day"
    assert result.reversals <= 2


def test_constant_load_is_left_alone():
    result = Loop(POLICY, replicas=3).run(shaped([60] * 16_200), preroll=WARM)
    assert result.attainment >= 0.99
    assert result.reversals == 0
    assert len(set(result.replicas[240:])) == 1


@pytest.mark.parametrize(("cold_start", "most_lost"), [((60.0, 60.0), 140), ((226.0, 428.0), 590)])
def test_a_step_costs_one_cold_start_and_no_overshoot(cold_start, most_lost):
    loop = Loop(POLICY, replicas=1, cold_start=cold_start)
    result = loop.run(shaped([20] * 3600 + [60] * 3600), preroll=3600)
    assert result.attainment >= 1 - most_lost / 3600
    assert max(result.replicas) == 3
    # Once the rise is in the headroom's history, a second step is met.
    assert result.replicas[-1] >= 3


def test_more_video_at_the_same_request_rate_gets_more_engines():
    loop = Loop(POLICY, replicas=4)
    result = loop.run(shaped([80] * 5400) + shaped([80] * 5400, like=MORE_VIDEO), preroll=WARM)
    assert result.attainment >= 0.99
    assert result.replicas[350] == 3
    assert result.replicas[-1] == 4


@pytest.mark.parametrize("hopeless", [0.08, 0.3, 0.99])
@pytest.mark.parametrize("rate", [20, 60])
def test_an_infeasible_slo_adds_no_engine(hopeless, rate):
    """The same load with a feasible SLO ends at the same replicas at every tick."""
    like = Traffic(0, hopeless=hopeless)
    infeasible = Loop(POLICY, replicas=3).run(shaped([rate] * 5400, like=like))
    feasible = Loop(POLICY, replicas=3).run(shaped([rate] * 5400))
    assert infeasible.replicas == feasible.replicas
    assert Kind.SLO_INFEASIBLE in kinds(infeasible)
    assert Kind.SLO_INFEASIBLE not in kinds(feasible)


def test_an_outage_at_the_peak_changes_nothing():
    calm = Loop(POLICY, replicas=4).run(shaped([100] * 7200))
    fault = outage(START + 3600, START + 4200, DOWN)
    dark = Loop(POLICY, replicas=4, fault=fault).run(shaped([100] * 7200))
    assert dark.replicas == calm.replicas


def test_falling_load_during_an_outage_is_not_followed_until_a_full_history_is_back():
    fault = outage(START + 3600, START + 4200, DOWN)
    loop = Loop(POLICY, replicas=4, fault=fault)
    result = loop.run(shaped([100] * 3600 + [20] * 3600))
    downs = [d.at - START for d in result.decisions if d.replicas < d.desired and d.at >= START + 3600]
    assert min(downs) >= 4200 + 300


def test_bursts_are_learnt():
    """A burst of two minutes every twenty: the first costs misses, later ones find the engines there."""
    rates = [90 if second % 1200 < 120 else 25 for second in range(14_400)]
    loop = Loop(POLICY, replicas=2)
    first, later = loop.run(shaped(rates[:2400])), loop.run(shaped(rates[2400:]), preroll=2400)
    assert later.attainment > 0.99 > first.attainment


@pytest.mark.parametrize("strength", [1 / 1.4, 1 / 0.6])
def test_a_wrong_profile_costs_little_attainment(strength):
    rates = [60 + 40 * math.sin(second / 14_400 * 2 * math.pi) for second in range(14_400)]
    traffic = shaped([60] * WARM + rates)
    right = Loop(POLICY, replicas=3).run(traffic, preroll=WARM)
    wrong = Loop(POLICY, replicas=3, strength=strength).run(traffic, preroll=WARM)
    assert wrong.attainment >= right.attainment - 0.03


def test_a_profile_far_too_high_is_corrected_by_what_saturated_engines_answer():
    loop = Loop(POLICY, replicas=2, strength=0.55)
    result = loop.run(shaped([60] * 7200), preroll=3600)
    assert result.attainment >= 0.99
    assert loop.memory.learned.correction < 0.75


def test_a_burst_does_not_change_the_correction_of_a_right_profile():
    rates = [150 if 3600 <= second < 3720 else 60 for second in range(7200)]
    loop = Loop(POLICY, replicas=3)
    loop.run(shaped(rates))
    assert loop.memory.learned.correction == pytest.approx(1.0, abs=0.05)


def test_refused_requests_are_demand_and_misses():
    limited = Loop(POLICY, replicas=1, queue_limit=0.2)
    result = limited.run(shaped([20] * 3600 + [60] * 3600), preroll=3600)
    assert result.replicas[-1] >= 3
    open_ended = Loop(POLICY, replicas=1).run(shaped([20] * 3600 + [60] * 3600), preroll=3600)
    assert result.attainment > open_ended.attainment, "failing fast spares the rest"
    during = [decision for decision in result.decisions if 3660 <= decision.at - START <= 3720]
    assert all(decision.terms.fast > 1.7 for decision in during), "what is refused counts as demand"
    assert all(decision.judgement.evidence.misses_low > 0 for decision in during)


def test_no_gpu_for_an_hour_asks_for_no_more_and_may_shrink():
    loop = Loop(POLICY, replicas=2, room=3)
    result = loop.run(shaped([60] * 600 + [150] * 3600 + [20] * 3600))
    assert max(result.replicas) <= 4
    during = [decision for decision in result.decisions if 1500 <= decision.at - START <= 4000]
    assert {decision.reason for decision in during} <= {Reason.NO_CAPACITY, Reason.STEADY, Reason.COOLING_DOWN}
    assert len({decision.replicas for decision in during}) == 1
    assert result.replicas[-1] <= 4, "such a rise may come again, so it is not forgotten at once"


def test_a_restart_in_the_middle_moves_nothing_by_itself():
    whole = Loop(POLICY, replicas=3)
    expected = whole.run(shaped([70] * 5400))
    loop = Loop(POLICY, replicas=3)
    loop.run(shaped([70] * 2700))
    loop.memory, loop.watch = restore(loop.memory.save()), type(loop.watch)()
    after = loop.run(shaped([70] * 2700))
    assert set(after.replicas) == {loop.fleet().desired} == {expected.replicas[-1]}


FAULTS = {
    "frozen values": lambda last, reading, now: last or reading,
    "frozen values, new times": lambda last, reading, now: _retimed(last or reading, now),
    "half of the Pods": lambda last, reading, now: Scrape(dict(list(reading.engines.items())[::2])),
    "nothing": lambda last, reading, now: Scrape({}),
    "down": lambda last, reading, now: DOWN,
    "old": lambda last, reading, now: _retimed(reading, now - 300),
    "future": lambda last, reading, now: _retimed(reading, now + 300),
    "every other tick": lambda last, reading, now: reading if now % 30 < 15 else DOWN,
}


def _retimed(reading, at):
    return Scrape({uid: replace(engine, at=at) for uid, engine in reading.engines.items()})


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_scale_down_under_any_fault_and_recovery_within_two_windows(fault):
    """Ten minutes at a load that needs all engines: none goes while it lasts, and what comes after is followed."""
    kept = []

    def broken(reading, now):
        if START + 3600 <= now < START + 4200:
            return fault(kept[-1] if kept else None, reading, now)
        kept.append(reading)
        return reading

    loop = Loop(POLICY, replicas=4, fault=broken)
    result = loop.run(shaped([100] * 4200 + [200] * 1200))
    ticks = result.replicas[:280]
    assert min(ticks[200:]) >= ticks[200]
    recovered = next(d for d in result.decisions if d.at > START + 4200 and d.replicas > d.desired)
    assert recovered.at <= START + 4200 + 120


def critical(result, since, until):
    """Engines that are missed at once, of the ticks between the two (seconds from the start)."""
    return [decision.terms.critical for decision in result.decisions if since < decision.at - START <= until]


def test_a_step_is_seen_by_who_may_lend_within_two_ticks_and_constant_load_never_is():
    step = Loop(POLICY, replicas=1).run(shaped([20] * 3600 + [100] * 600), preroll=3600)
    assert max(critical(step, 3600, 3640)) == critical(step, 4100, 4200)[-1] > max(critical(step, 3000, 3600))
    calm = Loop(POLICY, replicas=3).run(shaped([60] * 7200), preroll=WARM)
    assert len(set(critical(calm, WARM, 7200))) == 1
