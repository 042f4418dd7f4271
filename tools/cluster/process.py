"""Programs that outlive the command that started them: pid files that a recycled pid cannot fool, logs, waiting."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .console import ClusterError, Progress, duration, say

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def born(pid: int) -> str | None:
    """What tells a process from a later one with the same pid: boot and start time; None when it has ended."""
    if not sys.platform.startswith("linux"):
        out = subprocess.run(
            ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        state, _, start = out.stdout.strip().partition(" ")
        return None if out.returncode or state.startswith("Z") else start.strip()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): state is the 3rd field and starttime the 22nd; the name before them may hold spaces
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def run(
    argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, shown: str = ""
) -> str:
    """What a command printed; with `shown` a line tells every now and then that this is still going on."""
    command = list(map(str, argv))
    started = time.monotonic()
    with Progress() as progress:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while True:
            try:
                output, errors = process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if shown:
                    progress.show(f"{shown}: {duration(time.monotonic() - started)}")
    if process.returncode:
        raise ClusterError(f"'{' '.join(command)}' failed:\n{(errors or output).strip()[-2000:]}")
    return output


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass(frozen=True)
class Handle:
    pid: int
    born: str

    @property
    def alive(self) -> bool:
        return born(self.pid) == self.born

    @classmethod
    def of(cls, pid: int) -> "Handle":
        return cls(pid, born(pid) or "ended")


def wait_ended(handles: Sequence[Handle], timeout: float) -> list[Handle]:
    """Those still alive after at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (left := [h for h in handles if h.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def end(handles: Sequence[Handle], *, grace: float) -> None:
    """SIGTERM, `grace` seconds, then SIGKILL; no grace kills at once."""
    left = [h for h in handles if h.alive]
    if grace:
        for handle in left:
            send(handle.pid, signal.SIGTERM)
        left = wait_ended(left, grace)
    for handle in left:
        send(handle.pid, signal.SIGKILL)
    if stuck := wait_ended(left, 10):
        raise ClusterError(
            f"processes {[h.pid for h in stuck]} do not end, even by SIGKILL; look at them with ps, then run 'down' again"
        )


class Supervisor:
    """The programs of one cluster."""

    def __init__(self, root: Path) -> None:
        self._pids = root / "pids"
        self._logs = root / "logs"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str | Path], more: Mapping[str, str] | None = None) -> None:
        """Start a program under this name; `more` is added to its environment."""
        env = {k: v for k, v in os.environ.items() if k not in PROXY_VARIABLES and k != "KUBECONFIG"}
        env |= more or {}
        env["PATH"] = f"{env.get('PATH', '')}:{SYSTEM_PATH}"
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self._children[name] = child
        handle = Handle.of(child.pid)
        (self._pids / f"{name}.json").write_text(json.dumps({"pid": handle.pid, "born": handle.born}))

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def handles(self) -> dict[str, Handle]:
        found = {}
        for path in sorted(self._pids.glob("*.json")):
            try:
                found[path.stem] = Handle(**json.loads(path.read_text()))
            except (json.JSONDecodeError, TypeError):
                path.unlink()
        return found

    def end(self, name: str, *, grace: float) -> None:
        handle = self.handles().get(name)
        if handle:
            end([handle], grace=grace)
        if child := self._children.pop(name, None):
            child.wait()
        (self._pids / f"{name}.json").unlink(missing_ok=True)

    def wait(self, name: str, condition: Callable[[], bool], *, timeout: float = 60.0, what: str = "") -> None:
        """Return when the condition holds; say how long it took, or what the program said when it died."""
        started = time.monotonic()
        handle = self.handles()[name]
        while not condition():
            if not handle.alive:
                raise ClusterError(f"{name} ended while starting; the end of {self.log(name)}:\n{self.tail(name)}")
            if time.monotonic() - started > timeout:
                raise ClusterError(
                    f"{name} is not ready after {timeout:.0f} s; the end of {self.log(name)}:\n{self.tail(name)}"
                )
            time.sleep(0.05)
        say(f"{what or name} ready ({time.monotonic() - started:.1f} s)")

    def tail(self, name: str, lines: int = 15) -> str:
        with self.log(name).open(errors="replace") as log:
            return "".join(f"    {line[:400].rstrip()}\n" for line in deque(log, lines))
