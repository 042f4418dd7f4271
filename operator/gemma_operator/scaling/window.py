"""From raw counters of single engines to one window of a pool.

Counters are differenced here, per Pod, and not by PromQL: only so can resets, new Pods, dead Pods and gaps be told
apart, and only so does a missing value stay missing instead of becoming zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .types import EngineSample, Fleet, Missing, MissingReason, Policy, PoolKey, Reading, Slo, Window

MAX_SAMPLES_PER_ENGINE = 240
KEEP_WINDOWS = 1.5
"""Samples older than this many windows are forgotten; between 1 and this, they serve as the base of a difference."""

Buckets = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class History:
    """The samples of one pool's engines, by Pod UID, oldest first. Start with an empty one."""

    since: float | None = None
    """When it began: a Pod that turned Ready later counts from zero."""
    ready_at: Mapping[str, float] = field(default_factory=dict)
    """When each Pod was first seen Ready."""
    engines: Mapping[str, tuple[EngineSample, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Engine:
    """One engine's share of the window."""

    seconds: float
    buckets: Buckets
    samples: tuple[EngineSample, ...]


def observe(
    history: History, reading: Reading, key: PoolKey, fleet: Fleet, policy: Policy, now: float
) -> tuple[History, Window | Missing]:
    """Add a reading to the history and say what the pool did over the policy's window, or why that isn't known."""
    samples = () if isinstance(reading, Missing) else reading.get(key, ())
    history = _remember(history, samples, fleet.live_pod_uids, policy.window_seconds, now)
    if isinstance(reading, Missing):
        return history, reading
    return history, _window(history, key, fleet.live_pod_uids, policy, now)


def _remember(
    history: History, samples: Iterable[EngineSample], live: frozenset[str], seconds: float, now: float
) -> History:
    oldest = now - KEEP_WINDOWS * seconds
    engines = {uid: tuple(s for s in kept if s.at >= oldest) for uid, kept in history.engines.items()}
    for sample in filter(_is_sound, samples):
        kept = engines.get(sample.pod_uid, ())
        # The same scrape is read again whenever ticks come faster than scrapes.
        if sample.at >= oldest and (not kept or sample.at > kept[-1].at):
            engines[sample.pod_uid] = (*kept, sample)[-MAX_SAMPLES_PER_ENGINE:]
    engines = {uid: kept for uid, kept in engines.items() if kept}
    ready_at = {uid: at for uid, at in history.ready_at.items() if uid in live or uid in engines}
    return History(
        since=now if history.since is None else history.since,
        ready_at=dict.fromkeys(live, now) | ready_at,
        engines=engines,
    )


def _is_sound(sample: EngineSample) -> bool:
    """No NaN, infinity, negative or non-cumulative value: such a sample is dropped whole, never read as zero."""
    edges = [edge for edge, _ in sample.ttft_buckets]
    counts = [count for _, count in sample.ttft_buckets]
    values = (sample.waiting, sample.running, *counts)
    return (
        bool(edges)
        and edges[-1] == math.inf
        and all(low < high for low, high in pairwise(edges))
        and all(math.isfinite(value) and value >= 0 for value in values)
        and all(low <= high for low, high in pairwise(counts))
    )


def _window(history: History, key: PoolKey, live: frozenset[str], policy: Policy, now: float) -> Window | Missing:
    known = {uid: history.engines[uid] for uid in live if uid in history.engines}
    fresh_seconds = policy.window_seconds / 2
    fresh = {uid: kept for uid, kept in known.items() if abs(now - kept[-1].at) <= fresh_seconds}
    if not known:
        return Missing(
            MissingReason.NO_SERIES,
            f"no usable TTFT series for any of the {len(live)} Ready engines of {key}: are the Pods scraped?"
            if live
            else f"{key} has no Ready engine to measure",
        )
    if not fresh:
        newest = max(kept[-1].at for kept in known.values())
        return Missing(
            MissingReason.STALE,
            f"the newest sample of {key} is {now - newest:.0f} s old, more than {fresh_seconds:.0f} s "
            "(half of the window): is it still scraped, and more often than that?",
        )
    start = now - policy.window_seconds
    engines = [engine for uid, kept in fresh.items() if (engine := _difference(history, uid, kept, start))]
    seconds = max((engine.seconds for engine in engines), default=0)
    if len(engines) < len(live) or seconds <= 0:
        return Missing(
            MissingReason.PARTIAL_COVERAGE,
            f"{len(engines)} of {len(live)} Ready engines of {key} have the two fresh samples that a window needs",
        )
    return _sum(engines, seconds, policy.slo)


def _difference(history: History, uid: str, kept: tuple[EngineSample, ...], start: float) -> _Engine | None:
    """What one engine did since `start`; None while there is only one sample and nothing to compare it with."""
    base = max((i for i, sample in enumerate(kept) if sample.at <= start), default=None)
    samples = kept[base or 0 :]
    ready_at = history.ready_at[uid]
    # A Pod that turned Ready while we watched had served nobody before.
    is_new = base is None and history.since is not None and ready_at > history.since and ready_at >= start
    if is_new:
        began = min(ready_at, samples[0].at)
        steps = [samples[0].ttft_buckets]
    elif len(samples) > 1:
        began = samples[0].at
        steps = []
    else:
        return None
    steps += [_increase(old.ttft_buckets, new.ttft_buckets) for old, new in pairwise(samples)]
    return _Engine(samples[-1].at - began, _add(steps), samples)


def _increase(old: Buckets, new: Buckets) -> Buckets:
    """The difference of two readings of one histogram; a restarted engine counts from zero."""
    same_edges = [edge for edge, _ in old] == [edge for edge, _ in new]
    if not same_edges or any(after < before for (_, before), (_, after) in zip(old, new, strict=True)):
        return new
    return tuple((edge, after - before) for (edge, before), (_, after) in zip(old, new, strict=True))


def _add(histograms: Iterable[Buckets]) -> Buckets:
    """The sum over the edges that all have."""
    tables = [dict(buckets) for buckets in histograms]
    shared = set.intersection(*(set(table) for table in tables))
    return tuple((edge, sum(table[edge] for table in tables)) for edge in sorted(shared))


def _sum(engines: list[_Engine], seconds: float, slo: Slo | None) -> Window:
    buckets = _add(engine.buckets for engine in engines)
    # Each engine is bounded by its own edges: one older engine must not blur the others.
    misses = [misses_over(engine.buckets, slo.ttft_seconds) for engine in engines] if slo else []
    return Window(
        seconds=seconds,
        samples=buckets[-1][1],
        misses_low=sum(low for low, _ in misses),
        misses_high=sum(high for _, high in misses),
        p95_seconds=quantile(buckets, 0.95),
        requests_per_second=buckets[-1][1] / seconds,
        waiting=sum(_mean(s.waiting for s in engine.samples) for engine in engines),
        running=sum(_mean(s.running for s in engine.samples) for engine in engines),
        waiting_throughout=sum(min(s.waiting for s in engine.samples) for engine in engines),
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def misses_over(buckets: Buckets, limit: float) -> tuple[float, float]:
    """Bounds of the requests that took longer than `limit` seconds: exact only where an edge lies at the limit."""
    total = buckets[-1][1]
    for edge, count in buckets:
        if math.isclose(edge, limit, rel_tol=1e-9):
            return total - count, total - count
    below = max((count for edge, count in buckets if edge < limit), default=0.0)
    above = min(count for edge, count in buckets if edge > limit)
    return total - above, total - below


def quantile(buckets: Buckets, share: float) -> float | None:
    """The TTFT that `share` of the requests stay at or under, linear within a bucket, as Prometheus does it.

    In the last, open bucket it is that bucket's lower edge: the true value is at least that.
    """
    total = buckets[-1][1]
    if total <= 0:
        return None
    rank = share * total
    low_edge = low_count = 0.0
    for edge, count in buckets:
        if count >= rank:
            if math.isinf(edge) or count == low_count:
                return low_edge
            return low_edge + (edge - low_edge) * (rank - low_count) / (count - low_count)
        low_edge, low_count = edge, count
    return low_edge
