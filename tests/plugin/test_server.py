"""A real vLLM server with the plugin, then one without: what a client and the kubelet see."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import re
import signal
import socket
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.engine.server import Server, serving, text
from tests.plugin import bad_media
from tests.plugin.bad_media import BAD
from tests.plugin.burst import CHAT, LIMIT, LONG, PROMPTS, Answer, burst, rejections, send, unread
from tests.plugin.conftest import HOME
from tests.plugin.server import FLAGS, PluginHome, answer, named, probe, values
from tests.support.kube import eventually

pytestmark = pytest.mark.engine

MODEL = "google/gemma-4-E4B-it"


def start(tmp: Path, *flags: str, **more: str) -> Any:
    home = PluginHome(HOME, more)
    return serving(home, ["--model", home.model, "--served-model-name", MODEL, *LIMIT, *FLAGS, *flags], MODEL, tmp)


def jpeg(width: int, height: int, seed: int) -> str:
    noise = random.Random(seed).randbytes(32 * 24 * 3)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (32, 24), noise).resize((width, height)).save(buffer, "JPEG")
    return base64.b64encode(buffer.getvalue()).decode()


def image(width: int = 640, height: int = 480, seed: int = 0) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{jpeg(width, height, seed)}"}}


def video(frames: int, seed: int = 0) -> dict[str, Any]:
    pictures = ",".join(jpeg(320, 240, seed + frame) for frame in range(frames))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{pictures}"}}


ODD = {
    "1x4000": image(1, 4000),
    "4000x1": image(4000, 1),
    "1x1": image(1, 1),
    "2,000,000x8": bad_media.image(bad_media.data("image/png", bad_media.bomb(2_000_000, 8))),
    "33 frames": video(33),
}

QUESTIONS: list[list[dict[str, Any]]] = [
    [text("What is the answer?")],
    [image(seed=1), text("What is this?")],
    [image(300, 900, seed=2), text("What is this?")],
    [video(6, seed=10), text("What happens?")],
    [image(seed=3), video(2, seed=20), text("Compare.")],
]


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What each server answered, for the comparison at the end."""
    return {}


class TestWithThePlugin:
    @pytest.fixture(scope="class")
    def engine(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with start(tmp_path_factory.mktemp("plugin"), "--middleware=gemma_engine.shedding.Shedding") as server:
            yield server

    def test_is_ready_once_the_golden_requests_are_answered(self, engine: Server, tmp_path: Path) -> None:
        found = probe(engine.url, "ready", "--model", MODEL, "--marker", str(tmp_path / "marker"), "--timeout", "60")
        assert found.returncode == 0, found.stdout + found.stderr
        assert probe(engine.url, "progress").returncode == 0

    def test_tells_what_its_encoder_did(self, engine: Server, answers: dict[str, Any]) -> None:
        before = values(engine)
        answers["plugin"] = [answer(engine, question) for question in QUESTIONS]
        after = values(engine)
        grown = {name: after[name] - before.get(name, 0) for name in after}
        assert after['gemma_engine_info{encoder="gemma_engine",version="0.1.0",vllm="0.32.0"}'] == 1
        assert after['gemma_engine_self_check{state="batched"}'] == 1
        assert grown["gemma_engine_encoder_images_total"] == 3
        assert grown["gemma_engine_encoder_frames_total"] == 8
        assert grown["gemma_engine_encoder_items_total"] == 5
        assert grown["gemma_engine_encoder_calls_total"] == 5
        assert grown["gemma_engine_fallbacks_total"] == grown["gemma_engine_record_errors_total"] == 0
        assert grown['gemma_engine_step_seconds_count{encoder="yes"}'] >= 4
        assert "The vision encoder, batched, gives vLLM's bits" in engine.log.read_text()
        assert re.search(r"compile cache key: [0-9a-f]{8,}", engine.log.read_text()), "what pools can share a cache by"

    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
    def test_refuses_bad_media_and_lives(self, engine: Server, bad: dict[str, Any]) -> None:
        with pytest.raises(urllib.error.HTTPError) as refused:
            list(engine.ask([bad, text("What is this?")]))
        assert 400 <= refused.value.code < 500
        assert json.load(refused.value)["error"]["message"]
        assert outcome(engine, image()) == 200

    @pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
    def test_answers_or_refuses_odd_media_and_lives(self, engine: Server, odd: dict[str, Any]) -> None:
        assert outcome(engine, odd) in (200, 400)
        assert outcome(engine, image()) == 200
        assert values(engine)["gemma_engine_fallbacks_total"] == 0

    def test_a_hang_in_the_first_step_after_idling_is_told(self, engine: Server) -> None:
        """The engine's process is stopped while no request is there; what vLLM counts stays as the last step left it: at none."""
        last = values(engine)["gemma_engine_last_progress_timestamp_seconds"]
        before = values(engine)["gemma_engine_answered_requests_total"]
        stopped = engine_core(engine)
        os.kill(stopped, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(1) as pool:
                waits = pool.submit(answer, engine, [text("Are you there?")])
                eventually("it is counted", lambda: values(engine)["gemma_engine_unanswered_requests"] == 1, 30)
                assert set(values(engine, "vllm:num_requests_").values()) == {0}
                assert engine.healthy(), "vLLM's own health check says nothing"
                hung = probe(engine.url, "progress", "--after", "0")
                assert "no progress: 1 requests, but no token for" in hung.stdout
                assert probe(engine.url, "progress", "--after", "600").returncode == 0, "it has only just come"
                os.kill(stopped, signal.SIGCONT)
                assert len(waits.result(120)) == 8
        finally:
            os.kill(stopped, signal.SIGCONT)
        after = values(engine)
        assert after["gemma_engine_unanswered_requests"] == 0
        assert after["gemma_engine_answered_requests_total"] == before + 1
        assert after["gemma_engine_last_progress_timestamp_seconds"] > last

    def test_a_client_that_leaves_a_hung_engine_counts_no_more(self, engine: Server) -> None:
        stopped = engine_core(engine)
        os.kill(stopped, signal.SIGSTOP)
        try:
            body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}).encode()
            host, port = engine.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as client:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body[:-1])
                assert values(engine)["gemma_engine_unanswered_requests"] == 0, "it has not come whole"
                client.sendall(body[-1:])
                eventually("it is counted", lambda: values(engine)["gemma_engine_unanswered_requests"] == 1, 30)
            eventually("it has left", lambda: values(engine)["gemma_engine_unanswered_requests"] == 0, 30)
        finally:
            os.kill(stopped, signal.SIGCONT)

    @pytest.mark.parametrize("path", PROMPTS)
    def test_of_a_burst_each_is_answered_or_told_when_to_come_again(self, engine: Server, path: str) -> None:
        """The engine stands still meanwhile, so that the first one that is taken in fills the limit until the rest is refused."""
        before, stopped = rejections(engine), engine_core(engine)
        with ThreadPoolExecutor(12) as clients:
            os.kill(stopped, signal.SIGSTOP)
            try:
                answers = burst(clients, engine, path)
                eventually("all others are refused", lambda: sum(a.done() for a in answers) == 11, 60)
            finally:
                os.kill(stopped, signal.SIGCONT)
        refused = [answer for found in answers if (answer := found.result()).status != 200]
        assert len(refused) == 11
        assert len({answer.streamed for answer in refused}) == 2
        for answer in refused:
            assert answer.status == 503
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert "backlog limit" in json.loads(answer.text)["error"]["message"]
        assert rejections(engine) == before + 11
        assert values(engine)["gemma_engine_unanswered_requests"] == 0
        again = send(engine, path, stream=True)
        assert (again.status, again.is_refused_in_its_stream) == (200, False)


