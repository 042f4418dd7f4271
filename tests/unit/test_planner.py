"""gemma-operator plan: engines over the day, what clients would see, what would change; and one clear line for wrong input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.engine.accelerators import named
from gemma_operator.engine.catalog import lookup
from gemma_operator.planning import encoder_pool
from gemma_operator.planning.estimate import Engines, capacity, seen_by_clients
from gemma_operator.planning.load import Load, batch_engines, burstiness, engines_for, held, load_of
from gemma_operator.planning.memory import memory_of
from gemma_operator.planning.plan import Change, Plan, Wish, make_plan
from gemma_operator.planning.replay import Ask, ttfts
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import DEFAULT_PROFILE
from gemma_operator.simulation.step_model import EngineConfig
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.errors import WorkloadError
from gemma_operator.workload.synthetic import constant, sine, step, synthetic

SLO = Slo(95, 0.3)
WISH = Wish(SLO, DEFAULT_PROFILE, cold_start=60.0)
HOUR = 3600.0
DATA = Path(__file__).parent / "data"


def workload(rate: float = 20.0, seconds: float = 900.0, media: float = 0.1, output: int = 10, **more: Any) -> Arrivals:
    return synthetic(constant(rate), seconds, output_tokens=output, **more).with_media(media, 1)


def planned(arrivals: Arrivals, **wish: Any) -> Plan:
    return make_plan(arrivals, replace(WISH, **wish))


def change(plan: Plan, what: str) -> Change:
    return next(found for found in plan.changes if found.what.startswith(what))


# --- load ---


def test_the_work_of_a_workload_is_the_profiles():
    """20 requests/s of 500 prompt and 10 output tokens, a tenth with 6 frames."""
    load = load_of(workload(seconds=6000.0), DEFAULT_PROFILE, 6000.0)
    each = 5e-3 + (500 + 0.1 * 6 * 78) * 40e-6 + 10 * 0.18e-3 + 0.1 * (30e-3 + 6 * 4e-3 / 3)
    assert load.work.mean() == pytest.approx(20 * each, rel=0.02)
    assert load.encoder.mean() == pytest.approx(20 * 0.1 * 38e-3, rel=0.05)
    assert load.media_share.mean() == pytest.approx(0.1, abs=0.01)


def test_engines_are_what_the_autoscaler_would_ask_for():
    load = load_of(workload(40.0), DEFAULT_PROFILE, 900.0)
    needed = engines_for(load, DEFAULT_PROFILE)
    assert needed.mean() == pytest.approx(load.work.mean() / (0.95 * 0.96), abs=1.0)
    assert engines_for(load, DEFAULT_PROFILE, 0.5).mean() == pytest.approx(2 * needed.mean(), rel=0.3)


def test_engines_are_there_one_cold_start_ahead():
    up = held(np.array([1, 1, 1, 3, 1, 1, 1, 1]), cold_start=60.0)
    assert up.tolist() == [1, 3, 3, 3, 3, 3, 1, 1]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=100), st.floats(0, 2000))
def test_what_is_held_is_never_less_than_what_is_needed(needed, cold_start):
    up = held(np.array(needed), cold_start)
    assert len(up) == len(needed)
    assert (up >= needed).all()
    assert up.max() == max(needed)


def test_batch_work_is_spread_until_its_deadline():
    load = load_of(synthetic(step(5, 60, 1800), HOUR), DEFAULT_PROFILE, HOUR)
    now, later = (batch_engines(load, DEFAULT_PROFILE, deadline) for deadline in (60.0, HOUR))
    assert later < now


@pytest.mark.parametrize("cv", [1.0, 2.0, 3.0])
def test_burstiness_is_that_of_the_clients(cv):
    assert burstiness(synthetic(constant(40), HOUR, cv=cv)) == pytest.approx(cv, rel=0.12)


def test_burstiness_is_not_that_of_the_day():
    assert burstiness(synthetic(sine(5, 60, HOUR), HOUR)) == pytest.approx(1.0, abs=0.1)
    assert burstiness(Arrivals.of([0.0, 5000.0])) == 1.0


# --- the plan ---


def test_a_day_is_planned_engine_by_engine():
    plan = planned(synthetic(sine(2, 80, 2 * HOUR), 2 * HOUR, output_tokens=10).with_media(0.1, 1))
    assert plan.interactive[0] == plan.interactive[-1] == 1
    assert plan.interactive.max() == plan.fleet.peak >= 3
    assert plan.fleet.gpu_hours == pytest.approx(plan.interactive.mean() * 2)
    assert plan.fleet.gpu_hours < 0.85 * plan.fleet.static_gpu_hours


def test_a_fleet_as_planned_holds_the_slo():
    plan = planned(workload(60.0))
    assert plan.seen.attainment > 0.97
    assert 0.02 < plan.seen.usual <= plan.seen.worst < 0.35


def test_a_profile_that_is_too_good_shows_in_what_clients_see():
    """Engines of the built-in kind, fewer than their profile asks for."""
    arrivals = workload(60.0)
    load = load_of(arrivals, DEFAULT_PROFILE, 900.0)
    few = np.maximum(1, engines_for(load, DEFAULT_PROFILE) // 2)
    assert seen_by_clients(arrivals, load, few, SLO, Engines(), 1).attainment < 0.9


def test_twice_as_good_a_profile_halves_the_fleet():
    twice = replace(
        DEFAULT_PROFILE, points=tuple(replace(point, load=2 * point.load) for point in DEFAULT_PROFILE.points)
    )
    one, two = planned(workload(120.0)), planned(workload(120.0), profile=twice)
    assert two.fleet.peak == pytest.approx(one.fleet.peak / 2, abs=1)
    assert two.seen.usual < one.seen.usual  # engines that are faster, not only counted so


def test_gpus_and_shares_add_up():
    plan = planned(workload(60.0), gpus=2, batch_share=0.5)
    assert set(plan.pools) == {"interactive", "batch"}
    assert plan.fleet.peak == sum(pool.peak for pool in plan.pools.values())
    assert plan.pools["interactive"].gpu_hours == pytest.approx(
        2 * plan.interactive.mean() * len(plan.interactive) / 120
    )


def test_all_requests_may_wait():
    plan = planned(workload(), batch_share=1.0)
    assert set(plan.pools) == {"batch"}
    assert plan.seen.attainment == 1.0
    assert plan.changes == ()
    assert "may wait" in plan.encoder_pool.why


def test_bursts_beyond_the_profile_are_noted():
    assert any("coefficient of variation of 2." in note for note in planned(workload(cv=2.5)).notes)
    assert planned(workload()).notes == ()


# --- what would change ---


def test_the_batched_encoder_is_what_video_needs():
    plan = planned(workload(30.0, media=0.3))
    found = change(plan, "encoder not batched")
    assert found.fleet is not None
    assert found.fleet.peak > 2 * plan.fleet.peak
    serial = planned(workload(30.0, media=0.3), batched_encoder=False)
    assert serial.fleet.peak > plan.fleet.peak
    gained = change(serial, "encoder batched").fleet
    assert gained is not None
    assert gained.peak == pytest.approx(plan.fleet.peak, abs=1)


def test_what_a_text_workload_is_not_asked():
    plan = planned(workload(media=0.0))
    assert not any("encoder" in found.what or "text and media" in found.what for found in plan.changes)


def test_one_pool_for_all_costs_what_batch_saves():
    plan = planned(workload(60.0), batch_share=0.5)
    one = change(plan, "interactive and batch in one pool").fleet
    assert one is not None
    assert one.gpu_hours == pytest.approx(plan.fleet.gpu_hours, rel=0.35)


def test_prefix_caching_needs_to_know_what_came_before():
    assert change(planned(workload()), "prefix caching").fleet is None
    arrivals = synthetic(constant(40.0), 600.0, prompt_tokens=2000, output_tokens=10)
    shared = Arrivals.of(arrivals.at, arrivals.prompt_tokens, arrivals.output_tokens, 0, 1600)
    found = change(planned(shared), "prefix caching")
    assert "80% of the text came before" in found.said
    assert "an engine carries +" in found.said


def test_drafting_helps_long_answers_most():
    def gain(output: int) -> float:
        arrivals = workload(10.0, 300.0, 0.0, output)
        base = capacity(arrivals, SLO, Engines(), 20.0, 1)
        drafts = Engines(config=EngineConfig(draft_tokens=((1, 10**9, 4),)))
        return capacity(arrivals, SLO, drafts, 20.0, 1) / base

    assert gain(10) < 1.05


# --- an encoder pool: the four cases of seed 002, and the fifth ---


def loads(work: float, encoder: float, share: float) -> Load:
    ones = np.ones(40)
    return Load(20 * ones, work * ones, encoder * ones, share * ones)


@pytest.mark.parametrize(
    ("load", "up", "share", "batch", "pays", "why"),
    [
        (loads(3, 0, 0), 4, 0.0, 0.0, False, "there are no media"),
        (loads(0.5, 0.2, 0.3), 1, 0.3, 0.0, False, "one engine carries all"),
        (loads(3, 1, 0.3), 4, 0.3, 1.0, False, "all requests may wait"),
        (loads(3, 0.2, 0.05), 4, 0.05, 0.0, False, "0.2 engines' worth of work at the peak: a pool for it would idle"),
        (loads(8, 4, 0.5), 9, 0.5, 0.0, False, "it would take 6 engines that encode and 4 that don't, instead of 9"),
        (loads(8, 4, 0.5), 20, 0.5, 0.0, True, "6 engines that encode and 4 that don't, instead of 20"),
    ],
)
def test_an_encoder_pool(load, up, share, batch, pays, why):
    found = encoder_pool.advice(load, np.full(40, up), DEFAULT_PROFILE, share, batch)
    assert (found.pays, why in found.why) == (pays, True), found.why


# --- memory ---


def test_memory_from_the_catalog():
    model, gpu = lookup("google/gemma-4-26B-A4B-it"), named("h100")
    assert model is not None
    assert gpu is not None
    bf16 = memory_of(model, int(51.6e9), gpu, 1, 1000, 2)
    assert bf16.kv_per_token == 2 * 5 * 2 * 512 * 2
    assert bf16.encoder == pytest.approx(1.02, abs=0.01)
    assert bf16.kv_room == pytest.approx(80 * 0.92 - 51.6e9 / 2**30 - 2, abs=0.1)
    assert bf16.requests == int(bf16.kv_room * 2**30 / (2 * 25 * 8 * 256 * 2 * 1000 + 20480 * 1000))
    assert bf16.text_only_tokens == pytest.approx((bf16.kv_tokens or 0) * 1.126, rel=1e-6)
    assert bf16.fits
    assert not memory_of(model, int(51.6e9), named("l4") or gpu, 1, 1000, 2).fits


def test_a_model_without_encoder_or_known_layers():
    model, gpu = lookup("google/gemma-4-12B-it"), named("h100")
    assert model is not None
    assert gpu is not None
    found = memory_of(model, int(22.8e9), gpu, 1, 1000, 2)
    assert (found.kv_tokens, found.requests, found.text_only_tokens) == (None, None, None)
    assert found.fits


# --- replay ---


def test_requests_go_to_the_engine_with_the_fewest():
    asks = [Ask(0.0, 4000, 10) for _ in range(4)]
    alone, shared = (max(ttfts(asks, EngineConfig(), engines=count)) for count in (1, 4))
    assert shared < alone / 2


def test_engines_do_not_see_the_future():
    """What comes later changes nothing of what was answered before."""
    rng = np.random.default_rng(1)
    asks = [
        Ask(float(at), 500, 20, 6 if number % 5 == 0 else 0)
        for number, at in enumerate(np.cumsum(rng.exponential(0.05, 200)))
    ]
    whole, half = ttfts(asks, EngineConfig(), engines=2), ttfts(asks[:100], EngineConfig(), engines=2)
    before = [number for number in range(100) if asks[number].at + half[number] < asks[100].at]
    assert len(before) > 50
    assert [whole[number] for number in before] == [half[number] for number in before]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(Ask, st.floats(0, 5), st.integers(0, 3000), st.integers(1, 20), st.integers(0, 32), st.integers(0, 500)),
        min_size=1, max_size=12,
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_every_request_is_answered(asks, engines):
    seen = ttfts(sorted(asks, key=lambda ask: ask.at), EngineConfig(), engines=engines)
    assert len(seen) == len(asks)
    assert min(seen) > 0


def test_an_empty_workload_is_refused():
    with pytest.raises(WorkloadError, match="holds no request"):
        planned(Arrivals.of([]))


@settings(max_examples=5, deadline=None)
@given(
    st.integers(1, 60), st.floats(0, 1), st.integers(1, 3000), st.integers(1, 400), st.floats(0, 1), st.integers(0, 9)
)
def test_any_workload_is_planned_or_refused(requests, media, prompt, output, batch, seed):
    at = np.random.default_rng(seed).uniform(0, 600, requests)
    try:
        plan = planned(Arrivals.of(at, prompt, output).with_media(media, seed), batch_share=batch, seed=seed)
    except WorkloadError:
        return
    assert plan.fleet.peak >= 1
    assert 0 <= plan.seen.attainment <= 1
    assert plan.fleet.gpu_hours <= plan.fleet.static_gpu_hours + 1e-9
