"""The control groups under which the kubelet puts Pods: a root of our own, so that what runs in it is ours."""

import hashlib
import os
import signal
import time
from pathlib import Path

from .process import Handle, send, wait_ended
from .state import State

WANTED = ("cpuset", "cpu", "io", "memory", "pids")


def root_name(state: State) -> str:
    """With a hash of the state folder: another user may have a cluster of the same name."""
    return f"gemma-serving-{state.name}-{hashlib.sha256(bytes(state.root)).hexdigest()[:8]}"


def _mounted(kind: str) -> list[Path]:
    mounts = [line.split(" ") for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(mount[1]) for mount in mounts if mount[2] == kind and mount[3].split(",")[0] == "rw"]


def hierarchies() -> list[Path]:
    """Where cgroups are mounted writable: one place on a v2 machine, one for each controller on a v1 machine."""
    return _mounted("cgroup") or _mounted("cgroup2")


def create(state: State) -> str:
    """The path of the new root inside every hierarchy, as the kubelet wants it."""
    for place in hierarchies():
        control = place / "cgroup.subtree_control"
        if control.exists():
            available = (place / "cgroup.controllers").read_text().split()
            control.write_text(" ".join(f"+{name}" for name in WANTED if name in available))
        (place / root_name(state)).mkdir(exist_ok=True)
    return f"/{root_name(state)}"


def kill(state: State) -> None:
    """SIGKILL to every process in our groups, until there is none: a dying init may just have forked."""
    for _ in range(50):
        pids = {pid for group in _groups(state) for pid in _processes(group)}
        if not pids:
            return
        handles = [Handle.of(pid) for pid in pids]
        for pid in pids:
            send(pid, signal.SIGKILL)
        wait_ended(handles, 1)


def remove(state: State) -> None:
    for group in sorted(_groups(state), key=lambda path: -len(path.parts)):
        for _ in range(20):
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # the kernel lets a dead process's group go a moment later
                time.sleep(0.05)


def _groups(state: State) -> list[Path]:
    """Our root in every hierarchy, and all below; groups come and go meanwhile, which os.walk takes in its stride.

    On a machine with both versions runc makes a group in the v2 hierarchy too, though the controllers are v1's.
    """
    roots = [place / root_name(state) for place in _mounted("cgroup") + _mounted("cgroup2")]
    return [Path(folder) for root in roots for folder, _, _ in os.walk(root)]


def _processes(group: Path) -> list[int]:
    try:
        return list(map(int, (group / "cgroup.procs").read_text().split()))
    except OSError:
        return []
