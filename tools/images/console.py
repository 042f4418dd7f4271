"""What the person at the terminal sees, on stderr: stdout is for values that scripts read."""

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25


class ImagesError(Exception):
    """A failure that a person can act on; its text says what failed and what to do."""


def say(text: str) -> None:
    print(f"[images] {text}", file=sys.stderr, flush=True)


def output(*command: object) -> str:
    """What a short command prints; ImagesError with its complaint when it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImagesError(f"`{' '.join(map(str, command))}` failed ({done.returncode}): {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def run_logged(title: str, command: Sequence[object], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a long command with its output in `log`; says the time and the log's last line every few seconds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    say(f"{title} ...")
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env
        )
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(title, log, start, finished), daemon=True)
    reporter.start()
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        finished.set()
        reporter.join()
    if code:
        raise ImagesError(f"{title} failed ({code}). The last lines of {log}:\n{_tail(log, TAIL_LINES)}")
    say(f"{title}: done after {time.monotonic() - start:.0f} s")


def _report(title: str, log: Path, start: float, finished: threading.Event) -> None:
    tty = sys.stderr.isatty()
    while not finished.wait(1 if tty else 10):
        line = f"[images] {title}, {time.monotonic() - start:.0f} s: {_tail(log, 1)[:90]}"
        print(f"\r\x1b[K{line}" if tty else line, end="" if tty else "\n", file=sys.stderr, flush=True)
    if tty:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _tail(log: Path, count: int) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.replace("\r", "\n").splitlines() if line.strip()][-count:])
