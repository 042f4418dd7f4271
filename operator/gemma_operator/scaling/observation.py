"""From the raw counters of single engines to what came to a pool since the last tick, or to why that isn't known.

Counters are differenced here, per Pod UID, and not by PromQL: only so can resets, new Pods, Pods that changed the
pool, dead Pods, double scrapes and gaps be told apart, and only so does a missing value stay missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from gemma_operator.scaling.counters import Buckets, EngineCounters, Missing, MissingReason, PoolId, Reading
from gemma_operator.scaling.difference import Increase, increase, is_sound, since_start
from gemma_operator.scaling.pool import Fleet, Member, Policy, Slo
from gemma_operator.scaling.profile import Rates
from gemma_operator.scaling.verdict import NOTHING, Evidence, add, over, wilson

FRESH_SECONDS = 45.0
"""A sample older than three scrapes of 15 s says nothing of now."""
MOST_GAP_SECONDS = 120.0
"""Over a longer gap between two samples a difference says nothing of when it grew: count from the newer one."""
FORGET_SECONDS = 600.0
MOST_SKEW_SECONDS = 30.0
LEAST_COVERAGE = 0.5
"""With fewer engines than this share, the rest can't be guessed from them."""
SKEW = 0.2
"""One engine that misses so much more than all together has too much traffic, or is ill."""
SETTLING_SECONDS = 60.0
"""After an engine joined, the queues of the others are longer than its own: that is no fault of the router's."""
FADING = 0.9
"""What is left after each tick of an engine's own misses and requests: about ten ticks count."""


class Metrics(StrEnum):
    """How much of a pool is seen."""

    FULL = "Full"
    PARTIAL = "Partial"
    BLIND = "Blind"
    BLIND_LONG = "BlindLong"
    """Blind for longer than an engine takes to start."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a pool's engines did since the last tick. Rates are the sum over all engines, the unseen ones included."""

    metrics: Metrics
    coverage: float = 0.0
    """Share of the engines that should be seen and are."""
    missing: Missing | None = None
    """Why not all is seen."""
    seconds: float = 0.0
    """Time that the newest samples cover; 0 where none came since the last tick."""
    rates: Rates | None = None
    refused: float = 0.0
    """Requests per second that were refused with 503."""
    growth: float = 0.0
    """Requests per second by which the queues grew; negative where they shrank."""
    ttft: Evidence = NOTHING
    """Requests of the seen engines and the misses among them: too late, failed, aborted or refused."""
    itl: Evidence = NOTHING
    buckets: Buckets = ()
    """TTFT of the answered requests."""
    finished: float = 0.0
    """Requests that came to their end, of the seen engines."""
    waiting: float = 0.0
    running: float = 0.0
    stuck: bool = False
    """Requests are in some engine, and nothing came of them since the last tick."""
    skewed: str = ""
    """UID of an engine that misses far more than the others."""
    backlog: float | Missing | None = None
    """Requests that wait outside of the engines; None where nothing counts them."""
    offered: float | Missing | None = None
    """Requests per second that clients sent, by the gateway; None where nothing counts them."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of an engine between ticks."""

    sample: EngineCounters
    pool: PoolId
    last: Increase | None = None
    """Growth up to `sample`; None where there was nothing to compare it with."""
    is_new: bool = True
    """It came with the newest tick."""
    recent: float = 0.0
    missed: float = 0.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What `observe` keeps between ticks, for all pools together. Start with an empty one."""

    since: float | None = None
    at: float = 0.0
    engines: Mapping[str, _Seen] = field(default_factory=dict)
    blind_since: Mapping[PoolId, float] = field(default_factory=dict)


def observe(
    watch: Watch, reading: Reading, pools: Mapping[PoolId, tuple[Policy, Fleet]], now: float
) -> tuple[Watch, dict[PoolId, Observation]]:
    """Take in a reading, and say for each pool what its engines did since the last one."""
    if not watch.at <= now <= watch.at + MOST_GAP_SECONDS:
        # Just started, stood still, or the clock was set: nothing of before can be compared with.
        watch = Watch(since=now, blind_since={pool: min(at, now) for pool, at in watch.blind_since.items()})
    # An engine that loses its readiness for a moment comes back with the counters that it had.
    engines = {uid: seen for uid, seen in watch.engines.items() if now - seen.sample.at <= FORGET_SECONDS}
    found: dict[PoolId, Observation] = {}
    blind_since: dict[PoolId, float] = {}
    for pool, (policy, fleet) in pools.items():
        members = _look(watch, reading, pool, policy.ttft, fleet, now)
        engines |= members
        seen = _pool(pool, policy, fleet, members, reading, now)
        if seen.metrics is Metrics.BLIND:
            blind_since[pool] = watch.blind_since.get(pool, now)
            if now - blind_since[pool] > max(300.0, fleet.cold_start_seconds):
                seen = replace(seen, metrics=Metrics.BLIND_LONG)
        found[pool] = seen
    return Watch(watch.since, now, engines, blind_since), found


def _look(watch: Watch, reading: Reading, pool: PoolId, slo: Slo | None, fleet: Fleet, now: float) -> dict[str, _Seen]:
    """The pool's engines after this tick, by UID; those that were never seen are left out."""
    samples = {} if isinstance(reading, Missing) else reading.engines
    # A new engine has not lived through what the others have, and they still work off what came before it: their misses are
    # compared from then on only.
    has_new = any(m.uid not in watch.engines or now - m.joined_at < SETTLING_SECONDS for m in fleet.members)
    out = {}
    for member in fleet.members:
        known, sample = watch.engines.get(member.uid), samples.get(member.uid)
        if sample is None or not is_sound(sample) or sample.at > now + MOST_SKEW_SECONDS:
            seen = known and replace(known, is_new=False)
        elif known and sample.at <= known.sample.at:
            seen = replace(known, is_new=False)
        else:
            seen = _next(watch, known, sample, pool, member, slo)
        if seen:
            out[member.uid] = replace(seen, recent=0.0, missed=0.0) if has_new else seen
    return out


