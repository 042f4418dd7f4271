"""Stand-in engines and a Prometheus as processes on loopback, and the real autoscaler beside them, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from gemma_operator import telemetry
from gemma_operator.api.parse import parse
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaler import Scaler
from gemma_operator.settings import read_settings
from tests.support.kube import eventually
from tests.support.operator import free_port
from tools.cluster.binaries import ensure_one
from tools.monitoring.__main__ import rules_file
from tools.monitoring.promql import Clock

MODEL = "google/gemma-4-E4B-it"
EDGES = {"time_to_first_token": [0.1, 0.3, 0.5, 1, 2.5, 10]}
RECORDING = Path("tests/unit/data/gemma-engine-metrics.txt")


def get(url: str, seconds: float = 5) -> Any:
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return json.load(answer)


class Engine:
    """A stand-in on loopback; `speed` is that of its hardware, 1 as measured."""

    def __init__(self, log: Path, speed: float = 1.0, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        arguments = [
            "--host=127.0.0.1", f"--port={self.port}", f"--model={MODEL}",
            f"--custom-histogram-buckets={json.dumps(EDGES)}", *flags,
        ]  # fmt: skip
        module = "gemma_operator.simulation.standin"
        environment = {
            **os.environ, "PYTHONPATH": str(Path("operator").resolve()), "STANDIN_STARTUP_SECONDS": "0",
            "STANDIN_SPEED": str(speed),
        }  # fmt: skip
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments], env=environment, stdout=output, stderr=output
            )

    def answers(self) -> bool:
        try:
            get(f"{self.url}/v1/models")
        except OSError:
            return False
        return True

    def ask(self, tokens: int = 4, characters: int = 400, stream: bool = True) -> None:
        """One chat; what becomes of it is seen in the metrics."""
        text = f"{time.monotonic_ns()} " + "x" * characters
        body = {
            "model": MODEL, "max_tokens": tokens, "ignore_eos": True, "stream": stream,
            "messages": [{"role": "user", "content": text}],
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Plugin:
    """The engine image's metrics as recorded, with counters that grow: `fill` of each step's encoder budget."""

    def __init__(self, fill: float) -> None:
        started = time.time()
        lines = RECORDING.read_text().splitlines()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ticks = time.time() - started
                grown = {"encoder_budget_tokens": 4096 * ticks, "encoder_tokens": 4096 * ticks * fill}
                said = []
                for line in lines:
                    name, _, value = line.rpartition(" ")
                    short = re.sub(r"^gemma_engine_|_total$", "", name)
                    counts = name.partition("{")[0].endswith(("_total", "_bucket", "_count", "_sum"))
                    said.append(f"{name} {grown.get(short, (float(value) + 1) * ticks if counts else float(value))}")
                body = ("\n".join(said) + "\n").encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                with contextlib.suppress(OSError):  # a busy machine, and a scrape that gave up
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Autoscaler:
    """The operator's scaler over the engines' own metrics; ticks on a thread until it is told not to."""

    def __init__(self, spec: Mapping[str, Any], engines: Mapping[str, Engine]) -> None:
        body = {"metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 1}, "spec": spec}
        self._serving = parse(body)
        self._scaler = Scaler(EngineSource(), read_settings({"GEMMA_SCALING_TICK_SECONDS": "1"}))
        began = time.time()
        self._states = {
            pool: PoolState(
                exists=True, desired=1, ready=1, updated=1, settled=True,
                engines=(EnginePod(pool, f"chat-{pool}", began - 300, began, False, f"{engine.url}/metrics"),),
            )
            for pool, engine in engines.items()
        }  # fmt: skip
        self._stop = threading.Event()
        self._server = telemetry.serve(0, "127.0.0.1")
        self.port = self._server.server_address[1]
        telemetry.leading.set(1)
        telemetry.reconciles.labels("ok").inc()
        telemetry.writes.labels("apply", "Deployment").inc()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        while not self._stop.is_set():
            self._scaler.track(self._serving, self._states, {})
            await self._scaler.tick()
            await asyncio.sleep(0.5)

    def stop_ticks(self) -> None:
        self._stop.set()
        self._thread.join()

    def vanish(self) -> None:
        """No metrics any more."""
        self.stop_ticks()
        self._server.shutdown()
        self._server.server_close()

    def clean_up(self) -> None:
        telemetry.leading.set(0)
        telemetry.pools.show(dict, dict)


@dataclass
class Target:
    """What Prometheus scrapes, with the labels that the chart's discovery gives."""

    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    job: str = "gemma-engines"


class Prometheus:
    """The real program, with the rules by a clock."""

    def __init__(self, folder: Path, clock: Clock, targets: list[Target]) -> None:
        folder.mkdir()
        (folder / "rules.yaml").write_text(rules_file(clock))
        jobs: dict[str, list[dict[str, Any]]] = {}
        for target in targets:
            jobs.setdefault(target.job, []).append(
                {"targets": [f"127.0.0.1:{target.port}"], "labels": dict(target.labels)}
            )
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": job, "honor_labels": job == "gemma-operator", "static_configs": listed}
                for job, listed in jobs.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    ensure_one("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        eventually(f"Prometheus at {self.url}", self._is_ready, 60)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        try:
            answer = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class Traffic:
    """Chats in the background, each after the pause of its stream."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(32)

    def stream(self, pause: float, ask: Callable[[], None]) -> None:
        """A chat each `pause` seconds, whether the one before is answered or not."""

        def run() -> None:
            while not self._stop.wait(pause):
                self._pool.submit(ask)

        threading.Thread(target=run, daemon=True).start()

    def once(self, ask: Callable[[], None]) -> None:
        self._pool.submit(ask)

    def stop(self) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
