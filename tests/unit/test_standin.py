"""The stand-in engine: vLLM's command line, HTTP API, /metrics and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator.simulation.standin.arguments import Arguments, parse_arguments
from gemma_operator.simulation.standin.engine_loop import EngineLoop
from gemma_operator.simulation.standin.metrics import EngineMetrics
from gemma_operator.simulation.standin.prompt import ApiError, parse_chat
from gemma_operator.simulation.standin.server import Server
from gemma_operator.simulation.step_model import Costs

MODEL = "google/gemma-4-E4B-it"
OPERATOR = Path(__file__).parents[2] / "operator"
VERSION = (0, 32, 0)
FAST = Costs().scaled(0.05)
FRAMES = "data:video/jpeg;base64,AA,BB,CC,DD,EE,FF"


def arguments(*argv: str, version: tuple[int, int, int] = VERSION) -> Arguments:
    return parse_arguments(["--model", MODEL, *argv], version, batched_encoder=True)


def chat(content: Any = "hello", **body: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": content}], **body}


def video(url: str = FRAMES, count: int = 1) -> list[dict[str, Any]]:
    return [{"type": "video_url", "video_url": {"url": url}}] * count + [{"type": "text", "text": "what is this?"}]


def image(url: str = "data:image/png;base64,AAAA", count: int = 1) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": url}}] * count


@contextlib.asynccontextmanager
async def serving(
    *argv: str, costs: Costs = FAST, hangs: Callable[[], bool] = lambda: False
) -> AsyncIterator[TestClient[Any, Any]]:
    parsed = arguments(*argv)
    metrics = EngineMetrics(parsed)
    engine = EngineLoop(parsed, costs, metrics, hangs)
    server = TestServer(Server(parsed, engine, metrics, "0.32.0").application())
    computing = asyncio.create_task(engine.run())
    async with TestClient(server) as client:
        yield client
    computing.cancel()


async def events(response: ClientResponse) -> list[Any]:
    """Server-sent events of a stream, `[DONE]` as None."""
    lines = [line.decode().strip() async for line in response.content]
    data = [line.removeprefix("data: ") for line in lines if line]
    return [None if item == "[DONE]" else json.loads(item) for item in data]


async def samples(client: TestClient[Any, Any]) -> dict[str, float]:
    """Samples of /metrics as `name` or `name{extra="label"}`, without model and engine."""
    text = await (await client.get("/metrics")).text()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(extra.items()))
            found[sample.name.removeprefix("vllm:") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


async def until(client: TestClient[Any, Any], condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    async with asyncio.timeout(20):
        while not condition(found := await samples(client)):
            await asyncio.sleep(0.01)
    return found


class TestCommandLine:
    def test_reads_what_it_acts_on(self) -> None:
        found = arguments(
            *("--served-model-name", "gemma", "alias", "--port=8123", "--max-num-seqs", "64"),
            *("--max_num_batched_tokens=4k", "--no-enable-prefix-caching", "--shutdown-timeout", "30"),
            *("--limit-mm-per-prompt", '{"image":{"count":2},"video":1,"audio":0}', "--scheduling-policy", "priority"),
            *("--media-io-kwargs", '{"video":{"num_frames":8}}', "--dtype", "bfloat16", "--async-scheduling"),
        )
        assert found.served_names == ("gemma", "alias")
        assert (found.port, found.shutdown_timeout, found.prefix_caching, found.video_frames) == (8123, 30, False, 8)
        assert (found.engine.max_num_seqs, found.engine.max_num_batched_tokens, found.engine.priority) == (
            64,
            4000,
            True,
        )
        assert found.limits == {"image": 2, "video": 1, "audio": 0}

    @pytest.mark.parametrize("argv", [["serve", "a/b", "--port", "1"], ["--model", "a/b", "--port=1"]])
    def test_takes_both_ways_to_start(self, argv: Sequence[str]) -> None:
        found = parse_arguments(argv, VERSION, batched_encoder=True)
        assert (found.model, found.served_names, found.port) == ("a/b", ("a/b",), 1)

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--foo"], "unrecognized arguments: --foo"),
            (["--port", "eighty"], "argument --port: invalid int value: 'eighty'"),
            (["--max-num-seqs"], "argument --max-num-seqs: expected one argument"),
            (["--limit-mm-per-prompt", "video=1"], "is not JSON"),
            (["--limit-mm-per-prompt", '{"video":-1}'], "video is -1, allowed are counts from 0"),
            (["--scheduling-policy", "lifo"], "choose from fcfs, priority"),
            (["--custom-histogram-buckets", '{"ttft":[1]}'], "no family 'ttft', allowed are request_latency"),
            (["--custom-histogram-buckets", '{"time_to_first_token":[1,1]}'], "increasing numbers"),
            (["--max-num-batched-tokens", "8", "--max-num-seqs", "16"], "max_num_batched_tokens (8) must be greater"),
            (["--speculative-config", '{"method":"mtp"}'], "num_speculative_tokens is None"),
        ],
    )
    def test_refuses_with_exit_code_2(
        self, argv: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_:
            arguments(*argv)
        assert exit_.value.code == 2
        assert re.search(rf"api_server.py: error: .*{re.escape(message)}", capsys.readouterr().err)

    def test_knows_the_flags_of_its_version(self) -> None:
        buckets = ["--custom-histogram-buckets", '{"time_to_first_token":[0.3,1]}']
        assert arguments(*buckets).buckets == {"time_to_first_token": [0.3, 1]}
        with pytest.raises(SystemExit):
            arguments(*buckets, version=(0, 31, 0))


class TestPrompt:
    @pytest.mark.parametrize(
        ("content", "tokens"),
        [
            ("x" * 400, 100),
            ([{"type": "text", "text": "x" * 400}, {"type": "text", "text": "x"}], 101),
            (video()[:1], 6 * 78),
            (video("data:video/jpeg;base64," + ",".join("A" * 50))[:1], 32 * 78),
            (video("data:video/mp4;base64,AAAA")[:1], 32 * 78),
            (video("https://example.com/a.mp4")[:1], 32 * 78),
            (image(), 282),
            (image(count=2), 564),
            ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], 750),
            (None, 0),
        ],
    )
    def test_counts_tokens(self, content: Any, tokens: int) -> None:
        assert parse_chat(chat(content), arguments()).prompt_tokens == tokens + 8

    def test_frames_are_bounded_by_media_io_kwargs(self) -> None:
        bounded = arguments("--media-io-kwargs", '{"video":{"num_frames":4}}')
        assert parse_chat(chat(video()[:1]), bounded).prompt_tokens == 4 * 78 + 8

    @pytest.mark.parametrize(
        ("body", "output_tokens", "reason"),
        [
            ({"max_tokens": 10}, 10, "length"),
            ({"max_tokens": 1000}, 128, "stop"),
            ({"max_tokens": 1000, "ignore_eos": True}, 1000, "length"),
            ({"max_tokens": None, "max_completion_tokens": 20}, 20, "length"),
            ({"max_tokens": None}, 128, "stop"),
        ],
    )
    def test_length_of_the_answer(self, body: dict[str, Any], output_tokens: int, reason: str) -> None:
        parsed = parse_chat(chat(**body), arguments())
        assert (parsed.output_tokens, parsed.finish_reason) == (output_tokens, reason)

    def test_answer_ends_at_the_context_length(self) -> None:
        parsed = parse_chat(chat("x" * 328, max_tokens=50, ignore_eos=True), arguments("--max-model-len", "100"))
        assert (parsed.prompt_tokens, parsed.output_tokens) == (90, 10)

    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            ({"model": "gpt-2"}, 404, "The model `gpt-2` does not exist."),
            ({"messages": None}, 400, "messages must be a list"),
            ({"messages": ["hi"]}, 400, "a message must be an object"),
            ({"n": 3}, 400, "n is 3"),
            ({"max_tokens": 0}, 400, "max_tokens is 0, allowed are numbers from 1"),
            ({"max_tokens": 2000}, 400, "cannot be greater than max_model_len=1000"),
            ({"priority": 3}, 400, "only --scheduling-policy priority"),
            ({"stream_options": 1}, 400, "stream_options must be an object"),
            (chat("x" * 4000), 400, "maximum context length is 1000 tokens. However, your prompt contains 1008"),
            (chat(video(count=2)), 400, "At most 1 video(s) may be provided in one prompt."),
            (chat(image(count=1)), 400, "At most 0 image(s) may be provided in one prompt."),
            (chat(video("ftp://x/a.mp4")), 400, "The URL must be either a HTTP, data or file URL."),
            (chat([{"type": "hologram"}]), 400, "Unknown part type: hologram"),
            (chat([{"type": "video_url"}]), 400, "needs video_url.url"),
            (chat(7), 400, "content must be a string or a list"),
        ],
    )
    def test_refuses_as_vllm(self, body: dict[str, Any], status: int, message: str) -> None:
        limited = arguments("--max-model-len", "1000", "--limit-mm-per-prompt", '{"image":0,"video":1}')
        with pytest.raises(ApiError, match=re.escape(message)) as error:
            parse_chat({**chat(), **body}, limited)
        assert error.value.status == status

    def test_priority_comes_from_body_or_header(self) -> None:
        by_priority = arguments("--scheduling-policy", "priority")
        assert parse_chat(chat(priority=3), by_priority).priority == 3
        assert parse_chat(chat(priority=3), by_priority, "-1").priority == -1


class TestApi:
    async def test_streams_role_tokens_usage_and_done(self) -> None:
        async with serving() as client:
            body = chat(video(), stream=True, stream_options={"include_usage": True})
            response = await client.post("/v1/chat/completions", json=body)
            assert response.headers["Content-Type"].startswith("text/event-stream")
            first, *chunks, usage, done = await events(response)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
        assert usage["choices"] == []
        assert (usage["usage"]["completion_tokens"], usage["usage"]["prompt_tokens"]) == (5, 6 * 78 + 4 + 8)
        assert done is None

    async def test_answers_in_one_piece(self) -> None:
        async with serving() as client:
            answer = await (await client.post("/v1/chat/completions", json=chat())).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"].split()[:3] == ["This", "is", "a"]
        assert answer["usage"]["completion_tokens"] == 5

    async def test_other_routes(self) -> None:
        async with serving("--served-model-name", "gemma", "alias", "--max-model-len", "4096") as client:
            models = await (await client.get("/v1/models")).json()
            assert [(card["id"], card["root"], card["max_model_len"]) for card in models["data"]] == [
                ("gemma", MODEL, 4096),
                ("alias", MODEL, 4096),
            ]
            assert (await (await client.get("/version")).json()) == {"version": "0.32.0"}
            for path in ("/health", "/ping"):
                assert (await client.get(path)).status == 200

    async def test_errors_have_vllms_shape(self) -> None:
        async with serving() as client:
            response = await client.post("/v1/chat/completions", json=chat(model="gpt-2"))
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "NotFoundError"
            response = await client.post("/v1/chat/completions", data=b"{")
            assert response.status == 400
            assert "the body is not JSON" in (await response.json())["error"]["message"]

    async def test_full_queue_is_refused_and_counted(self) -> None:
        async with serving("--max-num-queued-reqs", "1", costs=Costs().scaled(5)) as client:
            running = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
            await until(client, lambda found: found["prefix_cache_queries_total"] > 0)
            refused = await client.post("/v1/chat/completions", json=chat())
            assert refused.status == 503
            assert (await running).status == 200
            assert (await samples(client))['admission_rejections_total{reason="max_num_queued_reqs"}'] == 1

    @pytest.mark.parametrize("plugin", [False, True])
    async def test_queue_is_bounded_in_tokens(self, plugin: bool) -> None:
        """As tests/plugin/test_server.py sees it of real vLLM: one that comes late, or was prepared beside another."""
        middleware = [f"--middleware=gemma_engine.{name}" for name in ("arrivals.Arrivals", "shedding.Shedding")]
        limit = ["--max-num-queued-tokens", "100"]
        costs = replace(FAST, tokenize=1.0)  # all three are here while the first is prepared
        stands_still = asyncio.Event()  # so that the first fills the limit until the rest is refused
        stands_still.set()
        async with serving(*limit, *(middleware if plugin else []), costs=costs, hangs=stands_still.is_set) as client:

            async def post(stream: bool) -> ClientResponse:
                return await client.post("/v1/chat/completions", json=chat("x" * 400, stream=stream))

            burst = await asyncio.gather(*(post(stream=True) for _ in range(3)))
            late = [await post(stream) for stream in (True, False)]
            stands_still.clear()
            refused = [response for response in (*burst, *late) if response.status == 503]
            assert len(refused) == (4 if plugin else 2)
            for response in refused:
                assert response.headers.get("Retry-After") == ("1" if plugin else None)
                assert (await response.json())["error"]["code"] == 503
            streams = sorted([await events(response) for response in burst if response.status == 200], key=len)
            assert [[error["error"]["code"], done] for error, done in streams[:-1]] == [[503, None]] * (
                0 if plugin else 2
            )
            assert streams[-1][-2]["choices"][0]["finish_reason"] == "length"
            assert (await samples(client))['admission_rejections_total{reason="max_num_queued_tokens"}'] == 4

    async def test_caches_hit_on_the_second_request(self) -> None:
        async with serving() as client:
            for _ in range(2):
                answer = await (await client.post("/v1/chat/completions", json=chat(video()))).json()
            found = await samples(client)
        prompt = answer["usage"]["prompt_tokens"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1
        assert found["prefix_cache_queries_total"] == 2 * prompt
        assert found["prefix_cache_hits_total"] == prompt - 1
        assert (found["mm_cache_queries_total"], found["mm_cache_hits_total"]) == (2, 1)

    async def test_caches_can_be_off(self) -> None:
        async with serving("--no-enable-prefix-caching", "--mm-processor-cache-gb", "0") as client:
            for _ in range(2):
                await client.post("/v1/chat/completions", json=chat(video()))
            found = await samples(client)
        assert not any(found[f"{name}_total"] for name in ("prefix_cache_queries", "mm_cache_queries", "mm_cache_hits"))


class Process:
    """The stand-in as a real program on a free port."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def log_until(self, text: str) -> None:
        assert self.process.stderr
        async with asyncio.timeout(30):
            while text not in (line := (await self.process.stderr.readline()).decode()):
                assert line, f"the stand-in ended before it said {text!r}"

    async def exit_code(self) -> int:
        async with asyncio.timeout(30):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


@contextlib.asynccontextmanager
async def program(*argv: str, **environment: str) -> AsyncIterator[Process]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gemma_operator.simulation.standin", "--model", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), *argv),
        env={**os.environ, "PYTHONPATH": str(OPERATOR), "STANDIN_STARTUP_SECONDS": "0.3", **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
