"""Logs of requests: CSV of Azure, BurstGPT and users' own, JSON lines of Mooncake. Read line by line, so size is no matter.

The documented CSV: a header, then a line per request.

    timestamp,prompt_tokens,output_tokens,frames
    2026-11-30T08:00:00.250Z,512,180,0
    2026-11-30T08:00:01.100Z,230,90,6

`timestamp` is ISO 8601 or seconds; `frames` may be absent (0: text, 1: an image, more: a video). Further columns don't matter.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from gemma_operator.workload.arrivals import FRAMES_PER_IMAGE, MAX_FRAMES, Arrivals, WorkloadError

MOST_BAD_LINES = 0.01
"""Share of unreadable lines up to which the others are still taken for the truth."""
MAX_TOKENS = 10_000_000
LONGEST_LINE = 1 << 20
"""Characters; a file without line ends must not fill the memory."""
MOONCAKE_BLOCK = 512
"""Tokens per prefix block of Mooncake's hash_ids."""

NAMES = {
    "timestamp": ("timestamp", "time", "at"),
    "prompt_tokens": ("prompt_tokens", "contexttokens", "request tokens", "input_length", "input_tokens"),
    "output_tokens": ("output_tokens", "generatedtokens", "response tokens", "output_length"),
    "frames": ("frames",),
    "images": ("numimages", "images"),
}
"""What a column may be called, in lower case: ours, Azure's, BurstGPT's, Mooncake's."""


@dataclass(frozen=True, slots=True)
class Log:
    """The requests of a log, and what had to be said about it."""

    arrivals: Arrivals
    notes: tuple[str, ...] = ()


_Line = TypeVar("_Line")
_Row = tuple[float, int, int, int, int]
"""Seconds, prompt tokens, output tokens, frames, repeated tokens."""


@dataclass(slots=True)
class _Columns:
    at: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("i"))
    output: array[int] = field(default_factory=lambda: array("i"))
    frames: array[int] = field(default_factory=lambda: array("h"))
    repeated: array[int] = field(default_factory=lambda: array("i"))

    def append(self, row: _Row) -> None:
        at, prompt, output, frames, repeated = row
        self.at.append(at)
        self.prompt.append(prompt)
        self.output.append(output)
        self.frames.append(frames)
        self.repeated.append(repeated)


def read_csv(path: Path) -> Log:
    """A log with a header line.

    Raises:
        WorkloadError: no header with the needed columns, too many lines that can't be read, or none that can.
    """
    with _opened(path) as file:
        rows = csv.reader(line.replace("\0", "") for line in file)
        try:
            header = [name.strip().lower() for name in next(rows, [])]
            parse = _parser(path, header)
            return _collect(path, ((rows.line_num, row) for row in rows if row), parse)
        except csv.Error as error:
            raise WorkloadError(f"{path} line {rows.line_num} is no CSV: {error}") from None


def read_jsonl(path: Path) -> Log:
    """Mooncake's JSON lines: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of 512-token blocks.

    Raises:
        WorkloadError: too many lines that can't be read, or none that can.
    """
    seen: set[int] = set()

    def parse(line: str) -> _Row:
        found = json.loads(line)
        prompt = _count(found["input_length"])
        blocks = found.get("hash_ids") or []
        known = next((number for number, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
        return (
            _number(found["timestamp"]) / 1000,
            prompt,
            _count(found["output_length"]),
            0,
            min(prompt, known * MOONCAKE_BLOCK),
        )

    with _opened(path) as file:
        return _collect(path, ((number, line) for number, line in enumerate(file, 1) if line.strip()), parse)


def _parser(path: Path, header: list[str]) -> Callable[[list[str]], _Row]:
    index = {key: next((header.index(name) for name in names if name in header), None) for key, names in NAMES.items()}
    at, prompt, output, frames, images = (index[key] for key in NAMES)
    if at is None or prompt is None or output is None:
        missing = [key for key in ("timestamp", "prompt_tokens", "output_tokens") if index[key] is None]
        shown = ", ".join(name[:30] for name in header[:8]) or "nothing"
        raise WorkloadError(
            f"{path} has no column {' and '.join(missing)} (its first line holds: {shown}); "
            "needed is a header with timestamp, prompt_tokens, output_tokens and, where there are media, frames"
        )

    def parse(row: list[str]) -> _Row:
        shown = 0
        if frames is not None:
            shown = min(_count(row[frames] or 0), MAX_FRAMES)
        elif images is not None and (found := _count(row[images] or 0)):
            shown = 1 if found == 1 else min(found * FRAMES_PER_IMAGE, MAX_FRAMES)
        return _seconds(row[at]), _count(row[prompt]), _count(row[output]), shown, 0

    return parse


def _collect(path: Path, rows: Iterable[tuple[int, _Line]], parse: Callable[[_Line], _Row]) -> Log:
    columns, bad, first = _Columns(), 0, ""
    for number, row in rows:
        try:
            columns.append(parse(row))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            bad += 1
            first = first or f"line {number}: {_why(error)}"
    good = len(columns.at)
    if not good:
        raise WorkloadError(f"{path} holds no request" + (f" that can be read ({first})" if first else ""))
    if bad > MOST_BAD_LINES * (good + bad):
        raise WorkloadError(f"{path}: {bad} of {good + bad} lines can't be read; {first}")
    at = np.frombuffer(columns.at, dtype=np.float64)
    notes = [f"{bad} of {good + bad} lines left out ({first})"] if bad else []
    if unordered := int(np.count_nonzero(at[1:] < at[:-1])):
        notes.append(f"{unordered} lines were earlier than the one before: sorted by time")
    arrivals = Arrivals.of(at - at.min(), columns.prompt, columns.output, columns.frames, columns.repeated)
    return Log(arrivals, tuple(f"{path.name}: {note}" for note in notes))


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, IndexError):
        return "columns are missing"
    return str(error)[:120]


def _seconds(text: str) -> float:
    """Of ISO 8601, which has a hyphen after its year, or of a number."""
    if text[4:5] != "-" and text[5:6] != "-":
        return _number(text, "a time nor seconds")
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text[:40]!r} is neither a time nor seconds") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(value: object, wanted: str = "") -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if 0 <= number < math.inf:
        return number
    shown = f"{str(value)[:40]!r}"
    raise ValueError(f"{shown} is neither {wanted}" if wanted else f"{shown} is no number of 0 or more")


def _count(value: object) -> int:
    # Most are plain, and there may be a hundred million of them.
    number = int(value) if isinstance(value, str) and value.isdecimal() else _number(value)
    if number > MAX_TOKENS:
        raise ValueError(f"{number:.0f} tokens are more than any engine takes")
    return round(number)


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[str]]:
    if path.is_dir():
        raise WorkloadError(f"{path} is a folder, not a log")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        opener = gzip.open if packed else open
        with opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as text:
            yield _Lines(path, text)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None


class _Lines:
    """The lines of a text file, none of them longer than `LONGEST_LINE`."""

    def __init__(self, path: Path, text: IO[str]) -> None:
        self._path, self._text = path, text

    def __iter__(self) -> Iterator[str]:
        number = 0
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise WorkloadError(f"{self._path} line {number} has no end in a million characters: this is no log")
            yield line
