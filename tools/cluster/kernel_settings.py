"""Settings of the whole machine that a kubelet changes for itself: noted before it starts, put back after it ended."""

import json
from pathlib import Path

from .state import State

KUBELET_CHANGES = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
)  # fmt: skip
SYS = Path("/proc/sys")


def save(state: State) -> None:
    values = {name: (SYS / name).read_text().strip() for name in KUBELET_CHANGES if (SYS / name).exists()}
    _record(state).write_text(json.dumps(values, indent=1))


def restore(state: State) -> None:
    if not _record(state).exists():
        return
    for name, value in json.loads(_record(state).read_text()).items():
        if (SYS / name).read_text().strip() != value:
            (SYS / name).write_text(value)


def _record(state: State) -> Path:
    return state.root / "kernel-settings.json"
