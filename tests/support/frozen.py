"""Stop one thread of a process of this machine, while its other threads go on: a dead loop that still answers elsewhere."""

from __future__ import annotations

import ctypes
import errno
import os
from types import TracebackType
from typing import Self

# Requests of ptrace(2), and waitpid(2)'s flag for threads that are no children: linux/ptrace.h, linux/wait.h.
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000


class Frozen:
    """Holds the main thread of a process until it is left, or until the process has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._has_ended = False

    def __enter__(self) -> Self:
        _ptrace(SEIZE, self._pid)
        _ptrace(INTERRUPT, self._pid)
        os.waitpid(self._pid, WALL)
        return self

    def has_ended(self) -> bool:
        """Whether somebody has killed the process. Until it was asked for here, its parent does not hear of its end."""
        if not self._has_ended:
            done, status = os.waitpid(self._pid, WALL | os.WNOHANG)
            self._has_ended = bool(done) and (os.WIFSIGNALED(status) or os.WIFEXITED(status))
        return self._has_ended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.has_ended():
            _ptrace(DETACH, self._pid)


def _ptrace(request: int, pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if libc.ptrace(request, pid, None, None) < 0 and (number := ctypes.get_errno()) != errno.ESRCH:
        raise OSError(number, f"ptrace request {request:#x} of {pid}: {os.strerror(number)}")
