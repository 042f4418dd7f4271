"""The plan: engines over the day, what clients would see, and what other settings would change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gemma_operator.planning import encoder_pool
from gemma_operator.planning.encoder_pool import Advice
from gemma_operator.planning.estimate import Engines, Seen, capacity, seen_by_clients
from gemma_operator.planning.load import (
    STEP,
    Counts,
    Load,
    batch_engines,
    burstiness,
    engines_for,
    held,
    load_of,
    prompt_lengths,
)
from gemma_operator.planning.memory import Memory
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import Profile
from gemma_operator.workload.arrivals import Arrivals, WorkloadError

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the fleet is to do, and of what it is made."""

    slo: Slo
    profile: Profile
    gpus: int = 1
    """Per engine."""
    cold_start: float = 300.0
    """Seconds from the order to Ready."""
    price: float | None = None
    """Of a GPU-hour."""
    batch_share: float = 0.0
    """Of the requests that may wait until the deadline."""
    deadline: float = HOUR
    batched_encoder: bool = True
    mtp_tokens: int = 4
    """Tokens drafted per step where multi-token prediction is on."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines of all pools."""

    peak: int
    """Most engines at once: what must be bought where nothing scales."""
    gpu_hours: float
    static_gpu_hours: float
    """Where the peak is up all the time."""


@dataclass(frozen=True, slots=True)
class Change:
    """What another setting would change."""

    what: str
    fleet: Fleet | None
    """None where the SLO can't be held so, or it isn't known."""
    said: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    seconds: float
    requests: int
    mean_rate: float
    peak_rate: float
    """Requests per second of the busiest half minute."""
    media_share: float
    burstiness: float
    fleet: Fleet
    pools: dict[str, Fleet]
    interactive: Counts = field(repr=False)
    """Engines of the interactive pool that are up, per step of 30 s."""
    needed: Counts = field(repr=False)
    rates: np.ndarray = field(repr=False)
    batch: int
    """Engines of the batch pool, all the time."""
    seen: Seen
    per_engine: float
    """Requests per second that an engine carries of this mix."""
    queued_tokens: int | None
    """Prompt tokens, media included, that it works off within the TTFT target: a limit for its queue (vLLM config/scheduler.py)."""
    changes: tuple[Change, ...]
    encoder_pool: Advice
    memory: Memory | None
    notes: tuple[str, ...]


def make_plan(arrivals: Arrivals, wish: Wish, memory: Memory | None = None, notes: tuple[str, ...] = ()) -> Plan:
    """Plan for a workload.

    Raises:
        WorkloadError: it holds no request, or the SLO can't be held with its requests at all.
    """
    if not len(arrivals):
        raise WorkloadError("the workload holds no request: there is nothing to plan for")
    seconds = max(arrivals.seconds, STEP)
    waits = np.random.default_rng((wish.seed, 3)).random(len(arrivals)) < wish.batch_share
    interactive = arrivals.where(~waits)
    whole = load_of(arrivals, wish.profile, seconds)
    load = load_of(interactive, wish.profile, seconds)
    share = interactive.media_share
    built_in = Engines.of(wish.profile, share)
    engines = built_in if wish.batched_encoder else _serial(built_in)
    point = wish.profile.operating_point(share)
    each = float(whole.work.sum() / whole.requests.sum())
    guess = point / each
    base = capacity(interactive, wish.slo, engines, guess, wish.seed) if len(interactive) else 0.0
    if len(interactive) and not base:
        raise WorkloadError(
            f"no fleet holds p{wish.slo.percentile:g} TTFT within {wish.slo.seconds * 1000:g} ms for these requests: "
            "one alone takes longer; batch the encoder, limit media or prompts, or raise --slo"
        )
    factor = (
        1.0 if wish.batched_encoder else base / max(base, capacity(interactive, wish.slo, built_in, guess, wish.seed))
    )
    needed = engines_for(load, wish.profile, factor) if len(interactive) else np.zeros(len(load.work), dtype=np.int64)
    up = held(needed, wish.cold_start)
    batch_load = load_of(arrivals.where(waits), wish.profile, seconds)
    batch = batch_engines(batch_load, wish.profile, wish.deadline)
    pools = {"interactive": _fleet(up, wish)} if len(interactive) else {}
    pools |= {"batch": _fleet(np.full(len(up), batch), wish)} if batch else {}
    seen = seen_by_clients(interactive, load, np.maximum(up, 1), wish.slo, engines, wish.seed)
    measured = burstiness(arrivals)
    if measured > wish.profile.burstiness + 0.3:
        notes += (
            f"gaps between requests have a coefficient of variation of {measured:.1f}, the profile is for "
            f"{wish.profile.burstiness:g}: set its burstiness, or expect more misses than planned",
        )
    fleet = _sum(pools.values())
    return Plan(
        seconds=seconds,
        requests=len(arrivals),
        mean_rate=len(arrivals) / seconds,
        peak_rate=float(whole.requests.max()),
        media_share=arrivals.media_share,
        burstiness=measured,
        fleet=fleet,
        pools=pools,
        interactive=up,
        needed=needed,
        rates=whole.requests,
        batch=batch,
        seen=seen,
        per_engine=factor * guess,
        queued_tokens=int(factor * guess * wish.slo.seconds * prompt_lengths(interactive).mean())
        if len(interactive)
        else None,
        changes=_changes(interactive, whole, load, wish, factor, batch, (engines, base, guess)),
        encoder_pool=encoder_pool.advice(load, up, wish.profile, interactive.media_share, wish.batch_share),
        memory=memory,
        notes=notes,
    )


