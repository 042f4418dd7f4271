"""What the person at the terminal sees: short lines on stderr, so that stdout stays for values that scripts read."""

import sys
import time
from types import TracebackType
from typing import Self


class ClusterError(Exception):
    """A failure that a person can act on; its text says what, which value, what is allowed and what to do."""


def say(text: str) -> None:
    print(f"[cluster] {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 0.4 s, 35 s, 4 min 10 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Progress:
    """One line that says how far long work is: rewritten in place on a terminal, repeated every 15 s elsewhere."""

    def __init__(self, interval: float = 15.0) -> None:
        self._tty = sys.stderr.isatty()
        self._interval = 1.0 if self._tty else interval
        self._next = time.monotonic() + self._interval

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._wipe()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        if self._tty:
            print(f"\r\x1b[K[cluster] {text}", end="", file=sys.stderr, flush=True)
        else:
            say(text)

    def done(self, text: str) -> None:
        """A lasting line, printed above the moving one."""
        self._wipe()
        say(text)

    def _wipe(self) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
