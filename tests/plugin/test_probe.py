"""The readiness probe against a server that answers as vLLM does, one trouble at a time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gemma_engine import media, probe


@dataclass
class Engine:
    """What the server says; a test changes one thing."""

    health: int = 200
    models: list[str] = field(default_factory=lambda: ["gemma"])
    awake: float = 1
    info: str | None = "gemma_engine"
    state: str = "batched"
    started: float = 1000.5
    tokens: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    unanswered: int = 0
    last_progress: float = 0
    asked: list[str] = field(default_factory=list)

    def metrics(self) -> str:
        lines = [f"process_start_time_seconds {self.started}"]
        lines += [f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {self.awake}']
        lines += [
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}',
        ]
        if self.info:
            lines += [f'gemma_engine_info{{encoder="{self.info}",version="1",vllm="0.32.0"}} 1.0']
            lines += [
                f'gemma_engine_self_check{{state="{self.state}"}} 1.0',
                'gemma_engine_self_check{state="other"} 0.0',
            ]
            lines += [f"gemma_engine_unanswered_requests {self.unanswered}"]
            lines += [f"gemma_engine_last_progress_timestamp_seconds {self.last_progress}"]
        return "\n".join(lines)

    def chat(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        kind = body["messages"][0]["content"][0]["type"].removesuffix("_url")
        self.asked.append(kind)
        if kind in self.refused:
            code, why = self.refused[kind]
            return code, {"error": {"message": why}}
        tokens = self.tokens.get(kind, ["A", " picture"])
        return 200, {"choices": [{"logprobs": {"content": [{"token": token} for token in tokens]}}]}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def server(engine: Engine) -> Iterator[probe.Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/health": (engine.health, ""),
                "/v1/models": (200, json.dumps({"data": [{"id": name} for name in engine.models]})),
                "/metrics": (200, engine.metrics()),
            }
            self.answer(*answers[self.path])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, answer = engine.chat(body)
            self.answer(code, json.dumps(answer))

        def answer(self, code: int, text: str) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield probe.Server(f"http://127.0.0.1:{listening.server_port}")
    listening.shutdown()
    listening.server_close()


def ready(server: probe.Server, folder: Path, canary: bool = False) -> str:
    """'' when ready, else the reason."""
    try:
        probe.check_ready(server, "gemma", folder / "marker", canary)
    except probe.NotReady as reason:
        return str(reason)
    return ""


def test_sends_the_golden_requests_once_per_start_of_the_server(
    engine: Engine, server: probe.Server, tmp_path: Path
) -> None:
    assert ready(server, tmp_path) == ready(server, tmp_path) == ""
    assert sorted(engine.asked) == ["image", "text", "video"]
    engine.started += 60
    assert ready(server, tmp_path) == ""
    assert len(engine.asked) == 6
    assert ready(server, tmp_path, canary=True) == ""
    assert len(engine.asked) == 9


def test_several_api_servers_are_told_apart_by_their_container(
    engine: Engine, server: probe.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They export no start of a process, and /tmp outlives a container."""
    engine.started = 0
    monkeypatch.setattr(probe, "FIRST_PROCESS", tmp_path / "stat")
    for start in ("100", "100", "200"):
        (tmp_path / "stat").write_text(f"1 (py (x) y) S {' '.join('0' * 18)} {start} 7 8")
        assert ready(server, tmp_path) == ""
    assert len(engine.asked) == 6
    (tmp_path / "stat").unlink()
    assert ready(server, tmp_path) == ""


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"health": 503}, "the engine is dead"),
        ({"models": ["other"]}, "the model gemma is not served; these are: other"),
        ({"awake": 0}, "asleep"),
        ({"info": None}, "VLLM_PLUGINS"),
        ({"state": "unchecked"}, "--model-class-overrides"),
        ({"state": "failed"}, "bits differ"),
        ({"tokens": {"text": ["<pad>", "<pad>"]}}, "the golden text request was answered with padding only"),
        ({"tokens": {"video": ["<pad>"]}}, "the golden video request was answered with padding only"),
        ({"tokens": {"image": []}}, "padding only"),
        ({"refused": {"image": (500, "boom")}}, "the golden image request was refused with 500: .*boom"),
        ({"refused": {"text": (400, "At most 0 text(s)")}}, "the golden text request was refused"),
    ],
)
def test_says_what_is_amiss(
    engine: Engine, server: probe.Server, tmp_path: Path, trouble: dict[str, Any], reason: str
) -> None:
    for name, value in trouble.items():
        setattr(engine, name, value)
    with pytest.raises(probe.NotReady, match=reason):
        probe.check_ready(server, "gemma", tmp_path / "marker", canary=False)
    for name in trouble:
        setattr(engine, name, getattr(Engine(), name))
    assert ready(server, tmp_path) == ""