class TestWithoutThePlugin:
    """`VLLM_PLUGINS` without our name is the quietest way to lose a plugin: vLLM says nothing."""

    @pytest.fixture(scope="class")
    def engine(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with start(tmp_path_factory.mktemp("stock"), VLLM_PLUGINS="none") as server:
            yield server

    def test_is_not_ready_and_says_why(self, engine: Server, tmp_path: Path) -> None:
        found = probe(engine.url, "ready", "--marker", str(tmp_path / "marker"), "--timeout", "60")
        assert found.returncode == 1
        assert "VLLM_PLUGINS, if set, names gemma_engine" in found.stdout

    def test_gives_the_same_tokens_and_logprobs(self, engine: Server, answers: dict[str, Any]) -> None:
        assert [answer(engine, question) for question in QUESTIONS] == answers["plugin"]

    def test_vllms_own_refusals_tell_no_time_and_of_a_burst_come_in_streams_that_have_begun(
        self, engine: Server
    ) -> None:
        """What decision 0017 says, and the stand-in does. A stream is refused late where several were prepared at a time.

        Both processes stand still until all requests are here, so that they are read at once; the engine until all
        others are refused, so that the one that is taken in fills the limit meanwhile.
        """
        stopped = [engine_core(engine), engine.process.pid]
        with ThreadPoolExecutor(12) as clients:
            for process in stopped:
                os.kill(process, signal.SIGSTOP)
            try:
                answers = burst(clients, engine, CHAT)
                eventually("all are here", lambda: len(unread(engine, len(LONG))) == 12, 60)
                os.kill(engine.process.pid, signal.SIGCONT)
                eventually("all others are refused", lambda: sum(answer.done() for answer in answers) == 11, 60)
            finally:
                for process in stopped:
                    os.kill(process, signal.SIGCONT)
        found: list[Answer] = [answer.result() for answer in answers]
        assert [answer.is_refused_in_its_stream for answer in found].count(True) >= 2
        assert [answer.status == 503 or answer.is_refused_in_its_stream for answer in found].count(True) == 11
        assert not [answer for answer in found if "retry-after" in answer.headers]


def engine_core(server: Server) -> int:
    """The process that computes; the first one only answers."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            name, _, fields = status.read_text().rpartition(")")
            if int(fields.split()[1]) == server.process.pid and "EngineCore" in command(status.parent) + name:
                return int(status.parent.name)
    raise AssertionError("no process of the server is called EngineCore")


def command(process: Path) -> str:
    return (process / "cmdline").read_text().replace("\0", " ")


def outcome(server: Server, medium: dict[str, Any]) -> int:
    """The status code of a question about a medium."""
    try:
        list(server.ask([medium, text("What is this?")], tokens=2))
    except urllib.error.HTTPError as refused:
        return refused.code
    return 200


def test_an_unsupported_vllm_stops_the_start(tmp_path: Path) -> None:
    """The version is what the package's metadata say; here they are made to say another."""
    home = PluginHome(HOME, {"VLLM_LOGGING_LEVEL": "ERROR"}, before=(named("0.99.0", tmp_path),))
    process = home.start(["--model", home.model, *FLAGS], tmp_path, tmp_path / "log")
    assert process.wait(120) != 0
    assert "gemma-engine works with vLLM 0.26 to 0.33, but vLLM is 0.99.0" in (tmp_path / "log").read_text()
