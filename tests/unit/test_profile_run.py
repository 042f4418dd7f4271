"""gemma-operator profile run: an open-loop sweep against servers good and bad, and against the stand-in's known capacity."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image

from gemma_operator.api.parse import stored_profile
from gemma_operator.cli import main
from gemma_operator.planning.errors import SweepError
from gemma_operator.planning.operating import operating_point
from gemma_operator.planning.prompts import Wanted, body_of, picture
from gemma_operator.planning.replay import Ask, ttfts
from gemma_operator.planning.sweep_run import Load, Target, next_rate, served, sweep
from gemma_operator.scaling.pool import Slo
from gemma_operator.simulation.step_model import Costs, EngineConfig
from tests.unit.test_standin import program

SLO = Slo(95, 0.3)
ANY_MACHINE = Slo(95, 30.0)
"""For what is counted and not timed, so that other programs on this machine count nothing."""
SMALL = Wanted(prompt_tokens=20, output_tokens=4)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def stream(request: web.Request, *events: Any, wait: float = 0.0) -> web.StreamResponse:
    await request.read()
    await asyncio.sleep(wait)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
    return response


TOKEN = {"choices": [{"delta": {"content": "a"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 4}}


async def good(request: web.Request) -> web.StreamResponse:
    return await stream(request, TOKEN, TOKEN, USAGE, "[DONE]")


@contextlib.asynccontextmanager
async def server(answer: Answer, models: Any = None) -> AsyncIterator[Target]:
    async def offered(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "gemma"}]} if models is None else models)

    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.post("/v1/chat/completions", answer), web.get("/v1/models", offered)])
    async with TestServer(app) as running:
        yield Target(f"http://127.0.0.1:{running.port}", "gemma", SMALL)


async def measure(target: Target, *rates: float, requests: int = 40, slo: Slo = SLO, **more: Any) -> list[Any]:
    return await sweep(target, Load(requests, **more), slo, rates, 1.0, lambda _: None)


# --- what is sent ---


def test_pictures_are_pictures_and_differ():
    rng = random.Random(1)
    first, second = picture(rng), picture(rng)
    with Image.open(io.BytesIO(first)) as image:
        image.load()
        assert (image.size, image.mode) == ((854, 480), "RGB")
        assert image.getpixel((0, 0)) == image.getpixel((0, 479))
    assert first != second
    assert len(first) < 20_000


@pytest.mark.parametrize(("frames", "kind"), [(1, "image_url"), (6, "video_url")])
def test_bodies_are_unlike_each_other(frames, kind):
    wanted = Wanted(100, 10, 1.0, frames)
    one, other = (json.loads(body_of("m", wanted, True, random.Random(seed))) for seed in (1, 2))
    assert one["messages"] != other["messages"]
    text, media = one["messages"][0]["content"]
    assert len(text["text"]) == 399
    assert media["type"] == kind
    assert media[kind]["url"].count(",") == frames
    assert (one["max_tokens"], one["ignore_eos"], one["stream"]) == (10, True, True)


# --- where it searches ---


@pytest.mark.parametrize(
    ("held", "missed", "rate"),
    [
        ([], [], 3.0),
        ([3], [], 6),
        ([3, 6], [12], 8.485),
        ([3, 6, 8.485], [12], 10.09),
        ([3, 6, 8.485, 10.09], [12], None),  # close enough
        ([], [3], 1.5),
        ([], [0.0625], None),  # nothing holds
        ([4096], [], None),  # everything does
        ([6], [4, 12], 8.485),  # not monotone: on above what held
    ],
)
def test_the_next_rate(held, missed, rate):
    found = next_rate(held, missed, 3.0)
    assert found == (None if rate is None else pytest.approx(rate, abs=0.01))


# --- what is seen ---


async def test_a_stage_is_what_its_clients_saw():
    async with server(good) as target:
        (stage,) = await measure(target, 200.0, slo=ANY_MACHINE, burstiness=1.0)
    assert (stage.requests, stage.within, stage.failed) == (40, 40, 0)
    assert (stage.mix.prompt_tokens, stage.mix.output_tokens) == (31, 4)
    assert (stage.process.name, stage.model) == ("poisson", "gemma")


async def test_load_comes_when_it_is_due_whatever_the_server_does():
    """A server that takes one request at a time, 50 ms each, is asked 100 times a second all the same."""
    lock, arrived = asyncio.Lock(), []

    async def slow(request: web.Request) -> web.StreamResponse:
        arrived.append(asyncio.get_running_loop().time())
        async with lock:
            return await stream(request, TOKEN, wait=0.05 if len(arrived) > 3 else 0)

    async with server(slow) as target:
        (stage,) = await measure(target, 100.0, burstiness=1.0)
    gaps = sorted(later - earlier for earlier, later in pairwise(arrived[3:]))
    assert gaps[len(gaps) // 2] < 0.03
    assert stage.within < 20
    assert (stage.ttft or 0) > 0.5


async def test_what_fails_is_a_miss():
    asked = 0

    async def every_other(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked > 3 and asked % 2:
            return web.json_response({"error": "full"}, status=503)
        return await good(request)

    async with server(every_other) as target:
        (stage,) = await measure(target, 200.0, slo=ANY_MACHINE)
    assert stage.failed == stage.requests - stage.within
    assert stage.failed == pytest.approx(stage.requests / 2, abs=2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda request: _json(request, 404, {"error": {"message": "no model x"}}), "HTTP 404: .*no model x"),
        (lambda request: _json(request, 200, {"choices": []}), "answers with application/json, not with a stream"),
        (stream, "the stream ended without an answer"),
        (lambda request: stream(request, {"error": {"message": "out of memory"}}), "out of memory"),
        (lambda request: stream(request, "{broken"), "Expecting property name"),
    ],
)
async def test_a_server_that_cannot_be_measured_is_refused(answer, said):
    async with server(answer) as target:
        with pytest.raises(SweepError, match=said):
            await measure(target, 10.0)


async def _json(request: web.Request, status: int, body: Any) -> web.Response:
    await request.read()
    return web.json_response(body, status=status)


@pytest.mark.parametrize("models", [[], {"data": []}, {"data": [1]}])
async def test_a_server_without_a_model_is_refused(models):
    async with server(good, models) as target:
        with pytest.raises(SweepError, match="offers no model: give --model"):
            await served(target.url, {})


def test_nobody_there_is_one_clear_line(capsys):
    assert main(["profile", "run", "--url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gemma-operator: http://127.0.0.1:1 can't be asked: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "localhost"], "is no URL such as http://localhost:8000"),
        (["--url", "http://h", "--rates", "1,x"], "'x' is no number from 0.01 to 10000"),
        (["--url", "http://h", "--frames", "33"], "Gemma 4 takes 1 to 32"),
        (["--url", "http://h", "--media-share", "2"], "no number from 0 to 1"),
        (["--url", "http://h", "--burstiness", "0"], "no number from 0.1 to 10"),
        ([], "--url"),
    ],
)
def test_wrong_options_are_one_clear_line(capsys, arguments, said):
    with pytest.raises(SystemExit):
        main(["profile", "run", *arguments])
    assert said in capsys.readouterr().err


def test_a_key_file_that_is_none_is_one_clear_line(capsys, tmp_path):
    assert main(["profile", "run", "--url", "http://127.0.0.1:1", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "key can't be read" in capsys.readouterr().err


# --- against a capacity that is known ---


def capacity(costs: Costs, slo: Slo) -> float:
    """The stand-in's own operating point with Poisson arrivals, from its step model."""

    def holds(rate: float) -> bool:
        rng, at, asks = random.Random(7), 0.0, []
        for _ in range(1500):
            at += rng.expovariate(rate)
            asks.append(Ask(at, 300, 10))
        return sum(ttft <= slo.seconds for ttft in ttfts(asks, EngineConfig(), costs)) >= 0.95 * len(asks)

    low, high = 0.5, 100.0
    while high > 1.05 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@pytest.mark.slow
