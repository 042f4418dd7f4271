"""From the spec of a pool to its policy."""

from __future__ import annotations

from dataclasses import replace

from gemma_operator.api import scaling as api
from gemma_operator.api.values import duration_seconds
from gemma_operator.scaling.pool import Mode, Policy, Slo
from gemma_operator.scaling.profile import DEFAULT_PROFILE, Point, Profile
from gemma_operator.scaling.schedule import Slot


def policy_of(
    replicas: api.Replicas,
    slo: api.Slo | None,
    scaling: api.Scaling,
    profile: Profile | None = None,
    sheds: bool = False,
) -> Policy:
    """How a pool with this spec is to be scaled; `slo` is its own objective, else that of its class.

    `profile` is what its engines carry; where absent, what the spec says. `sheds`: they have admission limits.
    """
    deadline = {} if scaling.deadline is None else {"deadline_seconds": duration_seconds(scaling.deadline)}
    return Policy(
        minimum=replicas.min,
        maximum=replicas.ceiling,
        ttft=Slo(slo.ttft.percentile, slo.ttft.seconds) if slo else None,
        itl=Slo(slo.itl.percentile, slo.itl.seconds) if slo and slo.itl else None,
        mode=Mode(scaling.mode),
        schedule=tuple(_slot(slot) for slot in scaling.schedule),
        profile=profile or (profile_of(scaling.profile) if scaling.profile else DEFAULT_PROFILE),
        wakes_from_zero=scaling.backlog_query is not None,
        sheds=sheds,
        **deadline,
    )


def profile_of(given: api.CapacityProfile, name: str = "spec") -> Profile:
    """The built-in profile with what was measured in place of its values."""
    costs = {key: value / 1000 for key, value in given.costs.model_dump(exclude_none=True).items()}
    points = tuple(Point(point.media_share, point.burstiness, point.load) for point in given.points)
    assumed = DEFAULT_PROFILE.assumed
    if given.media_share is not None:
        assumed = replace(assumed, media_items=given.media_share)
    return replace(
        DEFAULT_PROFILE,
        costs=replace(DEFAULT_PROFILE.costs, **costs),
        points=points or DEFAULT_PROFILE.points,
        assumed=assumed,
        burstiness=given.burstiness,
        name=name,
    )


def _slot(slot: api.ScheduleSlot) -> Slot:
    days = frozenset(api.WEEKDAYS.index(day) for day in slot.days) or frozenset(range(7))
    return Slot(days, _minutes(slot.start), _minutes(slot.end), slot.min, slot.time_zone)


def _minutes(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return int(hours) * 60 + int(minutes)
