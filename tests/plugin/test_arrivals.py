"""The count of requests that are here and have had no answer yet, as an app behind it and its clients see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gemma_engine import arrivals, statlogger
from prometheus_client import REGISTRY

CHAT = "/v1/chat/completions"
BODY = {"type": "http.request", "body": b"{}", "more_body": False}
PART = {**BODY, "more_body": True}
GONE = {"type": "http.disconnect"}
START = {"type": "http.response.start", "status": 200}
WORD = {"type": "http.response.body", "body": b"word", "more_body": True}
NOTHING = {**WORD, "body": b""}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def counts() -> tuple[float, float]:
    """Unanswered requests, and how many were answered."""
    names = ("gemma_engine_unanswered_requests", "gemma_engine_answered_requests_total")
    return tuple(REGISTRY.get_sample_value(name) or 0.0 for name in names)  # type: ignore[return-value]


def course(*messages: dict[str, Any], path: str = CHAT, method: str = "POST", kind: str = "http") -> list[Any]:
    """(unanswered, answered) after each message between client and app, and last of all after the app has ended."""
    seen: list[tuple[float, float]] = []
    unanswered, answered = counts()

    def note() -> None:
        now = counts()
        seen.append((now[0] - unanswered, now[1] - answered))

    async def app(_: Any, receive: Any, send: Any) -> None:
        for message in messages:
            if message["type"] in ("http.request", "http.disconnect"):
                assert await receive() == message
            else:
                await send(message)
            note()

    async def run() -> None:
        incoming = iter([m for m in messages if m["type"] in ("http.request", "http.disconnect")])
        outgoing: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return next(incoming)

        async def send(message: dict[str, Any]) -> None:
            outgoing.append(message)

        await arrivals.Arrivals(app)({"type": kind, "method": method, "path": path}, receive, send)
        assert outgoing == [m for m in messages if m["type"].startswith("http.response")]
        note()

    asyncio.run(run())
    return seen


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([BODY, START, WORD, WORD, END], [(1, 0), (1, 0), (0, 1), (0, 1), (0, 1), (0, 1)], id="a stream"),
        pytest.param([BODY, START, NOTHING, WORD], [(1, 0), (1, 0), (1, 0), (0, 1), (0, 1)], id="nothing is no word"),
        pytest.param([BODY, START, END], [(1, 0), (1, 0), (0, 1), (0, 1)], id="an empty answer"),
        pytest.param([PART, PART, BODY, GONE], [(0, 0), (0, 0), (1, 0), (0, 0), (0, 0)], id="slow to come, then gone"),
        pytest.param([PART, GONE], [(0, 0), (0, 0), (0, 0)], id="never came whole"),
        pytest.param([START, END], [(0, 0), (0, 0), (0, 0)], id="refused before it was read"),
        pytest.param([BODY, GONE, WORD, END], [(1, 0), (0, 0), (0, 0), (0, 0), (0, 0)], id="an answer to nobody"),
        pytest.param([BODY, START, WORD, GONE, BODY], [(1, 0), (1, 0), *[(0, 1)] * 4], id="nothing comes twice"),
        pytest.param([BODY], [(1, 0), (0, 0)], id="the app ends without an answer"),
    ],
)
def test_a_request_waits_from_its_last_byte_to_its_answers_first(messages: list[Any], expected: list[Any]) -> None:
    assert course(*messages) == expected


@pytest.mark.parametrize(
    ("about", "counted"),
    [
        ({"path": "/v1/completions"}, True),
        ({"path": "/behind/a/prefix/v1/messages"}, True),
        ({"path": "/v1/load_lora_adapter"}, False),
        ({"path": "/sleep"}, False),
        ({"path": "/v1/chat/completions/render"}, False),
        ({"method": "GET", "path": "/v1/responses"}, False),
    ],
)
def test_counts_what_needs_a_step_of_the_engine(about: dict[str, str], counted: bool) -> None:
    assert course(BODY, **about)[0] == (float(counted), 0)


def test_connections_that_are_no_requests_pass() -> None:
    async def run() -> list[Any]:
        seen: list[Any] = []

        async def app(scope: Any, *_: Any) -> None:
            seen.append(scope)

        for kind in ("lifespan", "websocket"):
            await arrivals.Arrivals(app)({"type": kind, "path": CHAT}, None, None)
        return seen

    assert [scope["type"] for scope in asyncio.run(run())] == ["lifespan", "websocket"]


def test_an_app_that_fails_leaves_nothing_behind() -> None:
    before = counts()

    async def app(_: Any, receive: Any, __: Any) -> None:
        await receive()
        raise RuntimeError("boom")

    async def receive() -> dict[str, Any]:
        return BODY

    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(arrivals.Arrivals(app)({"type": "http", "method": "POST", "path": CHAT}, receive, None))
    assert counts() == before


def test_time_without_progress_begins_with_the_first_request_after_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    known = statlogger.metrics()
    clock = 5000.0
    monkeypatch.setattr(arrivals.time, "time", lambda: clock)
    monkeypatch.setattr(known, "is_idle", True)
    first, second = arrivals.Request(known), arrivals.Request(known)
    first.arrive()
    clock = 6000.0
    second.arrive()
    assert REGISTRY.get_sample_value("gemma_engine_last_progress_timestamp_seconds") == 5000.0
    for request in (first, second):
        request.leave()
    monkeypatch.setattr(known, "is_idle", False)  # requests run, so that another one is no news
    third = arrivals.Request(known)
    third.arrive()
    third.leave()
    assert REGISTRY.get_sample_value("gemma_engine_last_progress_timestamp_seconds") == 5000.0
