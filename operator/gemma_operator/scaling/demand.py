"""From an observation to the engines that are needed: demand in engine-seconds, at two time scales, with headroom."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from gemma_operator.scaling import headroom
from gemma_operator.scaling.decision import Terms
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.moment import Moment, Moments, within
from gemma_operator.scaling.observation import Observation
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.profile import Profile, Rates
from gemma_operator.scaling.schedule import scheduled_floor

FAST_SECONDS = 60.0
LEVEL_SECONDS = 300.0
SURGE_SECONDS, SURE = 20.0, 3.0
"""What comes within a tick or two counts as far as it is sure, standard deviations below its mean: loans needn't wait for more."""
REACTION_SECONDS = 45.0
"""From a rise to the decision: half the fast window and a tick."""
STALE_SAFETY = 0.7
"""Share of the operating point that is planned for where the profile was measured with another engine, model or GPU."""
BATCH_SAFETY = 0.95
"""Share of a batch pool's load per engine that is planned for."""
QUEUE_PER_ENGINE = 4.0
"""Requests that an engine takes in with its next steps; more is a queue."""
DRAIN_SECONDS = 120.0
"""Time in which queues are worked off, where engines start faster than that; else one cold start."""
MOST_ENGINES = 1_000_000


def measure(policy: Policy, fleet: Fleet, seen: Observation, memory: Memory, now: float) -> Moment | None:
    """What this tick says of the demand; None where no new samples came."""
    if (rates := seen.rates) is None:
        return None
    work = policy.profile.work(rates)
    recent = within(memory.moments, now - LEVEL_SECONDS)
    each = _each(policy.profile, work * seen.seconds, rates.requests * seen.seconds, memory.moments, recent)
    # Engines count what they answer; what they couldn't is in the queue or was refused.
    demand = max(0.0, work + each * (seen.growth + seen.refused))
    if isinstance(seen.offered, float | int):
        demand = each * seen.offered
    engines = len(fleet.members)
    media_share = policy.profile.media_share(rates)
    level = _mean(recent, demand, seen.seconds)
    needed = 0.0  # of a pool without objective, the work that waits says
    if policy.ttft:
        fast = _mean(within(recent, now - FAST_SECONDS), demand, seen.seconds)
        planned = max(fast, level + _headroom(memory.learned, level))
        share = _media_share(recent, media_share, rates.requests, seen.seconds)
        needed = engines_for(policy, planned, share, memory.learned)
    return Moment.of(
        at=now,
        seconds=seen.seconds,
        demand=demand,
        work=work,
        level=level,
        needed=needed,
        requests=rates.requests,
        each=each,
        media_share=media_share,
        engines=engines,
        ttft=seen.ttft,
        itl=seen.itl,
        buckets=seen.buckets,
        saturated=seen.waiting > QUEUE_PER_ENGINE * engines,
    )


def work_per_request(profile: Profile, moments: Moments) -> float:
    """Engine-seconds of one request, by what came lately, else by the profile's assumption."""
    return moments[-1].each if moments else profile.work(Rates(requests=1.0))


def _each(profile: Profile, work: float, requests: float, moments: Moments, recent: Moments) -> float:
    work += sum([moment.work * moment.seconds for moment in recent])
    requests += sum([moment.requests * moment.seconds for moment in recent])
    return work / requests if requests >= 1 else work_per_request(profile, moments)


