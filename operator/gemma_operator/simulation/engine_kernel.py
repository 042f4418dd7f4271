"""The engine step model and a router as one compiled loop over plain arrays: the same rules as `step_model`, fast.

`step_model.Engine` is the readable form, and the stand-in server's; a test holds both to the same times. Left out here:
multi-token prediction, priorities and aborts. Times are seconds. numba compiles this once and keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FREE, SERVING, DRAINING = 0, 1, 2
"""States of an engine's slot; one that still starts is `SERVING` with `ready_at` ahead."""
SHORTEST, IN_TURN, SKEWED = 0, 1, 2
"""Routers: the fewest requests in flight, round robin, or every third request to one engine."""
NOBODY = -1
PROMPT, GENERATED, ITEMS, UNITS, FINISHED, REJECTED, RUNNING, WAITING, TOKENS, COUNTERS = range(10)
"""Columns of `Engines.counters`, TOKENS those in the KV cache; the histogram of TTFT has its own array."""


class Limits(NamedTuple):
    """What fits into a step, and how many prompt tokens may wait before requests are refused (0: any number)."""

    tokens: int
    media_tokens: int
    sequences: int = 1024
    kv_tokens: int = 1_000_000
    prefills: int = 1_000_000
    items: int = 1_000_000
    queued_tokens: int = 0


class Prices(NamedTuple):
    """Seconds; the terms of `step_model.Costs`, and two more for the prototype of research/bound.md."""

    step: float
    sequence: float
    prompt_token: float
    prefill: float
    media_step: float
    media_item: float
    media_frame: float
    media_unit: float
    tokenize: float
    decode_frame: float
    process_frame: float


class Requests(NamedTuple):
    """All requests of a run, by their index in order of arrival."""

    at: Floats
    prompt: Ints
    """With the tokens of its media."""
    output: Ints
    media: Ints
    """Prompt tokens of its image or video, the first of its prompt; 0 without."""
    frames: Ints
    units: Floats
    ready: Floats
    """When preprocessing is done."""
    computed: Ints
    generated: Ints
    encoded: Ints
    after: Ints
    before: Ints
    """Its neighbours in the engine's queue."""
    ttft: Floats
    """Not a number until there is a first token; infinite when it was refused."""


class Engines(NamedTuple):
    """All slots for engines; a slot is used again once its engine is gone."""

    state: Ints
    ready_at: Floats
    busy_until: Floats
    """Infinite while nothing is computed."""
    head: Ints
    tail: Ints
    queued: Ints
    queued_tokens: Ints
    in_flight: Ints
    sequences: Ints
    """Running sequences."""
    running: NDArray[np.int64]
    chunk: NDArray[np.int64]
    """Prompt tokens of the present step for each running sequence; 0 decodes, -1 waits."""
    reserved: Ints
    threads: NDArray[np.float64]
    processor: Floats
    edges: Floats
    histogram: NDArray[np.float64]
    counters: NDArray[np.float64]
    scrape_at: Floats
    scraped_at: Floats
    scraped_histogram: NDArray[np.float64]
    scraped: NDArray[np.float64]
    cursor: Ints
    """[next request, router's pointer, slots in use or once used]."""


def compiled(function: Function) -> Function:
    """`function`, compiled when it is first called."""
    return cast(Function, numba.njit(cache=True)(function))


@compiled
def advance(
    r: Requests, e: Engines, limits: Limits, prices: Prices, router: int, interval: float, until: float
) -> None:
    """Everything that happens before `until`."""
    slots = e.cursor[2]
    i = e.cursor[0]
    while i < r.at.size and r.at[i] < until:
        now = r.at[i]
        for slot in range(slots):
            if e.state[slot] != FREE:
                _run(r, e, limits, prices, slot, interval, now)
        slot = _route(e, router, i, now)
        if slot == NOBODY:
            r.ttft[i] = np.inf
        else:
            _arrive(r, e, limits, prices, slot, i, now)
        i += 1
    e.cursor[0] = i
    for slot in range(slots):
        if e.state[slot] != FREE:
            _run(r, e, limits, prices, slot, interval, until)


@compiled
def _route(e: Engines, router: int, i: int, now: float) -> int:
    slots = e.cursor[2]
    best = NOBODY
    first = NOBODY
    for step in range(slots):
        slot = (e.cursor[1] + 1 + step) % slots
        if e.state[slot] != SERVING or e.ready_at[slot] > now:
            continue
        if first == NOBODY:
            first = slot
        if best == NOBODY or e.in_flight[slot] < e.in_flight[best]:
            best = slot
    if router == IN_TURN:
        best = first
    elif router == SKEWED and i % 3 == 0:
        best = NOBODY
        for slot in range(slots):
            if e.state[slot] == SERVING and e.ready_at[slot] <= now:
                best = slot
                break
    if best != NOBODY:
        e.cursor[1] = best
    return best


