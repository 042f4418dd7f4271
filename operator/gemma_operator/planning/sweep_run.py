"""An open-loop sweep against a server of OpenAI's API: the load comes when it is due, whatever the server does."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gemma_operator.planning.errors import SweepError
from gemma_operator.planning.prompts import Wanted, body_of
from gemma_operator.planning.stages import Process, Stage, at_percentile, mix_of, percentiles_of
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.verdict import wilson

WARM_UP = 3
"""Requests of each kind before the first stage: the first ones compile and fill caches."""
LONGEST_WAIT = 60.0
"""Seconds after which a request is given up; it is a miss long before."""
SHARE_TO_STOP = 0.5
"""Share of a stage's requests after which it may end early, where its SLO is proven to be missed: one burst is no proof."""
NARROW_ENOUGH = 1.2
"""Quotient of the lowest rate that misses the SLO to the highest that holds it, at which the search is over."""
LOWEST, HIGHEST = 1 / 16, 4096.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and what is asked of it."""

    url: str
    model: str
    wanted: Wanted
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """How much of it, and when."""

    requests: int = 200
    """Per stage."""
    burstiness: float = 2.0
    """Coefficient of variation of the gaps between requests."""
    seed: int = 1


@dataclass(slots=True)
class Seen:
    """One request as its client saw it."""

    due: float
    sent: float = 0.0
    ttft: float | None = None
    error: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def next_rate(held: Sequence[float], missed: Sequence[float], start: float) -> float | None:
    """The next rate of a search by doubling, halving and geometric halving; None where it is over."""
    if not held and not missed:
        return start
    low, high = max(held, default=0.0), min((rate for rate in missed if rate > max(held, default=0.0)), default=None)
    if high is None:
        return 2 * low if 2 * low <= HIGHEST else None
    if not held:
        return high / 2 if high / 2 >= LOWEST else None
    return None if high <= NARROW_ENOUGH * low else float((low * high) ** 0.5)


async def sweep(
    target: Target, load: Load, slo: Slo, rates: Sequence[float], start: float, tell: Callable[[str], None]
) -> list[Stage]:
    """Stages at the given rates, or by a search where none are given.

    Raises:
        SweepError: the server can't be reached, refuses what is asked, or doesn't stream.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=LONGEST_WAIT)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as session:
        await _warm_up(session, target, load.seed)
        stages: list[Stage] = []
        held: list[float] = []
        missed: list[float] = []
        planned = list(rates)
        while rate := (planned.pop(0) if planned else None if rates else next_rate(held, missed, start)):
            stage = await _stage(session, target, load, slo, rate, len(stages))
            stages.append(stage)
            share = stage.within / stage.requests if stage.requests else 0.0
            (held if share >= slo.percentile / 100 else missed).append(rate)
            ttft = "none answered" if stage.ttft is None else f"p{slo.percentile:g} TTFT {stage.ttft * 1000:.0f} ms"
            tell(f"{rate:.3g} requests/s: {share:.1%} of {stage.requests} within {slo.seconds * 1000:g} ms, {ttft}")
        return stages


