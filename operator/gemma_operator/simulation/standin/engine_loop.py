"""The step model in real time: requests go in, tokens come out on a queue per request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gemma_operator.simulation.standin.arguments import Arguments
from gemma_operator.simulation.standin.metrics import EngineMetrics
from gemma_operator.simulation.standin.prompt import BLOCK_TOKENS, Chat, Segment
from gemma_operator.simulation.step_model import Costs, Emission, Engine, FrontEnd, Request

# A step may start this much in the past (seconds), to make up for late wake-ups; more would be a burst of short steps.
_CATCH_UP = 0.02
_HANG_LOOK_SECONDS = 0.2
_ITEMS_PER_GB = 80  # a processed 6-frame video is about 12 MB


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of a request; the last one carries the reason why it ended."""

    tokens: int
    finish_reason: str | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine, and the tokens that its client still has to be told."""

    chat: Chat
    request: Request
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    held: int = 0  # tokens of an answer that isn't streamed


class Lru:
    """The newest keys, up to a number of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys: OrderedDict[int, None] = OrderedDict()

    def seen(self, key: int) -> bool:
        """Whether the key is there; it is afterwards."""
        known = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._size:
            self._keys.popitem(last=False)
        return known


class EngineLoop:
    """One engine with its front end. `submit()` a chat, read the outputs; `abort()` when the client leaves."""

    def __init__(
        self, arguments: Arguments, costs: Costs, metrics: EngineMetrics, hangs: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine = Engine(arguments.engine, costs)
        self._front_end = FrontEnd(costs, servers=arguments.api_servers)
        self._metrics = metrics
        self._hangs = hangs
        self._jobs: dict[Request, Job] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._shutting_down = False
        self._prefixes = Lru(arguments.engine.kv_cache_tokens // BLOCK_TOKENS) if arguments.prefix_caching else None
        self._processed = Lru(int(arguments.mm_cache_gb * _ITEMS_PER_GB)) if arguments.mm_cache_gb > 0 else None

    @property
    def unfinished(self) -> int:
        return len(self._jobs)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of requests without a first token."""
        return sum(request.prompt_tokens for request in self._jobs if not request.generated)

    async def submit(self, chat: Chat, admit: Callable[[], None]) -> Job:
        """Preprocess a chat and hand it to the engine, unless `admit` raises; while shutting down it is aborted instead."""
        arrival = time.monotonic()
        media = chat.media
        known = [segment for segment in media if self._processed and self._processed.seen(segment.digest)]
        ready = self._front_end.ready_at(arrival, [_frames(s) for s in media], sum(_frames(s) for s in known))
        await asyncio.sleep(ready - arrival)
        admit()
        cached, new_media = self._lookup(chat.segments)
        job = Job(
            chat,
            Request(
                arrival=arrival,
                text_tokens=chat.prompt_tokens - sum(segment.tokens for segment in new_media),
                output_tokens=chat.output_tokens,
                media=[segment.media for segment in new_media if segment.media],
                priority=chat.priority,
                cached_tokens=cached,
            ),
        )
        if self._shutting_down:
            self._abort_by_engine(job)
            return job
        self._metrics.on_arrival(
            chat.prompt_tokens if self._prefixes else 0,
            job.request.cached_tokens,
            len(media) if self._processed else 0,
            len(known),
        )
        self._jobs[job.request] = job
        self._idle.clear()
        self._engine.add(job.request, time.monotonic())
        self._wake.set()
        return job

    def abort(self, job: Job) -> None:
        """The client left: the request is dropped without a trace in the metrics."""
        if self._jobs.pop(job.request, None):
            self._engine.abort(job.request)

    async def run(self) -> None:
        """Compute for ever."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            due = max(due, now - _CATCH_UP)
            step = self._engine.plan_step(due)
            if step is None:
                self._metrics.on_state(self._engine)
                if not self._jobs:
                    self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            while self._hangs():  # a step that never ends: the server goes on answering, and metrics stay as they were
                await asyncio.sleep(_HANG_LOOK_SECONDS)
            due += step.duration
            await asyncio.sleep(max(0.0, due - now))
            emissions = self._engine.complete(step, time.monotonic())
            self._metrics.on_step(step, emissions)
            self._metrics.on_state(self._engine)
            for emission in emissions:
                self._deliver(emission)

    async def shut_down(self, timeout: float) -> None:
        """Refuse new requests; running and waiting ones get `timeout` seconds (0: none) before they are aborted."""
        self._shutting_down = True
        if timeout:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout)
        for job in list(self._jobs.values()):
            self.abort(job)
            self._abort_by_engine(job)

    def _abort_by_engine(self, job: Job) -> None:
        job.outputs.put_nowait(Output(0, "abort"))
        self._metrics.on_abort()

    def _deliver(self, emission: Emission) -> None:
        job = self._jobs[emission.request]
        job.held += emission.tokens
        if not emission.finished:
            if job.chat.stream:
                job.outputs.put_nowait(Output(job.held))
                job.held = 0
            return
        del self._jobs[emission.request]
        job.outputs.put_nowait(Output(job.held, job.chat.finish_reason))
        self._metrics.on_finish(emission.request, job.chat.finish_reason, job.chat.max_tokens)

    def _lookup(self, segments: Sequence[Segment]) -> tuple[int, list[Segment]]:
        """Leading prompt tokens in the prefix cache, and the media after them; then the prompt is in the cache."""
        if self._prefixes is None:
            return 0, [segment for segment in segments if segment.media]
        cached, chain, hit = 0, 0, True
        missed: list[Segment] = []
        for segment in segments:
            chain = hash((chain, segment.digest))
            hit = self._prefixes.seen(chain) and hit
            if hit:
                cached += segment.tokens
            elif segment.media:
                missed.append(segment)
        return cached, missed


def _frames(segment: Segment) -> int:
    return segment.media.frames if segment.media else 0