@compiled
def _arrive(r: Requests, e: Engines, limits: Limits, prices: Prices, slot: int, i: int, now: float) -> None:
    if limits.queued_tokens and e.queued_tokens[slot] >= limits.queued_tokens:
        r.ttft[i] = np.inf
        e.counters[slot, REJECTED] += 1
        return
    e.queued_tokens[slot] += r.prompt[i]
    e.in_flight[slot] += 1
    r.ready[i] = _prepared(r, e, prices, slot, i, now)
    # Text overtakes media that is still prepared.
    before = e.tail[slot]
    while before != NOBODY and r.ready[before] > r.ready[i]:
        before = r.before[before]
    after = e.head[slot] if before == NOBODY else r.after[before]
    r.before[i], r.after[i] = before, after
    if before == NOBODY:
        e.head[slot] = i
    else:
        r.after[before] = i
    if after == NOBODY:
        e.tail[slot] = i
    else:
        r.before[after] = i
    e.queued[slot] += 1


@compiled
def _prepared(r: Requests, e: Engines, prices: Prices, slot: int, i: int, now: float) -> float:
    """As `step_model.FrontEnd.ready_at`: frames are decoded on threads, processed by one."""
    arrived = now + prices.tokenize
    if not r.media[i]:
        return arrived
    threads = e.threads[slot]
    free = np.argmin(threads)
    threads[free] = max(arrived, threads[free]) + r.frames[i] * prices.decode_frame
    ready: float = max(threads[free], e.processor[slot]) + r.frames[i] * prices.process_frame
    e.processor[slot] = ready
    return ready


@compiled
def _run(r: Requests, e: Engines, limits: Limits, prices: Prices, slot: int, interval: float, until: float) -> None:
    """The steps of one engine that end, or begin, up to `until`."""
    while True:
        head = e.head[slot]
        if e.busy_until[slot] < np.inf:
            now = e.busy_until[slot]
        elif head != NOBODY:
            now = r.ready[head]
        else:
            now = np.inf
        while e.scrape_at[slot] < now and e.scrape_at[slot] <= until:
            _scrape(r, e, slot, interval)
        if now > until:
            return
        if e.busy_until[slot] < np.inf:
            _complete(r, e, slot, now)
        e.busy_until[slot] = np.inf
        duration = _plan(r, e, limits, prices, slot, now)
        if duration > 0:
            e.busy_until[slot] = now + duration


@compiled
def _scrape(r: Requests, e: Engines, slot: int, interval: float) -> None:
    at = e.scrape_at[slot]
    e.counters[slot, RUNNING] = e.sequences[slot]
    waiting = e.queued[slot]
    i = e.tail[slot]
    while i != NOBODY and r.ready[i] > at:
        waiting -= 1
        i = r.before[i]
    e.counters[slot, WAITING] = waiting
    tokens = 0
    for position in range(e.sequences[slot]):
        tokens += r.computed[e.running[slot, position]] + r.generated[e.running[slot, position]]
    e.counters[slot, TOKENS] = tokens
    e.scraped[slot] = e.counters[slot]
    e.scraped_histogram[slot] = e.histogram[slot]
    e.scraped_at[slot] = at
    e.scrape_at[slot] += interval


