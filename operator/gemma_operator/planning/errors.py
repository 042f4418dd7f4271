"""What goes wrong when an engine's capacity is to be found. Raised with one sentence for the person who asked."""

from __future__ import annotations


class ResultError(ValueError):
    """A load test's result that can't be used; the message says which file, what is wrong and what to do."""


class SweepError(ValueError):
    """A server that can't be measured; the message says why and what to do."""