def _next(
    watch: Watch, known: _Seen | None, sample: EngineCounters, pool: PoolId, member: Member, slo: Slo | None
) -> _Seen:
    # What an engine counted before it changed the pool is the other pool's.
    is_same = known is not None and known.pool == pool and known.sample.at >= member.joined_at - FRESH_SECONDS
    if known and member.lent and _has_foreign_queue(known, member, sample):
        is_same = False
    if known and is_same and sample.at - known.sample.at <= MOST_GAP_SECONDS:
        grown = increase(known.sample, sample)
    elif not known and not member.lent and _is_born(member, watch, sample):
        # It had served nobody before it became Ready.
        grown = since_start(sample, min(member.ready_at, watch.at))
    else:
        return _Seen(sample, pool)
    missed = over(grown.ttft, slo).misses_low if slo else 0.0
    before = known or _Seen(sample, pool)
    return _Seen(sample, pool, grown, True, before.recent * FADING + grown.answered, before.missed * FADING + missed)


def _is_born(member: Member, watch: Watch, sample: EngineCounters) -> bool:
    """True for a Pod that was made while we watched, and became Ready lately: one that comes back was counted before."""
    is_ours = watch.since is not None and member.created_at > watch.since
    return is_ours and sample.at - member.ready_at <= MOST_GAP_SECONDS


def _has_foreign_queue(known: _Seen, member: Member, sample: EngineCounters) -> bool:
    """True while a lent engine still works off what its own pool had queued: those are no misses of this one."""
    return known.last is None and known.sample.waiting > 0 and sample.at < member.joined_at + FRESH_SECONDS