async def test_the_operating_point_of_the_stand_in():
    """At half its speed and within a second, so that other programs on this machine count little."""
    slo = Slo(95, 1.0)
    known = capacity(Costs().scaled(2), slo)
    async with program(STANDIN_SPEED="0.5", STANDIN_STARTUP_SECONDS="0") as standin:
        await standin.log_until("startup complete")
        target = Target(standin.url, (await served(standin.url, {}))[0], Wanted(300, 10))
        rates = [known * part for part in (0.6, 1.0, 1.25, 2.5)]
        stages = await sweep(target, Load(100, burstiness=1.0), slo, rates, 1.0, lambda _: None)
    point = operating_point(stages, slo)
    assert point is not None
    assert point.mix.prompt_tokens == 308  # as the server counts them
    assert 0.55 < (point.rate or 0) / known < 1.6


@pytest.mark.slow
async def test_a_sweep_ends_in_a_profile(capsys):
    async with program(STANDIN_SPEED="9", STANDIN_STARTUP_SECONDS="0") as standin:
        await standin.log_until("startup complete")
        options = ["--rates", "20", "--requests", "60", "--output-tokens", "4", "--media-share", "0.3"]
        code = await asyncio.to_thread(main, ["profile", "run", "--url", f"{standin.url}/v1/", *options])
    shown = capsys.readouterr()
    assert code == 3
    assert "at least" in shown.err
    profile = stored_profile(yaml.safe_load(shown.out)["data"]["profile.yaml"])
    assert profile.measured_with.engine_version == "0.32.0"
    assert profile.media_share == 0.3
    assert {point.burstiness for point in profile.points} == {1.0, 2.0}
