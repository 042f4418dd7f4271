"""Values of options, with one clear line where they are none."""

from __future__ import annotations

from argparse import ArgumentTypeError

from gemma_operator.api.values import duration_seconds


def seconds(text: str, low: float = 0.01, high: float = 600.0) -> float:
    """A duration such as 300ms, in seconds."""
    try:
        found = duration_seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if not low <= found <= high:
        raise ArgumentTypeError(f"{text} is out of range: give {low:g}s to {high:g}s")
    return found


def number(text: str, low: float, high: float) -> float:
    """A number within bounds."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not low <= found <= high:
        raise ArgumentTypeError(f"{text!r} is no number from {low:g} to {high:g}")
    return found


def percentile(text: str) -> float:
    """A percentile of 50 to 99.9."""
    return number(text, 50, 99.9)


def share(text: str) -> float:
    """A share of 0 to 1."""
    return number(text, 0, 1)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def frames(text: str) -> int:
    """Frames of a video; 1 is an image."""
    if (found := positive(text)) > 32:
        raise ArgumentTypeError(f"{text} frames are too many: Gemma 4 takes 1 to 32")
    return found