def _changes(
    interactive: Arrivals,
    whole: Load,
    load: Load,
    wish: Wish,
    factor: float,
    batch: int,
    model: tuple[Engines, float, float],
) -> tuple[Change, ...]:
    """Each setting the other way round, all else as planned."""
    if not len(interactive):
        return ()
    engines, base, guess = model

    def fleet(times: float) -> Fleet:
        own = _fleet(held(engines_for(load, wish.profile, factor * times), wish.cold_start), wish)
        return _sum([own, _fleet(np.full(len(load.work), batch), wish)])

    def other(what: str, changed: Engines) -> Change:
        found = capacity(interactive, wish.slo, changed, guess, wish.seed)
        if not found:
            return Change(what, None, "the SLO can't be held: one request alone takes longer")
        return Change(what, fleet(found / base), f"an engine carries {found / base - 1:+.0%}")

    changes = []
    if wish.batch_share:
        one = _fleet(held(engines_for(whole, wish.profile, factor), wish.cold_start), wish)
        changes.append(Change("interactive and batch in one pool", one, "all of it has to hold the SLO"))
    if 0 < interactive.media_share < 1:
        changes.append(Change("text and media in pools of their own", _apart(interactive, whole, wish, factor, batch)))
    if interactive.media_share:
        said = "encoder not batched" if wish.batched_encoder else "encoder batched"
        changes.append(other(said, _serial(engines) if wish.batched_encoder else _batched(engines)))
    drafts = replace(engines.config, draft_tokens=((1, 10**9, wish.mtp_tokens),))
    found = other(f"MTP with {wish.mtp_tokens} tokens", replace(engines, config=drafts))
    changes.append(replace(found, said=f"{found.said}; ITL p99 grew by 4 times in seed 001"))
    if repeated := float(interactive.repeated_tokens.sum() / max(1, interactive.prompt_tokens.sum())):
        found = other("prefix caching", replace(engines, uses_prefixes=True))
        changes.append(replace(found, said=f"{found.said}; {repeated:.0%} of the text came before"))
    else:
        changes.append(Change("prefix caching", None, "the workload doesn't say which prompts begin alike"))
    return tuple(changes)


def _apart(arrivals: Arrivals, whole: Load, wish: Wish, factor: float, batch: int) -> Fleet:
    with_media = arrivals.frames > 0
    seconds = len(whole.work) * STEP
    parts = [_fleet(np.full(len(whole.work), batch), wish)]
    for part in (arrivals.where(with_media), arrivals.where(~with_media)):
        load = load_of(part, wish.profile, seconds)
        parts.append(_fleet(held(engines_for(load, wish.profile, factor), wish.cold_start), wish))
    return _sum(parts)


def _fleet(up: Counts, wish: Wish) -> Fleet:
    hours = len(up) * STEP / HOUR
    return Fleet(int(up.max()), float(up.mean() * hours * wish.gpus), float(up.max() * hours * wish.gpus))


def _sum(fleets: Iterable[Fleet]) -> Fleet:
    listed = list(fleets)
    return Fleet(
        sum(fleet.peak for fleet in listed),
        sum(fleet.gpu_hours for fleet in listed),
        sum(fleet.static_gpu_hours for fleet in listed),
    )


def _serial(engines: Engines) -> Engines:
    return replace(engines, config=replace(engines.config, batched_encoder=False))


def _batched(engines: Engines) -> Engines:
    return replace(engines, config=replace(engines.config, batched_encoder=True))
