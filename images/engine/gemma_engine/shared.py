"""Numbers that the workers hand to the API server: eight-byte integers in files of a folder that one server shares.

The first process of a server makes the folder and names it in its environment; the processes that it starts inherit that.
Writing and reading are memory accesses, so that neither an engine step nor the API server's event loop waits for a disk.
"""

import atexit
import fcntl
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "GEMMA_ENGINE_RUN"

COUNTS = ("encoder_calls", "encoder_images", "encoder_frames", "fallbacks", "oom_splits")
"""Totals since the start. Every rank of a tensor-parallel group repeats the encoder, so only rank 0 counts."""

FIELDS = (*COUNTS, "state")

STATES = ("unchecked", "batched", "per_item", "plain", "failed")
"""What the self-check found; a later one is worse. All but the first and the last give stock's bits: see model.py."""


class Record:
    """The integers of one worker, by name; made of zeros when the file is new."""

    def __init__(self, path: Path) -> None:
        size = 8 * len(FIELDS)
        with path.open("a+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)

    def __getitem__(self, field: str) -> int:
        value: int = struct.unpack_from("q", self._memory, 8 * FIELDS.index(field))[0]
        return value

    def __setitem__(self, field: str, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * FIELDS.index(field), value)

    def add(self, field: str, value: int = 1) -> None:
        self[field] += value


def folder() -> Path:
    """The server's folder; made, and removed at exit, by the process that asks first."""
    if FOLDER not in os.environ:
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="gemma-engine-", dir=place)
        atexit.register(_remove, os.getpid(), os.environ[FOLDER])
    return Path(os.environ[FOLDER])


def _remove(owner: int, path: str) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def own_record() -> Record:
    """This worker's record."""
    return Record(folder() / f"worker-{os.getpid()}")


class Workers:
    """All workers' records, as one API server sees them."""

    def __init__(self) -> None:
        self._records: dict[Path, Record] = {}
        self._exported = Record(folder() / "exported")

    def find(self) -> None:
        for path in folder().glob("worker-*"):
            if path not in self._records:
                self._records[path] = Record(path)

    def state(self) -> str:
        """The worst of the workers' states; `unchecked` when there is no worker of ours."""
        return STATES[max((record["state"] for record in self._records.values()), default=0)]

    def new_counts(self) -> dict[str, int]:
        """What was counted since any API server of this engine asked: each event is handed out once."""
        with self._alone():
            news = {}
            for field in COUNTS:
                total = sum(record[field] for record in self._records.values())
                news[field] = total - self._exported[field]
                self._exported[field] = total
            return news

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (folder() / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