def _pool(
    pool: PoolId, policy: Policy, fleet: Fleet, members: Mapping[str, _Seen], reading: Reading, now: float
) -> Observation:
    fresh = {uid: seen for uid, seen in members.items() if now - seen.sample.at <= FRESH_SECONDS}
    usable = {uid: seen.last for uid, seen in fresh.items() if seen.last}
    # A new Pod gets its first scrapes in peace.
    expected = sum(m.uid in usable or now - m.joined_at > FRESH_SECONDS for m in fleet.members)
    coverage = len(usable) / expected if expected else 0.0
    observed = partial(
        Observation,
        coverage=coverage,
        missing=_why(pool, fleet, members, fresh, len(usable), expected, reading, now),
        waiting=sum([seen.sample.waiting for seen in fresh.values()]),
        running=sum([seen.sample.running for seen in fresh.values()]),
        backlog=None if isinstance(reading, Missing) else reading.backlog.get(pool),
        offered=None if isinstance(reading, Missing) else reading.offered.get(pool),
    )
    if isinstance(reading, Missing) or coverage < LEAST_COVERAGE:
        return observed(Metrics.BLIND)
    known = list(usable.values())
    # A lent engine takes its share of the requests from its first second on, and is seen two samples later.
    guests = sum(m.lent and m.uid not in usable and now - m.joined_at <= FRESH_SECONDS for m in fleet.members)
    share = len(known) / (expected + guests)
    grown = [seen.last for seen in fresh.values() if seen.last and seen.is_new]
    return observed(
        Metrics.FULL if coverage >= 1 else Metrics.PARTIAL,
        seconds=max((one.seconds for one in grown), default=0.0),
        rates=_rates(known, share) if grown else None,
        refused=sum(one.rejected / one.seconds for one in known) / share,
        growth=sum(one.waiting / one.seconds for one in known) / share,
        ttft=_evidence(grown, policy.ttft),
        itl=_itl(grown, policy.itl),
        buckets=add(one.ttft for one in grown),
        finished=sum(one.finished for one in grown),
        stuck=any(_is_stuck(seen) for seen in fresh.values()),
        skewed=_skewed(
            {member.uid: fresh[member.uid] for member in fleet.members if member.uid in fresh and not member.lent}
        ),
    )


def _why(
    pool: PoolId,
    fleet: Fleet,
    members: Mapping[str, _Seen],
    fresh: Mapping[str, _Seen],
    usable: int,
    expected: int,
    reading: Reading,
    now: float,
) -> Missing | None:
    if isinstance(reading, Missing):
        return reading
    if expected and usable >= expected:
        return None
    if not expected:
        return Missing(MissingReason.NO_SERIES, f"{pool} has no Ready engine to measure")
    if not members and reading.missing:
        return reading.missing
    if not members:
        text = (
            f"no usable TTFT series for any of the {len(fleet.members)} Ready engines of {pool}: are the Pods scraped?"
        )
        return Missing(MissingReason.NO_SERIES, text)
    if not fresh:
        newest = max(seen.sample.at for seen in members.values())
        text = f"the newest sample of {pool} is {now - newest:.0f} s old, more than {FRESH_SECONDS:.0f} s: is it still scraped?"
        return Missing(MissingReason.STALE, text)
    text = f"{usable} of {expected} Ready engines of {pool} have the two fresh samples that a rate needs"
    return Missing(MissingReason.PARTIAL_COVERAGE, text)


def _rates(grown: list[Increase], coverage: float) -> Rates:
    def total(value: Callable[[Increase], float | None]) -> float | None:
        """Sum of the rates, scaled up to the engines that don't export it or aren't seen."""
        known = [number / one.seconds for one in grown if (number := value(one)) is not None]
        return sum(known) * len(grown) / len(known) / coverage if known else None

    return Rates(
        requests=total(lambda one: one.answered) or 0.0,
        prompt_tokens=total(lambda one: one.prompt_tokens),
        generated_tokens=total(lambda one: one.generated_tokens),
        media_items=total(lambda one: one.media_items),
        media_units=total(lambda one: one.media_units),
    )


def _evidence(grown: list[Increase], slo: Slo | None) -> Evidence:
    if slo is None:
        return NOTHING
    # Each engine is bounded by its own edges: one older engine must not blur the others.
    found = sum((over(one.ttft, slo) for one in grown), NOTHING)
    lost = sum(one.failed + one.rejected for one in grown)
    return found + Evidence(lost, lost, lost)


def _itl(grown: list[Increase], slo: Slo | None) -> Evidence:
    if slo is None:
        return NOTHING
    return sum((over(one.itl, slo) for one in grown if one.itl), NOTHING)


def _is_stuck(seen: _Seen) -> bool:
    has_work = seen.sample.running + seen.sample.waiting > 0
    return bool(has_work and seen.last and not (seen.last.answered or seen.last.generated_tokens or seen.last.finished))


def _skewed(fresh: Mapping[str, _Seen]) -> str:
    recent = sum(seen.recent for seen in fresh.values())
    share = sum(seen.missed for seen in fresh.values()) / recent if recent else 0.0
    worst = max(((wilson(seen.missed, seen.recent)[0], uid) for uid, seen in fresh.items()), default=(0.0, ""))
    return worst[1] if len(fresh) > 1 and worst[0] - share > SKEW else ""
