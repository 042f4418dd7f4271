"""The user's scaling fields, the capacity profile and schedules."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gemma_operator.api import scaling as api
from gemma_operator.api.pool import Pool
from gemma_operator.scaling.policy import policy_of, profile_of
from gemma_operator.scaling.pool import Mode, Policy, Slo
from gemma_operator.scaling.profile import DEFAULT_POINTS, DEFAULT_PROFILE, Point, Profile, Rates
from gemma_operator.scaling.schedule import Slot, scheduled_floor

WORKDAY = {"days": ["Mon", "Fri"], "start": "08:00", "end": "18:30", "timeZone": "Europe/Berlin", "min": 3}


def test_defaults_make_an_automatic_pool():
    policy = policy_of(api.Replicas(min=1, max=4), api.Slo(), api.Scaling())
    assert policy == Policy(1, 4, Slo(95, 0.3))


def test_every_field_arrives():
    spec = {
        "mode": "DryRun",
        "schedule": [WORKDAY],
        "profile": {
            "costs": {"request": 3, "mediaItem": 45},
            "points": [{"mediaShare": 0.1, "load": 0.8}],
            "mediaShare": 0.3,
            "burstiness": 2,
        },
        "backlogQuery": "sum(queue_length)",
        "deadline": "4h",
    }
    itl = api.ItlTarget(target="50ms")
    policy = policy_of(api.Replicas(min=0, max=9), api.Slo(itl=itl), api.Scaling.model_validate(spec))
    assert policy.mode is Mode.DRY_RUN
    assert policy.itl == Slo(95, 0.05)
    assert policy.schedule == (Slot(frozenset({0, 4}), 480, 1110, 3, "Europe/Berlin"),)
    assert policy.wakes_from_zero
    assert policy.deadline_seconds == 14_400
    assert policy.profile.costs.request == pytest.approx(0.003)
    assert policy.profile.costs.media_item == pytest.approx(0.045)
    assert policy.profile.costs.prompt_token == DEFAULT_PROFILE.costs.prompt_token
    assert policy.profile.points == (Point(0.1, 1.0, 0.8),)
    assert policy.profile.media_share(Rates(10)) == 0.3
    assert policy.profile.burstiness == 2


@pytest.mark.parametrize(
    ("admission", "sheds"), [(None, False), ({"enabled": False}, False), ({"enabled": True}, True)]
)
def test_admission_limits_arrive(admission, sheds):
    pool = Pool.model_validate({} if admission is None else {"admission": admission})
    assert policy_of(pool.replicas, None, pool.scaling, None, pool.sheds).sheds is sheds


def test_a_batch_pool_has_no_ttft_objective():
    assert policy_of(api.Replicas(), None, api.Scaling()).ttft is None
    assert profile_of(api.CapacityProfile()).points == DEFAULT_POINTS


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"deadline": "10s"}, "deadline is 10s: a deadline is from 1m to 168h"),
        ({"mode": "Sometimes"}, "'Auto', 'DryRun', 'Off' or 'External'"),
        ({"schedule": [{**WORKDAY, "timeZone": "Mars"}]}, "no such time zone"),
        ({"schedule": [{**WORKDAY, "start": "8"}]}, "String should match pattern"),
        ({"schedule": [{**WORKDAY, "days": ["Mon", "Mon"]}]}, "'Mon' is there more than once"),
        ({"profile": {"points": [{"mediaShare": 2, "load": 1}]}}, "less than or equal to 1"),
        ({"profile": {"points": [{"mediaShare": 0.5, "load": 0}]}}, "greater than 0"),
    ],
)
def test_mistakes_are_named(data, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        api.Scaling.model_validate(data)


def test_an_itl_target_has_its_own_limits():
    assert api.ItlTarget(target="5ms").seconds == 0.005
    with pytest.raises(ValidationError, match="from 1ms to 10s"):
        api.ItlTarget(target="1m")


@pytest.mark.parametrize(
    ("rates", "work"),
    [
        (Rates(10, 5000, 100, 0, 0), 10 * 5e-3 + 0.2 + 100 * 0.18e-3),
        (Rates(10, 5000, 100, 10, 60), 10 * 5e-3 + 0.2 + 100 * 0.18e-3 + 0.3 + 0.08),
        (Rates(0, 0, 0, 0, 0), 0),
        (Rates(1), 5e-3 + 500 * 40e-6 + 200 * 0.18e-3 + 0.1 * 30e-3 + 0.6 * 4e-3 / 3),
    ],
)
def test_work_is_the_sum_of_the_costs_and_unknown_parts_are_assumed(rates, work):
    assert DEFAULT_PROFILE.work(rates) == pytest.approx(work)


@pytest.mark.parametrize(
    ("share", "burstiness", "load"),
    [(0, 1, 1.0), (0.1, 1, 0.96), (0.05, 1, 0.98), (0.2, 2, 0.53), (1, 2, 0.18), (0.1, 1.5, 0.77), (0.1, 9, 0.58)],
)
def test_operating_points_are_interpolated_and_never_extrapolated(share, burstiness, load):
    assert Profile(burstiness=burstiness).operating_point(share) == pytest.approx(load)


@given(st.floats(0, 1), st.floats(0.1, 10))
def test_interpolation_stays_within_the_points(share, burstiness):
    loads = [point.load for point in DEFAULT_POINTS]
    assert min(loads) - 1e-9 <= Profile(burstiness=burstiness).operating_point(share) <= max(loads) + 1e-9


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


# 2026-03-27 is a Friday; Europe/Berlin changes to summer time on the 29th.
NIGHT = Slot(frozenset({4}), 22 * 60, 6 * 60, 2)
OFFICE = Slot(frozenset(range(7)), 8 * 60, 18 * 60, 3, "Europe/Berlin")


@pytest.mark.parametrize(
    ("slot", "time", "holds"),
    [
        (NIGHT, at("2026-03-27T21:59"), False),
        (NIGHT, at("2026-03-27T22:00"), True),
        (NIGHT, at("2026-03-28T05:59"), True),
        (NIGHT, at("2026-03-28T06:00"), False),
        (NIGHT, at("2026-03-27T05:00"), False),
        (OFFICE, at("2026-03-28T07:00"), True),
        (OFFICE, at("2026-03-30T06:00"), True),
        (OFFICE, at("2026-03-30T05:59"), False),
        (OFFICE, at("2026-03-30T16:00"), False),
    ],
)
def test_slots_keep_to_the_days_and_to_local_time(slot, time, holds):
    assert slot.holds(time) == holds


def test_the_floor_looks_ahead_by_a_cold_start():
    eight = datetime(2026, 3, 27, 7, 0, tzinfo=UTC).timestamp()
    assert scheduled_floor((OFFICE, NIGHT), eight - 331, 330) == 0
    assert scheduled_floor((OFFICE, NIGHT), eight - 330, 330) == 3
    assert scheduled_floor((), eight, 330) == 0
