"""An open-loop load generator for OpenAI-style chat servers.

Open loop: requests leave when they are due, however slow the answers are, so a slow server can't hide by slowing its
clients. Time to first token (TTFT) is therefore counted from the moment a request was due. Every request opens a new
connection, because kube-proxy balances connections, not requests. All times are seconds.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp


@dataclass(frozen=True)
class Body:
    """A prepared request: what kind of request it is, and its JSON."""

    kind: str
    payload: bytes


@dataclass(frozen=True)
class Outcome:
    """What became of one request. `at`: when it was due (epoch); `lag`: how late it was sent; both are the client's."""

    at: float
    kind: str
    ok: bool
    ttft: float | None
    seconds: float
    lag: float = 0.0
    error: str = ""


class BadAnswer(Exception):
    """The server answered, but not with a complete chat completion."""


class Client:
    """Sends bodies to one base URL and keeps every outcome. Leaving the context waits for what is in flight."""

    def __init__(self, url: str, *, timeout: float = 10.0, max_in_flight: int = 512) -> None:
        self.outcomes: list[Outcome] = []
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._in_flight: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"content-type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for task in self._in_flight:
                task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._session.close()

    async def offer(
        self, bodies: Iterator[Body], rate: float, seconds: float, *, stop: asyncio.Event | None = None, seed: int = 0
    ) -> None:
        """Open loop: Poisson arrivals, `rate` a second, for `seconds` or until `stop` is set."""
        stop = stop or asyncio.Event()
        gaps = random.Random(seed)
        started = time.time()
        due = started + gaps.expovariate(rate)
        while due < started + seconds and not await _set_within(stop, due - time.time()):
            self._launch(next(bodies), due)
            due += gaps.expovariate(rate)
        if not stop.is_set():
            await _set_within(stop, started + seconds - time.time())

    async def work(self, bodies: Iterator[Body], concurrency: int, stop: asyncio.Event) -> None:
        """Closed loop: `concurrency` workers, each sending its next request after its last answer, until `stop`."""

        async def worker() -> None:
            while not stop.is_set():
                await self.send(next(bodies))
                if not self.outcomes[-1].ok:
                    await _set_within(stop, 1.0)  # a broken server isn't hammered

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(worker())

    async def send(self, body: Body, due: float | None = None) -> Outcome:
        """One request, to the end of its answer. Never raises for what the server does: it becomes the outcome."""
        sent = time.time()
        due = sent if due is None else due
        first: float | None = None
        error = ""
        try:
            async with self._session.post(self._url, data=body.payload) as response:
                if response.status != 200:
                    text = (await response.text())[:200]
                    raise BadAnswer(f"HTTP {response.status}: {text}")
                if response.content_type == "text/event-stream":
                    first = await _read_stream(response)
                else:
                    if not _check_finish(await response.json()):
                        raise BadAnswer("the answer has no finish reason")
        except TimeoutError:
            error = f"no complete answer within {self._timeout:g} s"
        except BadAnswer as bad:
            error = str(bad)
        except (aiohttp.ClientError, OSError, ValueError, KeyError, AttributeError) as broken:
            error = f"{type(broken).__name__}: {broken}"
        ttft = None if first is None else first - due
        outcome = Outcome(due, body.kind, not error, ttft, time.time() - due, sent - due, error)
        self.outcomes.append(outcome)
        return outcome

    def _launch(self, body: Body, due: float) -> None:
        if len(self._in_flight) >= self._max_in_flight:
            error = f"not sent: {self._max_in_flight} requests were already in flight"
            self.outcomes.append(Outcome(due, body.kind, False, None, 0.0, time.time() - due, error))
            return
        task = asyncio.create_task(self._send_quietly(body, due))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _send_quietly(self, body: Body, due: float) -> None:
        await self.send(body, due)


async def _read_stream(response: aiohttp.ClientResponse) -> float:
    """Read server-sent events to [DONE]; return when the first token arrived (epoch).

    A draining vLLM ends a stream that it refuses as if all were well, but without a finish reason.
    """
    first: float | None = None
    finished = False
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            if first is None or not finished:
                raise BadAnswer("the stream ended without " + ("a token" if first is None else "a finish reason"))
            return first
        chunk = json.loads(data)
        if first is None and _has_token(chunk):
            first = time.time()
        finished = _check_finish(chunk) or finished
    raise BadAnswer("the stream broke off before [DONE]")


def _has_token(chunk: dict[str, Any]) -> bool:
    """vLLM opens a stream with a chunk that carries only the role; a token's text may be empty."""
    choices = chunk.get("choices") or []
    return any(choice["delta"].get("content") or "role" not in choice["delta"] for choice in choices)


def _check_finish(answer: dict[str, Any]) -> bool:
    """Whether an answer, or this chunk of one, tells that it is complete. Raises BadAnswer when it was broken off."""
    if "error" in answer:
        raise BadAnswer(f"the server reported: {json.dumps(answer['error'])[:200]}")
    reasons = {choice.get("finish_reason") for choice in answer.get("choices") or []}
    if reasons & {"abort", "error"}:
        raise BadAnswer("the server aborted the request")
    return bool(reasons - {None})


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; whether it is set."""
    if seconds > 0 and not event.is_set():
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
    return event.is_set()


def percentile(outcomes: Iterable[Outcome], percent: float) -> float | None:
    """TTFT at a percentile (nearest rank). A request that failed counts as one that never answered (infinite)."""
    values = sorted(math.inf if o.ttft is None or not o.ok else o.ttft for o in outcomes)
    return values[max(0, math.ceil(percent / 100 * len(values)) - 1)] if values else None


def attainment(outcomes: Sequence[Outcome], slo: float) -> float | None:
    """Share of requests answered completely with a TTFT of at most `slo` seconds; None without requests."""
    if not outcomes:
        return None
    return sum(o.ok and o.ttft is not None and o.ttft <= slo for o in outcomes) / len(outcomes)
