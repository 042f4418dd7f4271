"""Operators that start in a tenth of the time: forked from a process that has imported everything.

Each is a process of its own and dies as one. `python -m tests.support.spawner` is the process that forks: it reads an
environment per line, and writes the pid of the operator that it has started with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class Spawner:
    """`start` as often as one likes; what still runs at the end is killed. The client reads KUBECONFIG when it is imported."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubeconfig, self.log = kubeconfig, log
        self._started: list[int] = []

    def __enter__(self) -> Self:
        with self.log.open("ab") as output:
            self._parent = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.spawner"],
                env=os.environ | {"PYTHONPATH": f"{Path('operator').resolve()}:{Path.cwd()}", "KUBECONFIG": str(self._kubeconfig)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in filter(is_alive, self._started):
            os.kill(pid, signal.SIGKILL)
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(10)

    def start(self, **environment: str) -> int:
        """Start an operator; returns its pid."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(environment) + "\n")
        self._parent.stdin.flush()
        self._started.append(int(self._parent.stdout.readline()))
        return self._started[-1]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended while it was read
        return False


def main() -> None:
    """Fork an operator for each line."""
    from gemma_operator import app, cli  # noqa: F401  # what the forks need not import again

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while line := sys.stdin.readline():
        if pid := os.fork():
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(json.loads(line))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os._exit(cli.main(["run"]))


if __name__ == "__main__":
    main()