def learn_demand(learned: Learned, memory: Memory, horizon: float, now: float) -> Learned:
    """Remember the demand of this tick, how far it is above the level `horizon` seconds ago, and this hour's peak."""
    newest = memory.moments[-1]
    after = within(memory.moments, now - horizon)
    before = memory.moments[len(memory.moments) - len(after) - 1] if len(after) < len(memory.moments) else None
    rises, heights = learned.rises, learned.heights
    if before and memory.whole_since is not None and memory.whole_since <= before.at:
        demand, seconds = newest.demand, newest.seconds
        rises = headroom.learn(rises, demand - before.level, demand, seconds)
        heights = headroom.learn(heights, demand, demand, seconds)
    hours, hour = list(learned.hours), int(now // 3600)
    if len(memory.moments) > 1 and int(memory.moments[-2].at // 3600) != hour:
        hours[hour % 24] /= 2
    hours[hour % 24] = max(hours[hour % 24], newest.level)
    return replace(learned, rises=rises, heights=heights, hours=tuple(hours))


def terms(policy: Policy, fleet: Fleet, waiting: float, memory: Memory, now: float) -> Terms:
    """The sum behind a decision."""
    moments = memory.moments
    recent = within(moments, now - LEVEL_SECONDS)
    fast = _mean(within(recent, now - FAST_SECONDS))
    cold_start = fleet.cold_start_seconds
    share = _media_share(recent)
    capable = capacity(policy, share, memory.learned, moments[-1].needed if moments else 1.0)
    level, each = _mean(recent), work_per_request(policy.profile, moments)
    found = partial(
        Terms,
        requests=fast / each if each else 0.0,
        media_share=share,
        fast=fast,
        level=level,
        operating_point=policy.profile.operating_point(share) if policy.ttft else policy.profile.batch_load,
        correction=memory.learned.correction,
        capacity=capable,
        scheduled=min(policy.maximum, scheduled_floor(policy.schedule, now, cold_start)),
        cold_start=cold_start,
    )
    if not moments:
        return found()
    needed = _ceil(moments[-1].needed)
    if policy.ttft is None:
        return found(for_demand=needed, critical=needed)
    queued = max(0.0, waiting - QUEUE_PER_ENGINE * len(fleet.members))
    # Engines for a queue that the others have drained before they start would come for nothing.
    spare = needed * capable - max(fast, level)
    extra = max(0.0, queued * each / max(DRAIN_SECONDS, cold_start) - spare)
    return found(
        headroom=_headroom(memory.learned, level),
        chance=memory.learned.chance,
        for_demand=needed,
        for_backlog=math.ceil(extra / capable),
        critical=_ceil(engines_for(policy, max(fast, level, _surge(moments, now)), share, memory.learned)),
    )


def capacity(policy: Policy, media_share: float, learned: Learned, engines: float = 1.0) -> float:
    """Load that is planned for each of so many engines."""
    if policy.ttft is None:
        return (STALE_SAFETY if policy.profile.stale else BATCH_SAFETY) * policy.profile.batch_load
    return _trust(policy, learned) * policy.profile.capacity(media_share, engines)


def engines_for(policy: Policy, load: float, media_share: float, learned: Learned) -> float:
    """Engines for a load of an interactive pool, before rounding."""
    return policy.profile.engines(load / _trust(policy, learned), media_share)


def _trust(policy: Policy, learned: Learned) -> float:
    """What an engine is taken to carry over what its profile says."""
    return learned.correction * (STALE_SAFETY if policy.profile.stale else 1.0)


def usual_need(policy: Policy, memory: Memory, now: float) -> int:
    """Engines that this hour, or one beside it, needed on recent days."""
    hour = int(now // 3600)
    peak = max(memory.learned.hours[(hour + step) % 24] for step in (-1, 0, 1))
    share = policy.profile.assumed.media_items
    return _ceil(engines_for(policy, peak, share, memory.learned))


def _headroom(learned: Learned, level: float) -> float:
    return headroom.headroom(learned.rises, learned.heights, level, learned.chance)


def _mean(moments: Iterable[Moment], demand: float = 0.0, seconds: float = 0.0) -> float:
    """Mean demand over time, with a newer tick's."""
    total = weight = 0.0
    for moment in moments:
        total += moment.demand * moment.seconds
        weight += moment.seconds
    total += demand * seconds
    weight += seconds
    return total / weight if weight else 0.0


def _surge(moments: Moments, now: float) -> float:
    """The load that came just now at the least, by chance as of requests whose work varies as much as its mean is."""
    latest = within(moments, now - SURGE_SECONDS)
    if not (seconds := sum(moment.seconds for moment in latest)):
        return 0.0
    mean = _mean(latest)
    return mean - SURE * math.sqrt(2 * mean * latest[-1].each / seconds)


def _media_share(moments: Moments, newest: float | None = None, requests: float = 0.0, seconds: float = 0.0) -> float:
    """Media items per request, with a newer tick's."""
    total = items = 0.0
    for moment in moments:
        total += moment.requests * moment.seconds
        items += moment.media_share * moment.requests * moment.seconds
    if newest is not None:
        total += requests * seconds
        items += newest * requests * seconds
    if total:
        return items / total
    if newest is not None:
        return newest
    return moments[-1].media_share if moments else 0.0


def _ceil(engines: float) -> int:
    return math.ceil(min(engines, MOST_ENGINES))
