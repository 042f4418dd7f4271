"""What the person at the terminal sees: numbered steps with elapsed times, and the commands that are run."""

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence


class DemoError(Exception):
    """The demo can't go on; the text is for the person at the terminal."""


class Steps:
    """Numbers the steps and tells how long each took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._began = time.monotonic()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        self._number += 1
        began = time.monotonic()
        say(f"\n[{self._number}/{self._total}] {title}", indent=0)
        yield
        now = time.monotonic()
        say(f"done in {duration(now - began)}; {duration(now - self._began)} since the start")


def say(text: str, *, indent: int = 6) -> None:
    for line in text.splitlines() or [""]:
        print((" " * indent + line).rstrip(), flush=True)


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


class Shell:
    """Runs commands from the repository's root with one environment, and remembers those that were shown."""

    def __init__(self, root: str, environment: Mapping[str, str] = os.environ) -> None:
        self.shown: list[str] = []
        self.environment = dict(environment)
        self._root = root

    def show(self, command: Sequence[str]) -> None:
        """Print a command and let it print; raises DemoError when it fails."""
        self.shown.append(shlex.join(command))
        say(f"$ {self.shown[-1]}")
        try:
            done = subprocess.run(command, cwd=self._root, env=self.environment, check=False)
        except FileNotFoundError:
            raise DemoError(f"{command[0]} isn't installed, or not on PATH") from None
        if done.returncode:
            raise DemoError(f"`{self.shown[-1]}` failed with exit code {done.returncode}: its last lines above say why")

    def read(self, command: Sequence[str], *, needed: bool = True) -> str:
        """Run a command unseen and return what it printed; '' when it failed and isn't needed."""
        try:
            return subprocess.run(
                command, cwd=self._root, env=self.environment, check=True, capture_output=True, text=True
            ).stdout
        except (subprocess.CalledProcessError, FileNotFoundError) as failed:
            if needed:
                said = (getattr(failed, "stderr", "") or "").strip()[-600:]
                raise DemoError(f"`{shlex.join(command)}` failed: {said or failed}") from None
            return ""