@compiled
def _plan(r: Requests, e: Engines, limits: Limits, prices: Prices, slot: int, now: float) -> float:
    """Choose the next step, as `step_model.Engine.plan_step`; returns its duration, 0 where there is nothing to do."""
    tokens, media, room, items_left = limits.tokens, limits.media_tokens, limits.prefills, limits.items
    prompt = prefills = decodes = items = frames = 0
    units = 0.0
    count = e.sequences[slot]
    position = 0
    while True:
        is_new = position >= count
        if is_new:
            i = e.head[slot]
            if i == NOBODY or r.ready[i] > now or count >= limits.sequences or not room:
                break
            if count and e.reserved[slot] + r.prompt[i] + r.output[i] > limits.kv_tokens:
                break
        else:
            i = e.running[slot, position]
            if r.computed[i] == r.prompt[i]:
                e.chunk[slot, position] = -1
                if tokens > 0:
                    e.chunk[slot, position] = 0
                    tokens -= 1
                    decodes += 1
                position += 1
                continue
        end = min(r.prompt[i], r.computed[i] + max(tokens, 0))
        if r.media[i] and not r.encoded[i] and tokens > 0:
            if r.media[i] > media or not items_left:
                end = 0
            else:
                r.encoded[i] = 1
                media -= r.media[i]
                items_left -= 1
                items += 1
                frames += r.frames[i]
                units += r.units[i]
        used = end - r.computed[i]
        if used <= 0 and is_new:
            break
        if is_new:
            e.head[slot] = r.after[i]
            if e.head[slot] == NOBODY:
                e.tail[slot] = NOBODY
            else:
                r.before[e.head[slot]] = NOBODY
            e.queued[slot] -= 1
            e.running[slot, count] = i
            e.reserved[slot] += r.prompt[i] + r.output[i]
            count += 1
            room -= 1
        e.chunk[slot, position] = used if used > 0 else -1
        if used > 0:
            tokens -= used
            prompt += used
            prefills += 1
        position += 1
    e.sequences[slot] = count
    if not prefills and not decodes:
        return 0.0
    return (
        prices.step
        + prices.sequence * (prefills + decodes)
        + prices.prompt_token * prompt
        + prices.prefill * prefills
        + (prices.media_step if items else 0.0)
        + prices.media_item * items
        + prices.media_frame * frames
        + prices.media_unit * units
    )


@compiled
def _complete(r: Requests, e: Engines, slot: int, now: float) -> None:
    """Account for the step that ended."""
    kept = 0
    for position in range(e.sequences[slot]):
        i = e.running[slot, position]
        chunk = e.chunk[slot, position]
        emits = chunk == 0
        if chunk > 0:
            r.computed[i] += chunk
            e.counters[slot, PROMPT] += chunk
            if r.computed[i] == r.prompt[i]:
                emits = True
                e.queued_tokens[slot] -= r.prompt[i]
                waited = now - r.at[i]
                r.ttft[i] = waited
                e.histogram[slot, np.searchsorted(e.edges, waited)] += 1
                e.counters[slot, ITEMS] += r.encoded[i]
                e.counters[slot, UNITS] += r.units[i]
        if emits:
            r.generated[i] += 1
            e.counters[slot, GENERATED] += 1
            if r.generated[i] >= r.output[i]:
                e.counters[slot, FINISHED] += 1
                e.in_flight[slot] -= 1
                e.reserved[slot] -= r.prompt[i] + r.output[i]
                continue
        e.running[slot, kept] = i
        kept += 1
    e.sequences[slot] = kept


@compiled
def isolated(
    r: Requests, e: Engines, limits: Limits, prices: Prices, seconds: float, lead: int, slo: float, out: Floats
) -> None:
    """Misses of the requests of each slot of `seconds` (rows) under 1, 2, … replicas (columns), shortest queue first.

    Each time the engines are empty `lead` slots earlier, and nothing comes after the slot. More replicas never make
    more misses, so a row ends where one has none.
    """
    first = 0
    for slot in range(out.shape[0]):
        start, end = max(0, slot - lead) * seconds, (slot + 1) * seconds
        while first < r.at.size and r.at[first] < start:
            first += 1
        for count in range(1, out.shape[1] + 1):
            last = first
            while last < r.at.size and r.at[last] < end:
                r.computed[last] = r.generated[last] = r.encoded[last] = 0
                r.ttft[last] = np.nan
                last += 1
            _clear(e, count)
            for i in range(first, last):
                for engine in range(count):
                    _run(r, e, limits, prices, engine, np.inf, r.at[i])
                _arrive(r, e, limits, prices, _route(e, SHORTEST, i, r.at[i]), i, r.at[i])
            for engine in range(count):
                _run(r, e, limits, prices, engine, np.inf, end + slo)
            missed = 0
            for i in range(first, last):
                if r.at[i] >= slot * seconds and not r.ttft[i] <= slo:
                    missed += 1
            out[slot, count - 1] = missed
            if not missed:
                break


@compiled
def _clear(e: Engines, count: int) -> None:
    """So many engines, all Ready and empty."""
    e.cursor[1], e.cursor[2] = 0, count
    for slot in range(count):
        e.state[slot], e.ready_at[slot] = SERVING, 0.0
        e.busy_until[slot] = e.scrape_at[slot] = np.inf
        e.head[slot] = e.tail[slot] = NOBODY
        e.queued[slot] = e.queued_tokens[slot] = e.in_flight[slot] = e.sequences[slot] = e.reserved[slot] = 0
        e.threads[slot] = 0.0
        e.processor[slot] = 0.0
