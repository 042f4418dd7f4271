"""What goes wrong with workloads; without numpy, so that a command can tell of it where that is absent."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload that can't be read, made or planned for; the message says what is wrong and what is allowed."""
