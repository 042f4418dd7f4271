"""A workload as the autoscaler sees it: work per half minute, and the engines that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemma_operator.planning.replay import IMAGE
from gemma_operator.planning.stages import TOKENS_PER_FRAME
from gemma_operator.scaling.demand import BATCH_SAFETY, LEVEL_SECONDS
from gemma_operator.scaling.profile import Profile, Rates
from gemma_operator.workload.arrivals import FRAMES_PER_IMAGE, Arrivals

STEP = 30.0
"""Seconds of one step of the plan."""
SAFETY = 0.95
"""Share of the operating point that is planned for."""
_LEVEL_STEPS = round(LEVEL_SECONDS / STEP)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """Per step of 30 s, and as many steps as the workload lasts."""

    requests: Floats
    """Per second."""
    work: Floats
    """Engine-seconds per second."""
    encoder: Floats
    """The part of it that the vision encoder takes."""
    media_share: Floats
    """Over the last five minutes."""

    @property
    def demand(self) -> Floats:
        """What is planned for: the half minute's work or the last five minutes', whichever is more."""
        return np.maximum(self.work, _trailing_mean(self.work, _LEVEL_STEPS))


def load_of(arrivals: Arrivals, profile: Profile, seconds: float) -> Load:
    """The work that a workload of that length asks for, by the profile's costs."""
    steps = max(1, int(np.ceil(seconds / STEP)))
    index = np.minimum((arrivals.at / STEP).astype(np.int64), steps - 1)

    def per_second(values: NDArray[Any]) -> Floats:
        return np.bincount(index, weights=values.astype(np.float64), minlength=steps) / STEP

    with_media = arrivals.frames > 0
    units = np.where(arrivals.frames == 1, FRAMES_PER_IMAGE, arrivals.frames)
    columns = [
        per_second(values)
        for values in (
            np.ones(len(arrivals)), prompt_lengths(arrivals), arrivals.output_tokens, with_media, units,
        )
    ]  # fmt: skip
    requests, _, _, items, media_units = columns
    work = np.array([profile.work(Rates(*map(float, row))) for row in zip(*columns, strict=True)])
    encoder = items * profile.costs.media_item + media_units * profile.costs.media_unit
    level, level_items = _trailing_mean(requests, _LEVEL_STEPS), _trailing_mean(items, _LEVEL_STEPS)
    share = np.divide(level_items, level, out=np.zeros(steps), where=level > 0)
    return Load(requests, work, encoder, np.minimum(share, 1.0))


def prompt_lengths(arrivals: Arrivals) -> NDArray[Any]:
    """Prompt tokens of each request, those of its media included."""
    return arrivals.prompt_tokens + np.where(arrivals.frames == 1, IMAGE.tokens, arrivals.frames * TOKENS_PER_FRAME)


def engines_for(load: Load, profile: Profile, factor: float = 1.0) -> Counts:
    """Engines that each step needs to hold the SLO, where an engine carries `factor` of what the profile says."""
    pairs = zip(load.demand / (SAFETY * factor), load.media_share, strict=True)
    needed = np.array([profile.engines(float(demand), float(share)) for demand, share in pairs])
    return np.maximum(1, np.ceil(needed - 1e-9)).astype(np.int64)


def batch_engines(load: Load, profile: Profile, deadline: float) -> int:
    """Engines that finish all work within the deadline (seconds), with no TTFT to hold."""
    mean = _trailing_mean(load.work, max(1, round(deadline / STEP)))
    return int(np.ceil(mean.max() / (BATCH_SAFETY * profile.batch_load) - 1e-9))


def held(needed: Counts, cold_start: float) -> Counts:
    """Engines that are up: ordered one cold start ahead of their need, and kept for one after it."""
    reach = int(np.ceil(cold_start / STEP))
    padded = np.pad(needed, reach, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    return np.asarray(windows.max(axis=1), dtype=np.int64)


def burstiness(arrivals: Arrivals) -> float:
    """Coefficient of variation of the gaps within half minutes, weighted by their requests; 1 where too few came."""
    if len(arrivals) < 3:
        return 1.0
    gaps, index = np.diff(arrivals.at), (arrivals.at[1:] / STEP).astype(np.int64)
    count = np.bincount(index).astype(np.float64)
    total, squares = np.bincount(index, weights=gaps), np.bincount(index, weights=gaps**2)
    known = count >= 20
    if not known.any():
        return 1.0
    mean = total[known] / count[known]
    variance = np.maximum(squares[known] / count[known] - mean**2, 0)
    cv = np.sqrt(variance) / np.maximum(mean, 1e-12)
    return float(np.average(cv, weights=count[known]))


def _trailing_mean(values: Floats, steps: int) -> Floats:
    sums = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - steps)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