async def served(url: str, headers: dict[str, str]) -> tuple[str, str | None]:
    """The first model that a server offers, and its vLLM version where it says one. Raises SweepError."""
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            models = await _json(session, f"{url}/v1/models")
            try:
                model = str(models["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise SweepError(f"{url}/v1/models offers no model: give --model") from None
            try:
                version = (await _json(session, f"{url}/version")).get("version")
            except (SweepError, AttributeError):
                version = None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        if isinstance(error, SweepError):
            raise
        raise SweepError(f"{url} can't be asked: {str(error) or type(error).__name__}") from None
    return model, version if isinstance(version, str) else None


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        if response.status != 200:
            raise SweepError(f"{url} answers {response.status}: {(await response.text())[:120]}")
        return await response.json(content_type=None)


async def _warm_up(session: aiohttp.ClientSession, target: Target, seed: int) -> None:
    """A few requests one by one. Raises SweepError where one of them fails."""
    rng = random.Random(f"{seed} warm-up")
    kinds = [False, True] if 0 < target.wanted.media_share < 1 else [target.wanted.media_share > 0]
    for number in range(WARM_UP * len(kinds)):
        seen = Seen(time.monotonic())
        await ask(session, target, body_of(target.model, target.wanted, kinds[number % len(kinds)], rng), seen)
        if seen.error:
            raise SweepError(f"{target.url} doesn't answer as it should: {seen.error}")


async def _stage(
    session: aiohttp.ClientSession, target: Target, load: Load, slo: Slo, rate: float, number: int
) -> Stage:
    rng = random.Random(f"{load.seed} {number}")
    shape, wanted = 1 / load.burstiness**2, target.wanted
    at, planned = 0.0, []
    for _ in range(load.requests):
        at += rng.gammavariate(shape, 1 / (shape * rate))
        with_media = rng.random() < wanted.media_share
        # Made beforehand: drawing pictures would hold up the clock.
        planned.append((at, body_of(target.model, wanted, with_media, rng)))
    sent: list[Seen] = []
    running: list[asyncio.Task[None]] = []
    began = time.monotonic()
    for due, body in planned:
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        if _is_lost(sent, load, slo):
            break
        sent.append(Seen(began + due))
        running.append(asyncio.create_task(ask(session, target, body, sent[-1])))
    ended = time.monotonic()
    await asyncio.gather(*running)
    return _summary(sent, rate, ended - began, slo, load, target)


def _is_lost(sent: Sequence[Seen], load: Load, slo: Slo) -> bool:
    """Whether the stage is proven to miss the SLO already; more requests would only wait longer."""
    now = time.monotonic()
    known = [seen for seen in sent if seen.error or seen.ttft is not None or now - seen.due > slo.seconds]
    if len(known) < SHARE_TO_STOP * load.requests:
        return False
    good = sum(seen.ttft is not None and seen.ttft <= slo.seconds for seen in known)
    return wilson(good, len(known))[1] < slo.percentile / 100


def _summary(sent: Sequence[Seen], rate: float, seconds: float, slo: Slo, load: Load, target: Target) -> Stage:
    answered = [seen.ttft for seen in sent if seen.ttft is not None]
    lengths = [seen for seen in sent if seen.prompt_tokens is not None]
    wanted = target.wanted

    def mean(values: Sequence[int | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    videos, images = (wanted.media_share, 0.0) if wanted.frames > 1 else (0.0, wanted.media_share)
    return Stage(
        requested=rate,
        achieved=rate if len(sent) < load.requests else len(sent) / max(seconds, 1e-9),
        requests=len(sent),
        within=sum(ttft <= slo.seconds for ttft in answered),
        ttft=at_percentile(percentiles_of(answered), slo) if answered else None,
        mix=mix_of(
            mean([seen.prompt_tokens for seen in lengths]), mean([seen.output_tokens for seen in lengths]),
            videos, wanted.frames, images,
        ),
        process=Process("gamma", load.burstiness) if load.burstiness != 1 else Process("poisson", 1.0),
        delay=at_percentile(percentiles_of([max(0.0, seen.sent - seen.due) for seen in sent]), Slo(95, 1)) if sent else None,
        failed=sum(bool(seen.error) for seen in sent),
        model=target.model,
        source=target.url,
    )  # fmt: skip


async def ask(session: aiohttp.ClientSession, target: Target, body: bytes, seen: Seen) -> None:
    """One request; whatever happens is in `seen`. TTFT counts from when the request was due."""
    seen.sent = time.monotonic()
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(f"{target.url}/v1/chat/completions", data=body, headers=headers) as response:
            if response.status != 200:
                said = " ".join((await response.text()).split())[:200]
                seen.error = f"HTTP {response.status}: {said}"
                return
            if "event-stream" not in response.content_type:
                seen.error = f"it answers with {response.content_type}, not with a stream"
                return
            async for line in response.content:
                _read(line, seen)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        seen.error = str(error) or type(error).__name__
    if seen.ttft is None and not seen.error:
        seen.error = "the stream ended without an answer"


def _read(line: bytes, seen: Seen) -> None:
    """One line of a stream of server-sent events."""
    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
        return
    event = json.loads(line[5:])
    if error := event.get("error"):
        seen.error = str(error.get("message", error) if isinstance(error, dict) else error)[:200]
        return
    if seen.ttft is None and event.get("choices"):
        seen.ttft = time.monotonic() - seen.due
    if usage := event.get("usage"):
        seen.prompt_tokens, seen.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
