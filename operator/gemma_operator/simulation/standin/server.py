"""vLLM's HTTP API in front of the engine loop."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from gemma_operator.simulation.standin.arguments import Arguments
from gemma_operator.simulation.standin.engine_loop import EngineLoop, Job
from gemma_operator.simulation.standin.metrics import EngineMetrics
from gemma_operator.simulation.standin.prompt import ApiError, parse_chat

_MAX_BODY = 256 * 2**20  # bytes; videos come inside the JSON
_WORDS = ("This ", "is ", "a ", "stand-in ", "engine: ", "it ", "answers ", "with ", "one ", "word ", "per ", "token. ")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The routes, over an engine loop that somebody else runs."""

    def __init__(self, arguments: Arguments, engine: EngineLoop, metrics: EngineMetrics, version: str) -> None:
        self._arguments = arguments
        self._engine = engine
        self._metrics = metrics
        self._version = version
        self._started = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/ping", self.health),
                web.post("/ping", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
            ]
        )
        return app

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self._version})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def models(self, _request: web.Request) -> web.Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": self._arguments.model,
                "parent": None,
                "max_model_len": self._arguments.max_model_len,
            }
            for name in self._arguments.served_names
        ]
        return web.json_response({"object": "list", "data": cards})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}") from None
        chat = parse_chat(body, self._arguments, request.headers.get("X-Vllm-Priority"))
        self._admit()
        try:
            job = await self._engine.submit(chat, self._admit)
        except ApiError as error:
            if not chat.stream or self._arguments.sheds:
                raise
            return await _end(await _begin(request), _event(error.body()))
        try:
            return await (_stream(request, job) if chat.stream else _complete(job))
        finally:
            self._engine.abort(job)

    def _admit(self) -> None:
        """vLLM's limits on the queue; None is no limit. It looks at them before and after a prompt is prepared."""
        requests, tokens = self._arguments.max_queued_requests, self._arguments.max_queued_tokens
        if requests is not None and self._engine.unfinished >= requests:
            self._metrics.on_rejection("max_num_queued_reqs")
            raise _unavailable("The engine is busy and takes no new requests: try again later.")
        if tokens is not None and self._engine.queued_tokens >= tokens:
            self._metrics.on_rejection("max_num_queued_tokens")
            raise _unavailable("The engine's prefill backlog is full: try again later.")

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            when = {"Retry-After": "1"} if error.status == 503 and self._arguments.sheds else None
            return web.json_response(error.body(), status=error.status, headers=when)


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, "Service Unavailable")


def _text(start: int, tokens: int) -> str:
    return "".join(_WORDS[index % len(_WORDS)] for index in range(start, start + tokens))


def _usage(job: Job, completion_tokens: int) -> dict[str, Any]:
    prompt_tokens = job.request.prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": job.request.cached_tokens},
    }


async def _complete(job: Job) -> web.Response:
    output = await job.outputs.get()
    return web.json_response(
        {
            **_envelope(job, "chat.completion"),
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": _text(0, output.tokens)},
                    "finish_reason": output.finish_reason,
                }
            ],
            "usage": _usage(job, output.tokens),
        }
    )


async def _stream(request: web.Request, job: Job) -> web.StreamResponse:
    """Server-sent events: the role, a chunk per output, the usage where asked for, `[DONE]`.

    As in vLLM, an answer that was aborted before its first token has no chunk with a finish reason.
    """
    response = await _begin(request)
    output = await job.outputs.get()
    envelope = _envelope(job, "chat.completion.chunk")
    chunk = _choice({"role": "assistant", "content": ""}, None)
    events = _event({**envelope, "choices": [chunk]})
    sent = 0
    while True:
        if output.tokens or sent:
            chunk = _choice({"content": _text(sent, output.tokens)}, output.finish_reason)
            events += _event({**envelope, "choices": [chunk]})
        sent += output.tokens
        await response.write(events)
        if output.finish_reason:
            break
        events = b""
        output = await job.outputs.get()
    tail = _event({**envelope, "choices": [], "usage": _usage(job, sent)}) if job.chat.include_usage else b""
    return await _end(response, tail)


async def _begin(request: web.Request) -> web.StreamResponse:
    """The head, which vLLM sends as soon as the prompt is prepared."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def _end(response: web.StreamResponse, last: bytes) -> web.StreamResponse:
    await response.write(last + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _envelope(job: Job, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": job.chat.model}


def _choice(delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
