"""What a real engine takes: requests one by one, sequences that decode together, and loads as they would come."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gemma_operator.planning.prompts import Wanted, body_of
from gemma_operator.planning.replay import Ask
from gemma_operator.planning.sweep_run import Seen, Target, ask
from tools.calibrate.fit import Decoding, Single, media_tokens

TEXTS = (20, 60, 110, 170)
"""Prompt lengths of single requests, in the words of `Wanted`; the tiny tokenizer makes about 3.5 tokens of each."""
FRAMES = (2, 3, 5)
SEQUENCES = (1, 8, 24)
REPEATED = 8
TOKENS_PER_WORD = 3.5


@dataclass(frozen=True, slots=True)
class Played:
    """A load as it was: what was asked and when, and the TTFT of each request in seconds."""

    asks: list[Ask]
    ttft: list[float]
    failed: int


@dataclass(slots=True)
class Engine:
    """A server under measurement."""

    session: aiohttp.ClientSession
    target: Target
    rng: random.Random

    async def total(self, name: str) -> tuple[float, float]:
        """Sum (seconds) and count of one of vLLM's histograms."""
        async with self.session.get(f"{self.target.url}/metrics") as answer:
            text = await answer.text()
        sums = re.findall(rf"^vllm:{name}_sum\{{.*\}} (\S+)$", text, re.MULTILINE)
        counts = re.findall(rf"^vllm:{name}_count\{{.*\}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, sums)), sum(map(float, counts))

    async def one(self, words: int, output: int, frames: int = 0, due: float | None = None) -> Seen:
        """Ask once. Raises RuntimeError where the engine doesn't answer."""
        body = body_of(self.target.model, Wanted(words, output, 1.0, frames or 6), frames > 0, self.rng)
        seen = Seen(time.monotonic() if due is None else due)
        await ask(self.session, self.target, body, seen)
        if seen.error or seen.ttft is None:
            raise RuntimeError(f"{self.target.url} doesn't answer as it should: {seen.error}")
        return seen


async def singles(engine: Engine) -> list[Single]:
    """Requests with one token of answer, one after the other; the first of each kind warms up."""
    found = []
    for words, frames in [*((words, 0) for words in TEXTS), *((20, frames) for frames in FRAMES)]:
        await engine.one(words, 1, frames)
        for _ in range(REPEATED):
            before, _ = await engine.total("request_prefill_time_seconds")
            seen = await engine.one(words, 1, frames)
            after, _ = await engine.total("request_prefill_time_seconds")
            found.append(Single(seen.prompt_tokens or 0, frames, seen.ttft or 0.0, after - before))
    return found


async def decodings(engine: Engine) -> list[Decoding]:
    """Sequences that begin together and answer with many tokens."""
    found = []
    for count in SEQUENCES:
        before = await engine.total("inter_token_latency_seconds")
        await asyncio.gather(*(engine.one(20, 80) for _ in range(count)))
        after = await engine.total("inter_token_latency_seconds")
        found.append(Decoding(count, (after[0] - before[0]) / (after[1] - before[1])))
    return found


async def played(engine: Engine, asks: Sequence[Ask]) -> Played:
    """Send requests when they are due, whatever the engine does; prompts are made beforehand."""
    bodies = []
    for wanted in asks:
        words = max(1, round(wanted.text_tokens / TOKENS_PER_WORD))
        made = Wanted(words, wanted.output_tokens, 1.0, wanted.frames or 6)
        bodies.append(body_of(engine.target.model, made, wanted.frames > 0, engine.rng))
    began, seen, running = time.monotonic() + 0.5, [], []
    for wanted, body in zip(asks, bodies, strict=True):
        await asyncio.sleep(max(0.0, began + wanted.at - time.monotonic()))
        seen.append(Seen(began + wanted.at))
        running.append(asyncio.create_task(ask(engine.session, engine.target, body, seen[-1])))
    await asyncio.gather(*running)
    answered = [(wanted, one) for wanted, one in zip(asks, seen, strict=True) if one.ttft is not None]
    return Played(
        [
            Ask(wanted.at, (one.prompt_tokens or 0) - media_tokens(wanted.frames), wanted.output_tokens, wanted.frames)
            for wanted, one in answered
        ],
        [one.ttft or 0.0 for _, one in answered],
        len(asks) - len(answered),
    )


@contextmanager
def waited_for_a_core(pid: int) -> Iterator[dict[str, float]]:
    """How much of its wish to run an engine's processes spent waiting for a core, by Linux' own count: 0 is a calm machine."""
    before = _schedule(pid)
    found: dict[str, float] = {}
    yield found
    ran, waited = (after - earlier for after, earlier in zip(_schedule(pid), before, strict=True))
    found["share"] = waited / (ran + waited) if ran + waited else 0.0
    found["load_average"] = os.getloadavg()[0]


def _schedule(pid: int) -> tuple[float, float]:
    """Nanoseconds that the main threads of a process and its children ran, and waited to run."""
    ran = waited = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            group = int(stat.read_text().rpartition(")")[2].split()[2])
            if group == pid:
                numbers = (stat.parent / "schedstat").read_text().split()
                ran, waited = ran + float(numbers[0]), waited + float(numbers[1])
        except (OSError, ValueError, IndexError):
            continue  # It ended meanwhile.
    return ran, waited
