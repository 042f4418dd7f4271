"""Requests that are here and have had no answer yet: `--middleware gemma_engine.arrivals.Arrivals`, which vLLM adds to its app.

vLLM counts a request with the first step that it takes part in. An engine that hangs in the first step after it was idle shows
no request at all (`vllm:num_requests_running` and `…_waiting` are set by a step's statistics: v1/metrics/loggers.py of 0.32).
A request counts from the moment that its body is here, so that a slow upload is none, to the first byte of its answer, so that
a client who reads slowly is none either.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from .statlogger import metrics

ENGINE_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""What needs a step of the engine to be answered. A server may have a prefix before them (--root-path)."""

Message = dict[str, Any]


def asks_the_engine(scope: Message) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith(ENGINE_PATHS))


class Arrivals:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._metrics = metrics()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if not asks_the_engine(scope):
            await self._app(scope, receive, send)
            return
        request = Request(self._metrics)

        async def received() -> Message:
            message: Message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                request.arrive()
            elif message["type"] == "http.disconnect":
                request.leave()
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.body" and (message.get("body") or not message.get("more_body")):
                request.answer()
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            request.leave()


class Request:
    """One request: it arrives, is answered or leaves, each once."""

    def __init__(self, known: Any) -> None:
        self._metrics = known
        self._waits = self._is_over = False

    def arrive(self) -> None:
        if self._waits or self._is_over:
            return
        self._waits = True
        if self._metrics.is_idle and not self._metrics.waiting:
            self._metrics.last_progress.set(time.time())  # until now there was no request
        self._metrics.waiting += 1
        self._metrics.unanswered.inc()

    def answer(self) -> None:
        if self._waits:
            self._metrics.answered.inc()
        self.leave()

    def leave(self) -> None:
        self._is_over = True
        if self._waits:
            self._waits = False
            self._metrics.waiting -= 1
            self._metrics.unanswered.dec()
