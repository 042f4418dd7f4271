"""A real vLLM on this machine's CPU, and a client for it."""

import base64
import io
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

START_SECONDS = 600
STOP_SECONDS = 150
MODULE = ["-m", "vllm.entrypoints.openai.api_server"]


@dataclass(frozen=True)
class Home:
    """The environment that `python3 -m tools.images venv engine-cpu` made."""

    folder: Path
    bind: str = field(default="nobind", kw_only=True)
    """Cores to compute on, as VLLM_CPU_OMP_THREADS_BIND takes them."""

    @property
    def model(self) -> str:
        return str(self.folder / "models" / "gemma-4-tiny")

    @property
    def assistant(self) -> str:
        return str(self.folder / "models" / "gemma-4-tiny-assistant")

    def start(self, args: list[str], scratch: Path, log: Path) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(scratch),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": self.bind,
        }
        with log.open("wb") as sink:
            return subprocess.Popen(
                [self.folder / "bin" / "python", *MODULE, *args],
                env=environment,
                cwd=scratch,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def healthy(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def ask(self, content: str | list[dict[str, Any]], tokens: int = 8) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer of exactly `tokens` tokens; HTTPError where the server refuses."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                data = line.removeprefix(b"data: ").strip()
                if data and data != b"[DONE]":
                    yield json.loads(data)


@contextmanager
def serving(home: Home, args: list[str], model: str, scratch: Path) -> Iterator[Server]:
    """A healthy server on a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = scratch / "engine.log"
    process = home.start([*args, "--host", "127.0.0.1", "--port", str(port)], scratch, log)
    server = Server(f"http://127.0.0.1:{port}", model, process, log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.healthy():
            assert process.poll() is None, f"vLLM stopped with {process.returncode}:\n{log.read_text()[-6000:]}"
            assert time.monotonic() < deadline, f"not healthy after {START_SECONDS} s:\n{log.read_text()[-6000:]}"
            time.sleep(0.5)
        yield server
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{_frame()}"}}


def video(frames: int = 6) -> dict[str, Any]:
    """A video as its JPEG frames, which is how vLLM takes one without a container format."""
    pictures = ",".join(_frame() for _ in range(frames))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{pictures}"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _frame() -> str:
    """A 480p picture that no cache has seen."""
    picture = Image.frombytes("RGB", (32, 24), random.randbytes(32 * 24 * 3)).resize((640, 480))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()
