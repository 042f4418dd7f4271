"""Refusals by vLLM's admission limits, in words that clients and gateways act on: `--middleware gemma_engine.shedding.Shedding`.

vLLM 0.29 to 0.33 look at the limits twice. A request that finds them reached when it comes gets 503, without Retry-After. One
that runs into them after its prompt has been prepared (a burst, above all one with media) has begun to stream by then: its
200 is on the way (Starlette and uvicorn send the head of a stream at once), and the refusal follows as an event of code 503
(chat, completions), as an `internal_error` (messages), or as a connection that breaks off (responses).

Here the head of an answer waits until the engine has taken the request in or refused it, milliseconds after the prompt is
prepared; all else passes as it comes. Nothing is known to need the head before that: arrivals.py counts from the first byte of a
body, and vLLM's keep-alive comments (--sse-keep-alive-interval) begin later. Every 503 gets Retry-After where it has none.
"""

from __future__ import annotations

import contextvars
import functools
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .arrivals import Message, asks_the_engine

LONGEST = 60
"""Seconds of Retry-After. OpenAI's client for Python waits two minutes at most (3.57, _constants.py), and gives up on more."""

OF_THE_BODY = (b"content-type", b"content-length")

ANSWER: contextvars.ContextVar[Answer | None] = contextvars.ContextVar("gemma_engine_answer", default=None)
"""The answer to the request that this task works for. Tasks that it starts inherit it."""


class Shedding:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        install()
        self._app = app
        self._last_wait, self._noted_at = 0.0, -math.inf

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if not asks_the_engine(scope):
            await self._app(scope, receive, send)
            return
        answer = Answer(self, scope["path"], send)
        ANSWER.set(answer)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            if not answer.is_refused:
                raise

    def note(self, seconds: float) -> None:
        """A stream has its first token after so long."""
        self._last_wait, self._noted_at = seconds, time.monotonic()

    @property
    def retry_after(self) -> int:
        """Whole seconds, 1 to 60: what stood before the last stream, about as much as the limit lets wait, took so long.

        1 where no stream had its first token within the last minute: that one's wait says nothing of now.
        """
        if time.monotonic() - self._noted_at > LONGEST:
            return 1
        return max(1, min(LONGEST, math.ceil(self._last_wait)))


class Answer:
    """What goes to one client: held back until the engine has decided on the request."""

    def __init__(self, shedding: Shedding, path: str, send: Callable[[Message], Awaitable[None]]) -> None:
        self._shedding = shedding
        self._path = path
        self._send = send
        self._held: list[Message] = []
        self._is_decided = self.is_refused = False
        self._waits_since: float | None = None

    async def send(self, message: Message) -> None:
        if self.is_refused:
            return
        if message["type"] == "http.response.start" and message["status"] == 503:
            message = {**message, "headers": with_retry_after(message.get("headers", ()), self._shedding.retry_after)}
        if self._is_decided:
            self._note_first_token()
            await self._send(message)
            return
        self._held.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await self._release()

    async def admit(self) -> None:
        """The engine has taken the request in."""
        if not self._is_decided:
            if self._held:  # a stream: it has begun before there is a token
                self._waits_since = time.monotonic()
            await self._release()

    async def refuse(self, error: Exception) -> None:
        """The engine has refused it. An answer that hasn't begun is vLLM's to give."""
        if self._is_decided or not self._held:
            return
        self._is_decided = self.is_refused = True
        body = json.dumps(error_body(self._path, str(error))).encode()
        kept = [(name, value) for name, value in self._held[0].get("headers", ()) if name.lower() not in OF_THE_BODY]
        headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers = with_retry_after(headers, self._shedding.retry_after)
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _release(self) -> None:
        self._is_decided = True
        held, self._held = self._held, []
        for message in held:
            await self._send(message)

    def _note_first_token(self) -> None:
        if self._waits_since is not None:
            self._shedding.note(time.monotonic() - self._waits_since)
            self._waits_since = None


def with_retry_after(headers: Any, seconds: int) -> list[tuple[bytes, bytes]]:
    """`headers`, and Retry-After where they don't have it."""
    known = list(headers)
    if any(name.lower() == b"retry-after" for name, _ in known):
        return known
    return [*known, (b"retry-after", str(seconds).encode())]


def error_body(path: str, message: str) -> dict[str, Any]:
    """As vLLM 0.32 words a refusal that it gives at once."""
    about = {"message": message, "type": "Service Unavailable"}
    if path.endswith("/v1/messages"):
        return {"type": "error", "error": about}
    return {"error": {**about, "param": None, "code": 503}}


@functools.cache
def install() -> None:
    """Once in a process: answers learn what the engine decides. It has no hook for that."""
    from vllm.v1.engine.async_llm import AsyncLLM

    AsyncLLM.add_request = telling(AsyncLLM.add_request)


def telling(add_request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`add_request` that tells the answer of the request whether it was let in. 503 is what refusals carry (`http_status`)."""

    @functools.wraps(add_request)
    async def told(engine: Any, *args: Any, **kwargs: Any) -> Any:
        answer = ANSWER.get()
        try:
            taken = await add_request(engine, *args, **kwargs)
        except Exception as error:
            if answer and getattr(error, "http_status", None) == 503:
                await answer.refuse(error)
            raise
        if answer:
            try:
                await answer.admit()
            except BaseException:  # the caller aborts what it was handed, and this it never is
                await engine.abort(taken.request_id, internal=True)
                raise
        return taken

    return told
