"""Requests as columns: when each comes, and what it asks for.

A request with media is one image or one video on top of its text. What asks for several images counts as a video of the
same encoder work and about as many tokens: an image is 280 soft tokens, a frame of a video is 70 (vLLM, Gemma 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemma_operator.workload.errors import WorkloadError

__all__ = ["Arrivals", "WorkloadError", "merged"]

FRAMES_PER_IMAGE = 4
"""An image of 280 soft tokens, in video frames of 70."""
MAX_FRAMES = 32
"""Gemma 4 takes that many frames of a video."""
JITTER_SECONDS = 20.0
"""How far a copy of a request is moved by `scaled` (research/bound.md section 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Columns of equal length in order of time. Raises WorkloadError where they aren't."""

    at: NDArray[np.float64]
    """Seconds since the start, ascending."""
    prompt_tokens: NDArray[np.int32]
    """Text tokens; those of media come on top."""
    output_tokens: NDArray[np.int32]
    frames: NDArray[np.int16]
    """0: text only; 1: an image; more: a video of that many frames."""
    repeated_tokens: NDArray[np.int32]
    """Of the prompt tokens, the leading ones that an earlier prompt began with too: what a prefix cache can save."""

    @classmethod
    def of(
        cls,
        at: ArrayLike,
        prompt_tokens: ArrayLike = 500,
        output_tokens: ArrayLike = 200,
        frames: ArrayLike = 0,
        repeated_tokens: ArrayLike = 0,
    ) -> Arrivals:
        """Columns from anything like an array; a single number stands for every request. Sorted by time.

        Raises:
            WorkloadError: a time or a count is negative, too large or not a number.
        """
        times = np.atleast_1d(np.asarray(at, dtype=np.float64))
        if not np.isfinite(times).all() or (times.size and times.min() < 0):
            raise WorkloadError("every arrival needs a time of 0 seconds or more")
        order = np.argsort(times, kind="stable")
        return cls(
            times[order],
            _column("prompt_tokens", prompt_tokens, np.int32, order),
            _column("output_tokens", output_tokens, np.int32, order),
            _column("frames", frames, np.int16, order),
            _column("repeated_tokens", repeated_tokens, np.int32, order),
        )

    def __post_init__(self) -> None:
        if any(len(getattr(self, column.name)) != len(self.at) for column in fields(self)):
            raise WorkloadError("the columns of a workload differ in length")
        if np.any(self.at[1:] < self.at[:-1]):
            raise WorkloadError("arrivals must be in order of time: use Arrivals.of, which sorts")

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seconds(self) -> float:
        """Time of the last arrival."""
        return float(self.at[-1]) if len(self) else 0.0

    @property
    def media_share(self) -> float:
        """Share of the requests with an image or a video, 0 to 1."""
        return float(np.mean(self.frames > 0)) if len(self) else 0.0

    def crop(self, start: float, end: float = np.inf) -> Arrivals:
        """What comes from `start` to before `end` (seconds), with `start` as the new zero."""
        first, last = np.searchsorted(self.at, (start, end))
        return self.picked(np.arange(first, last), self.at[first:last] - start)

    def where(self, chosen: NDArray[np.bool_]) -> Arrivals:
        """The requests for which `chosen` is true, on the same clock."""
        index = np.flatnonzero(chosen)
        return self.picked(index, self.at[index])

    def scaled(self, factor: float, seed: int, jitter: float = JITTER_SECONDS) -> Arrivals:
        """`factor` times as many requests over the same time: copies, each moved by up to `jitter` seconds.

        Requests are picked at random for the rest of a factor that is no whole number. Copies smooth bursts that are
        shorter than the jitter; compressing time instead would shorten the day against the cold start.
        """
        if not factor > 0:
            raise WorkloadError(f"a workload can't be scaled by {factor:g}: give a factor above 0")
        rng = np.random.default_rng((seed, 1))
        index = np.repeat(np.arange(len(self)), int(factor))
        rest = np.flatnonzero(rng.random(len(self)) < factor % 1)
        if factor != 1:
            index = np.concatenate((index, rest))
            at = self.at[index] + rng.uniform(-jitter, jitter, len(index))
            at = np.abs(at)  # what would fall out at an end comes back in
            at = np.where(at > self.seconds, np.maximum(2 * self.seconds - at, 0), at)
            order = np.argsort(at, kind="stable")
            return self.picked(index[order], at[order])
        return self

    def with_media(self, share: float, seed: int, frames: int = 6) -> Arrivals:
        """The same requests, of which a random `share` has media of `frames` frames and the others have none."""
        if not 0 <= share <= 1:
            raise WorkloadError(f"a media share of {share:g} is none: give 0 to 1")
        if not 1 <= frames <= MAX_FRAMES:
            raise WorkloadError(f"{frames} frames are none: give 1 (an image) to {MAX_FRAMES}")
        chosen = np.random.default_rng((seed, 2)).random(len(self)) < share
        media = np.where(chosen, frames, 0).astype(np.int16)
        return Arrivals(self.at, self.prompt_tokens, self.output_tokens, media, self.repeated_tokens)

    def picked(self, index: NDArray[np.int64], at: NDArray[np.float64]) -> Arrivals:
        """Requests by their index, at other times (ascending)."""
        return Arrivals(
            at, self.prompt_tokens[index], self.output_tokens[index], self.frames[index], self.repeated_tokens[index]
        )


def merged(parts: Sequence[Arrivals]) -> Arrivals:
    """All requests of several workloads on one clock."""
    if not parts:
        return Arrivals.of([])
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Arrivals)
    }
    return Arrivals.of(**columns)


def _column(
    name: str, values: ArrayLike, kind: type[np.signedinteger], order: NDArray[np.int64]
) -> NDArray[np.signedinteger]:
    given = np.asarray(values)
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise WorkloadError(f"{name} holds a value that is no number")
    if given.size and not 0 <= given.min() <= given.max() <= np.iinfo(kind).max:
        raise WorkloadError(f"{name} must be 0 to {np.iinfo(kind).max}; found {given.min()} to {given.max()}")
    if given.ndim and len(given) != len(order):
        raise WorkloadError(f"{name} has {len(given)} values for {len(order)} arrivals")
    return np.broadcast_to(given.astype(kind), order.shape)[order]
