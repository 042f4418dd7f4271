"""The operator as a process of its own, with the rights of its own user."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kube import Kube, eventually


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def account_kubeconfig(admin: Kube, namespace: str, account: str, folder: Path) -> Path:
    """A kubeconfig with a ServiceAccount's token, and so with its rights alone."""
    token = admin.run("-n", namespace, "create", "token", account, "--duration=2h").stdout.strip()
    config = json.loads(admin.run("config", "view", "--raw", "--flatten", "-o", "json").stdout)
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "operator"
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


class Operator:
    """`gemma-operator run` against a kubeconfig; its output goes to `log`."""

    def __init__(self, kubeconfig: Path, log: Path, **environment: str) -> None:
        self._health = free_port()
        self.metrics_port = free_port()
        self.log = log
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(Path("operator").resolve()),
            "GEMMA_LOG_FORMAT": "plain",
            "GEMMA_SCALING_TICK_SECONDS": "1",
            "GEMMA_HEALTH_PORT": str(self._health),
            "GEMMA_METRICS_PORT": str(self.metrics_port),
            **environment,
        }
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, and wait until it answers on its health port."""
        self.starts += 1
        with self.log.open("ab") as output:
            command = [sys.executable, "-P", "-m", "gemma_operator", "run"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=output, stderr=output)
        eventually(f"the operator answers; its log:\n{self.log.read_text()[-2000:]}", self.healthy, 120)
        return self

    def healthy(self) -> bool:
        """True where /healthz answers 200."""
        assert self._process is not None
        assert self._process.poll() is None, (
            f"the operator ended with {self._process.returncode}:\n{self.log.read_text()[-3000:]}"
        )
        return self.answers()

    def answers(self) -> bool:
        """As `healthy`, and False where the process has ended."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal and return its exit code."""
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(60)
        self._process = None
        return code

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """What the kubelet does: start again what has ended, or what fails three probes."""
        if self.is_running():
            for _ in range(3):
                if self.answers():
                    return
                time.sleep(1)
            self.kill()
        self.start()

    def kill_at_once(self) -> None:
        """SIGKILL without waiting for its end: for use while one of its requests is held."""
        assert self._process is not None
        self._process.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()  # or it would live on without anybody to end it
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()
