"""What a process has used, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU seconds since the start, and memory in MiB: now, and the most so far."""

    cpu_seconds: float
    rss_mib: float
    peak_mib: float
    threads: int
    files: int


def usage(pid: int) -> Usage:
    """Of a process by its id (Linux). Raises FileNotFoundError where there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)

    def mib(name: str) -> float:
        return int(status[name].split()[0]) / 1024

    # proc(5): utime and stime are the 14th and 15th field; the first two are before the parenthesis.
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return Usage(cpu, mib("VmRSS"), mib("VmHWM"), int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd")))


def load_average() -> float:
    """Of the last minute, on the whole machine."""
    return os.getloadavg()[0]
