"""The demo's load generator against a small server, and its report from a recorded run."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import yaml
from aiohttp import web

from gemma_operator.api.serving import Spec
from tools.demo import deploy, plot, report, traffic
from tools.demo.load import Body, Client, Outcome, attainment, percentile
from tools.demo.recording import Event, Phase, Recording, Sample, decisions, shortfalls, summarise

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]
SLO = 0.3


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Coroutine[Any, Any, str]]]:
    """Starts a server that answers chats with a handler; gives its URL."""
    runners = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handler)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def chunk(finish: str | None = None, **delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


def streaming(*chunks: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in chunks:
            await response.write(part)
        return response

    return handler


ROLE, TOKEN, DONE = chunk(role="assistant", content=""), chunk("length", content="hi"), b"data: [DONE]\n\n"
BODY = Body("text", b"{}")


async def test_a_stream_counts_from_its_first_token(serve):
    gate = asyncio.Event()
    role_sent = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(ROLE)
        role_sent.set()
        await gate.wait()
        await response.write(TOKEN + DONE)
        return response

    async with Client(await serve(handler)) as client:
        sending = asyncio.create_task(client.send(BODY))
        await role_sent.wait()
        released = time.time()
        gate.set()
        outcome = await sending
    assert outcome.ok
    assert outcome.ttft is not None
    assert released <= outcome.at + outcome.ttft <= outcome.at + outcome.seconds


async def test_a_token_without_text_is_a_token(serve):
    async with Client(await serve(streaming(ROLE, chunk("stop", content=""), DONE))) as client:
        assert (await client.send(BODY)).ok


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ((ROLE, TOKEN), "broke off"),
        ((ROLE, DONE), "without a token"),
        ((ROLE, chunk(content="h"), DONE), "without a finish reason"),
        ((ROLE, b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
        ((ROLE, chunk("abort"), DONE), "aborted"),
        ((b"data: <html>\n\n",), "JSONDecodeError"),
        ((b'data: {"choices": [{}]}\n\n',), "KeyError"),
        ((b"data: 1\n\n",), "AttributeError"),
    ],
)
async def test_a_broken_stream_is_a_miss_with_its_reason(serve, chunks, error):
    async with Client(await serve(streaming(*chunks))) as client:
        outcome = await client.send(BODY)
    assert not outcome.ok
    assert error in outcome.error
    assert attainment(client.outcomes, 1e9) == 0


async def test_status_timeout_and_refused_connection_are_misses(serve):
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="queue is full")

    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    errors = []
    for url, timeout in ((await serve(busy), 5), (await serve(silent), 0.05), ("http://127.0.0.1:1", 5)):
        async with Client(url, timeout=timeout) as client:
            errors.append((await client.send(BODY)).error)
    assert "HTTP 503: queue is full" in errors[0]
    assert "within 0.05 s" in errors[1]
    assert "ClientConnectorError" in errors[2]


async def test_an_answer_that_is_not_streamed_has_no_ttft(serve):
    async def whole(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})

    async with Client(await serve(whole)) as client:
        outcome = await client.send(BODY)
    assert outcome.ok
    assert outcome.ttft is None


async def test_open_loop_does_not_wait_for_answers_and_is_bounded(serve):
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await streaming(ROLE, TOKEN, DONE)(request)

    async with Client(await serve(slow), max_in_flight=5) as client:
        await client.offer(itertools.repeat(BODY), rate=200, seconds=0.2)
        refused = list(client.outcomes)
        release.set()
    assert refused, "requests over the bound are recorded at once"
    assert all("not sent: 5 requests" in outcome.error for outcome in refused)
    assert sum(outcome.ok for outcome in client.outcomes) == 5


async def test_every_request_opens_a_connection_and_a_seed_repeats_its_arrivals(serve):
    peers = set()

    async def note(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport.get_extra_info("peername"))
        return await streaming(ROLE, TOKEN, DONE)(request)

    url = await serve(note)
    counts = []
    for _ in range(2):
        async with Client(url) as client:
            await client.offer(itertools.repeat(BODY), rate=100, seconds=0.3, seed=7)
        counts.append(len(client.outcomes))
    assert counts[0] == counts[1] > 0
    assert len(peers) == sum(counts)


async def test_offer_and_work_end_when_told(serve):
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    async with Client(await serve(streaming(ROLE, TOKEN, DONE))) as client:
        await asyncio.gather(
            client.offer(itertools.repeat(BODY), rate=50, seconds=3600, stop=stop),
            client.work(itertools.repeat(BODY), 2, stop),
        )
    assert client.outcomes
    assert all(outcome.ok for outcome in client.outcomes)


def outcome(at: float, ttft: float | None, *, ok: bool = True) -> Outcome:
    return Outcome(at, "text", ok, ttft, ttft or 10.0, error="" if ok else "HTTP 500")


def test_failures_count_against_percentile_and_attainment():
    answers = [outcome(n, 0.1) for n in range(18)]
    assert percentile(answers, 95) == 0.1
    failed = [*answers, outcome(18, None, ok=False), outcome(19, 0.05, ok=False)]
    assert percentile(failed, 95) == float("inf")
    assert attainment(failed, SLO) == 0.9
    assert percentile([], 95) is None
    assert attainment([], SLO) is None


def test_bodies_are_what_vllm_reads():
    text, image, video = (
        json.loads(make("gemma", 1).payload) for make in (traffic.text_body, traffic.image_body, traffic.video_body)
    )
    assert len(text["messages"][0]["content"][0]["text"]) >= traffic.TEXT_CHARACTERS
    assert image["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
    header, *frames = video["messages"][0]["content"][0]["video_url"]["url"].split(",")
    assert header == "data:video/jpeg;base64"
    assert len(frames) == traffic.FRAMES_PER_VIDEO
    assert all(frame.startswith("/9j/") for frame in frames)
    assert len(set(frames)) == len(frames)
    kinds = {body.kind for body in itertools.islice(traffic.mixed("gemma", 0.5, seed=1, pool=2), 50)}
    assert kinds == {"text", "video"}
    assert not json.loads(next(traffic.batch("gemma", seed=1, pool=1)).payload)["stream"]


def test_overlay_replaces_and_removes():
    example = {"spec": {"model": {"id": "a", "revision": "b"}, "pools": {"batch": None}}}
    patch = {"spec": {"model": {"revision": None}, "pools": {"batch": {"gpus": 0}}}}
    assert deploy.merge_patch(example, patch) == {"spec": {"model": {"id": "a"}, "pools": {"batch": {"gpus": 0}}}}


def test_examples_are_valid_with_and_without_the_overlay():
    overlay = yaml.safe_load((deploy.ROOT / deploy.OVERLAY).read_text())
    examples = {engine: yaml.safe_load((deploy.ROOT / path).read_text()) for engine, path in deploy.EXAMPLES.items()}
    for example in (*examples.values(), deploy.merge_patch(examples["standin"], overlay)):
        assert {"interactive", "batch"} <= Spec.model_validate(example["spec"]).pools.keys()


@pytest.fixture
def recorded() -> Recording:
    """A run as it should be: 100 ms, 900 ms until a second engine is Ready, 120 ms."""
    phases = [Phase("warm", 10, 0, 20), Phase("peak", 30, 20, 60), Phase("recovered", 30, 60, 80)]
    ttft = {"warm": 0.1, "peak": 0.9, "recovered": 0.12}
    sent = [
        outcome(phase.start + n / phase.rate, ttft[phase.name])
        for phase in phases
        for n in range(int((phase.end - phase.start) * phase.rate))
    ]
    samples = [
        Sample(
            at=at,
            desired=1 if at < 40 else 2,
            ready=1 if at < 44 else 2,
            p95=0.9 if 25 < at < 60 else 0.1,
            decision="Steady: within 300 ms" if at < 40 else "ScaledUp: 1 to 2 <p95>",
        )
        for at in range(0, 80, 2)
    ]
    return Recording(
        serving="gemma4-e4b",
        engine="stand-in",
        started="2026-11-29 21:00 UTC",
        slo=SLO,
        commands=["helm install x"],
        deployed="kind: GemmaServing",
        phases=phases,
        interactive=sent,
        batch=[Outcome(n, "video", True, None, 0.5) for n in range(80)],
        samples=samples,
        events=[Event(40, "GemmaServing gemma4-e4b", "ScaledUp", "1 to 2")],
    )


def test_a_recording_survives_its_file(recorded):
    assert Recording.from_json(recorded.to_json()) == recorded


def test_summary_and_decisions(recorded):
    warm, peak, recovered = summarise(recorded)
    assert (warm.p95, peak.p95_prometheus, recovered.attainment) == (0.1, 0.9, 1.0)
    assert peak.replicas == (1, 2)
    assert [at for at, _ in decisions(recorded)] == [0, 40]
    assert shortfalls(recorded) == []


def without_scale_up(run: Recording) -> None:
    run.samples = [replace(sample, desired=1, ready=1) for sample in run.samples]


def without_recovery(run: Recording) -> None:
    run.phases.pop()


def still_slow(run: Recording) -> None:
    run.interactive = [replace(o, ttft=0.9) if o.at >= 60 else o for o in run.interactive]


def one_failed(run: Recording) -> None:
    run.interactive[5] = outcome(run.interactive[5].at, None, ok=False)


def never_over(run: Recording) -> None:
    run.samples = [replace(sample, p95=0.2) for sample in run.samples]


def blind(run: Recording) -> None:
    run.samples = []


def no_batch(run: Recording) -> None:
    run.batch = []


def cut_short(run: Recording) -> None:
    run.phases = []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_scale_up, "not scaled up: Ready 1 before, 1 at the end"),
        (without_recovery, "did not come back within 300 ms in the 40 s allowed"),
        (still_slow, "attainment did not recover: 0.0 %"),
        (one_failed, "1 interactive requests failed, the first with: HTTP 500"),
        (never_over, "never showed p95 TTFT over 300 ms"),
        (blind, "not scaled up: Ready unknown before"),
        (no_batch, "batch pool completed no request"),
        (cut_short, "ended before its peak"),
    ],
)
def test_a_story_that_did_not_happen_is_told_so(recorded, spoil, reason):
    spoil(recorded)
    assert any(reason in text for text in shortfalls(recorded))


def test_the_report_says_what_is_missing(recorded, monkeypatch):
    monkeypatch.setattr(plot, "png", lambda *_, **__: b"")
    no_batch(recorded)
    page = report.html(recorded)
    assert "The run fell short" in page
    assert "<li>the batch pool completed no request</li>" in page


def test_the_report_stands_alone(recorded):
    page = report.html(recorded)
    assert page.count("data:image/png;base64,iVBOR") == 4
    assert "http://" not in page
    assert "https://" not in page
    assert "ScaledUp: 1 to 2 &lt;p95&gt;" in page
    assert "SLO held again" in page
    lines = report.table(recorded).splitlines()
    assert len(lines) == 4
    assert lines[2].split()[0] == "peak"
    assert "900 ms" in lines[2]