def test_the_golden_requests_are_under_way_at_once(engine: Engine, server: probe.Server, tmp_path: Path) -> None:
    """Each is answered only once all have come: one after the other they would wait for ever."""
    meeting, chat = threading.Barrier(3), engine.chat

    def meet(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        meeting.wait(server.seconds)
        return chat(body)

    engine.chat = meet  # type: ignore[method-assign]
    assert ready(server, tmp_path) == ""


def test_a_tight_limit_on_the_queue_gets_the_golden_requests_one_by_one(
    engine: Engine, server: probe.Server, tmp_path: Path
) -> None:
    """All three at once are more than it lets wait; one that is refused alone, too, tells of an engine that is full."""
    meeting, chat = threading.Barrier(3), engine.chat
    first = threading.Lock()

    def tight(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(engine.asked) >= 3:
            return chat(body)
        engine.asked.append("at once")
        meeting.wait(server.seconds)
        return chat(body) if first.acquire(blocking=False) else (503, {"error": {"message": "backlog limit"}})

    engine.chat = tight  # type: ignore[method-assign]
    assert ready(server, tmp_path) == ""
    assert len(engine.asked) == 6
    engine.chat, engine.refused = chat, {"image": (503, "backlog limit")}  # type: ignore[method-assign]
    assert "golden image request was refused with 503: " in ready(server, tmp_path, canary=True)


def test_of_several_troubles_the_first_kinds_is_told(engine: Engine, server: probe.Server, tmp_path: Path) -> None:
    engine.refused = {"video": (500, "b"), "image": (500, "a")}
    assert "golden image request was refused" in ready(server, tmp_path)


def test_a_plugin_that_is_not_there_is_told_before_anything_is_asked(
    engine: Engine, server: probe.Server, tmp_path: Path
) -> None:
    engine.info = None
    assert "gemma_engine is not active" in ready(server, tmp_path)
    assert engine.asked == []


def test_a_server_that_turned_out_ready_is_not_for_ever(engine: Engine, server: probe.Server, tmp_path: Path) -> None:
    assert ready(server, tmp_path) == ""
    engine.state = "failed"
    assert "bits differ" in ready(server, tmp_path)
    engine.state, engine.awake = "batched", 0
    assert "asleep" in ready(server, tmp_path)


def test_media_that_the_server_turns_off_are_no_trouble(engine: Engine, server: probe.Server, tmp_path: Path) -> None:
    refusal = (400, "At most 0 image(s) may be provided in one prompt.")
    engine.refused = {"image": refusal, "video": refusal}
    engine.state = "unchecked"
    assert ready(server, tmp_path) == ""


def test_vllms_own_encoder_is_no_trouble_where_it_is_wanted(
    engine: Engine, server: probe.Server, tmp_path: Path
) -> None:
    engine.info, engine.state = "vllm", "off"
    assert ready(server, tmp_path) == ""


def test_a_server_that_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    assert "/health does not answer" in ready(probe.Server("http://127.0.0.1:1"), tmp_path)


@pytest.mark.parametrize(
    ("running", "waiting", "unanswered", "seconds_ago", "stuck"),
    [
        (1, 0, 1, 100, False),
        (1, 0, 1, 121, True),
        (0, 3, 3, 121, True),
        (0, 0, 1, 121, True),
        (0, 0, 1, 100, False),
        (0, 0, 0, 9999, False),
    ],
)
def test_requests_without_a_token_for_long_are_no_progress(
    engine: Engine,
    server: probe.Server,
    running: int,
    waiting: int,
    unanswered: int,
    seconds_ago: float,
    stuck: bool,
) -> None:
    now = 10_000.0
    engine.running, engine.waiting, engine.unanswered = running, waiting, unanswered
    engine.last_progress = now - seconds_ago
    if stuck:
        with pytest.raises(probe.NotReady, match="no token for 121 s"):
            probe.check_progress(server, 120, now)
    else:
        probe.check_progress(server, 120, now)


@pytest.fixture
def command(server: probe.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The program, with its files in a folder of the test's."""

    def run(url: str = server.url) -> int:
        files = ["--marker", str(tmp_path / "marker"), "--log", str(tmp_path / "log")]
        monkeypatch.setattr("sys.argv", ["probe", "ready", "--url", url, *files])
        return probe.main()

    return run


def test_the_command_exits_with_1_and_one_line(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("http://127.0.0.1:1") == 1
    assert capsys.readouterr().out.startswith("not ready: /health does not answer")
    assert not (tmp_path / "log").exists(), "a server that starts has a log of its own"


def test_the_containers_log_tells_once_a_minute_what_is_amiss_and_that_it_is_over(
    command: Callable[..., int], engine: Engine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert command() == 0
    assert not log.exists(), "all is well"
    engine.awake = 0
    assert [command() for _ in range(3)] == [1, 1, 1]
    asleep = "gemma_engine.probe: not ready: the engine is asleep; wake it, or end its Pod"
    assert log.read_text().splitlines() == [asleep]
    told = tmp_path / "marker-told"
    os.utime(told, (1, 1))
    assert command() == 1
    engine.awake = 1
    assert [command() for _ in range(3)] == [0, 0, 0]
    assert log.read_text().splitlines() == [asleep, asleep, "gemma_engine.probe: ready"]
    engine.state = "failed"
    assert command() == 1
    assert "bits differ" in log.read_text().splitlines()[-1]


def test_a_log_that_cannot_be_written_is_no_trouble(
    command: Callable[..., int], engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    engine.awake = 0
    assert command() == 1
    assert "asleep" in capsys.readouterr().out


def test_the_golden_picture_is_a_picture() -> None:
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(media.png()))
    picture.load()
    assert picture.size == (media.SIDE, media.SIDE)
    assert media.png() != media.png(shift=40)
