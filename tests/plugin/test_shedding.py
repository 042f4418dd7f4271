"""What clients get of a request that vLLM's admission limits refuse: 503 and when to come again, streamed or not.

test_server.py has the same on the real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gemma_engine import shedding

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream"), (b"x-id", b"7")],
}
WORD = {"type": "http.response.body", "body": b"data: word\n\n", "more_body": True}
ERROR = {"type": "http.response.body", "body": b'data: {"error": {"code": 503}}\n\n', "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}
BUSY = {**START, "status": 503, "headers": [(b"content-type", b"application/json")]}
BODY = {"type": "http.response.body", "body": b"{}", "more_body": False}
TAKEN, FULL, BROKEN = "the engine takes it in", "the engine is full", "the engine is broken"


class Refusal(Exception):
    http_status = 503


class Engine:
    """As much of vLLM's as the middleware touches."""

    def __init__(self) -> None:
        self.aborted: list[tuple[str, bool]] = []

    async def add_request(self, outcome: str) -> Any:
        if outcome == FULL:
            raise Refusal("backlog limit")
        if outcome == BROKEN:
            raise RuntimeError("broken")
        return SimpleNamespace(request_id="chat-7-a1b2")

    async def abort(self, request_id: str, internal: bool = False) -> None:
        self.aborted.append((request_id, internal))


add_request = shedding.telling(Engine.add_request)


@pytest.fixture
def shed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., shedding.Shedding]:
    """The middleware before an app that plays a script; no vLLM is touched."""
    monkeypatch.setattr(shedding, "install", lambda: None)
    return shedding.Shedding


def course(shed: Any, *script: Any, path: str = CHAT, kind: str = "http", after: float = 0.0) -> list[Any]:
    """What a client gets, each with the index of the script's line that made it come. An exception in the script is raised."""
    seen: list[Any] = []
    line = 0

    async def app(_: Any, __: Any, send: Any) -> None:
        nonlocal line
        for line, step in enumerate(script):  # noqa: B007 - told to `send`
            if isinstance(step, Exception):
                raise step
            if isinstance(step, str):
                with contextlib.suppress(Refusal, RuntimeError):
                    assert (await add_request(Engine(), step)).request_id
            else:
                await send(step)

    async def send(message: dict[str, Any]) -> None:
        seen.append((line, message))

    middleware = shed(app)
    middleware.note(after)
    asyncio.run(middleware({"type": kind, "method": "POST", "path": path}, None, send))
    return seen


def told_busy(seen: list[Any]) -> tuple[int, dict[str, str], Any]:
    """The line that brought it, the headers and the body of a refusal, which is all that came."""
    (line, start), (_, body) = seen
    assert (start["type"], start["status"], body["more_body"]) == ("http.response.start", 503, False)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert int(headers["content-length"]) == len(body["body"])
    return line, headers, json.loads(body["body"])


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        pytest.param([START, TAKEN, WORD, WORD, END], [1, 2, 3, 4], id="a stream begins once it is taken in"),
        pytest.param([START, WORD, TAKEN, WORD, END], [2, 2, 3, 4], id="and what it said before comes with it"),
        pytest.param([START, WORD, WORD, END], [3, 3, 3, 3], id="a stream that asks no engine"),
        pytest.param([TAKEN, START, BODY], [1, 2], id="an answer in one piece"),
        pytest.param([START, BROKEN, WORD, END], [3, 3, 3], id="any other error is vLLM's to tell"),
        pytest.param(
            [START, TAKEN, WORD, FULL, ERROR, END], [1, 2, 4, 5], id="the second prompt of a request is refused"
        ),
    ],
)
def test_all_else_comes_as_it_was_sent(shed: Any, script: list[Any], lines: list[int]) -> None:
    expected = [step for step in script if isinstance(step, dict)]
    assert course(shed, *script) == list(zip(lines, expected, strict=True))


@pytest.mark.parametrize("rest", [[ERROR, END], [RuntimeError("response already started")], []])
def test_a_stream_that_is_refused_is_a_503_with_the_time_to_wait(shed: Any, rest: list[Any]) -> None:
    line, headers, body = told_busy(course(shed, START, FULL, *rest))
    assert line == 1, "at once"
    assert (headers["retry-after"], headers["content-type"], headers["x-id"]) == ("1", "application/json", "7")
    assert body == {"error": {"message": "backlog limit", "type": "Service Unavailable", "param": None, "code": 503}}


def test_messages_have_their_own_form_of_an_error(shed: Any) -> None:
    _, _, body = told_busy(course(shed, START, WORD, FULL, ERROR, END, path=MESSAGES))
    assert body == {"type": "error", "error": {"message": "backlog limit", "type": "Service Unavailable"}}


@pytest.mark.parametrize(("waited", "told"), [(0.0, "1"), (0.2, "1"), (1.2, "2"), (30.0, "30"), (3600.0, "60")])
def test_the_time_is_what_the_last_stream_waited(shed: Any, waited: float, told: str) -> None:
    ((_, start), _) = course(shed, BUSY, BODY, after=waited)
    assert start["headers"] == [(b"content-type", b"application/json"), (b"retry-after", told.encode())]


def test_a_time_that_is_told_already_stays(shed: Any) -> None:
    busy = {**BUSY, "headers": [(b"Retry-After", b"7")]}
    ((_, start), _) = course(shed, busy, BODY)
    assert start == busy


def test_waits_of_streams_are_measured(shed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([50.0, 100.0, 102.5, 102.5, 102.5 + 60, 102.5 + 61, 200.0])
    monkeypatch.setattr(shedding, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made: list[Any] = []
    course(lambda app: made.append(shed(app)) or made[-1], START, TAKEN, WORD, WORD, END)
    assert [made[0].retry_after for _ in range(2)] == [3, 1], "and hold for a minute"
    assert shed(None).retry_after == 1, "before there was any"


@pytest.mark.parametrize("error", [OSError("the client is gone"), asyncio.CancelledError()])
def test_a_request_whose_answer_cannot_begin_is_not_left_in_the_engine(shed: Any, error: BaseException) -> None:
    engine = Engine()

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await add_request(engine, TAKEN)

    async def send(_: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        asyncio.run(shed(app)({"type": "http", "method": "POST", "path": CHAT}, None, send))
    assert engine.aborted == [("chat-7-a1b2", True)]


@pytest.mark.parametrize("about", [{"path": "/health"}, {"kind": "websocket"}, {"path": "/sleep"}])
def test_what_asks_no_engine_passes(shed: Any, about: dict[str, str]) -> None:
    assert course(shed, BUSY, WORD, BODY, **about) == [(0, BUSY), (1, WORD), (2, BODY)]


def test_an_app_that_fails_fails_as_before(shed: Any) -> None:
    for script in ([START, ValueError("boom")], [START, TAKEN, WORD, ValueError("boom")]):
        with pytest.raises(ValueError, match="boom"):
            course(shed, *script)
