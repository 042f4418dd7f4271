"""Would a pool of engines that only encode media pay? Seed 002 names four cases in which it doesn't."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemma_operator.planning.load import Counts, Load, engines_for
from gemma_operator.scaling.profile import Profile

LEAST_WORK = 0.5
"""Engines' worth of encoding at the peak, below which a pool for it idles: our assumption."""
UTILIZATION = 0.7
"""Of an encoder pool, so that bursts of media don't queue: our assumption."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether it would pay, and why."""

    pays: bool
    why: str


def advice(load: Load, up: Counts, profile: Profile, media_share: float, batch_share: float) -> Advice:
    """The four cases first; then engines at the peak with and without such a pool."""
    if batch_share >= 1:
        return Advice(False, "all requests may wait, so the encoder's bursts hurt nobody")
    if not media_share:
        return Advice(False, "there are no media: nothing is encoded")
    if up.max() <= 1:
        return Advice(False, "one engine carries all: bursts would have to move to a second one that mostly idles")
    encoding = float(load.encoder.max())
    if encoding < LEAST_WORK:
        return Advice(False, f"encoding is {encoding:.2g} engines' worth of work at the peak: a pool for it would idle")
    apart = Load(load.requests, load.work - load.encoder, np.zeros_like(load.encoder), np.zeros_like(load.media_share))
    text, media = int(engines_for(apart, profile).max()), int(np.ceil(encoding / UTILIZATION))
    said = f"{media} engines that encode and {text} that don't, instead of {int(up.max())} at the peak"
    if text + media < up.max():
        return Advice(True, f"{said}; but vLLM's transfer of encodings (EPD) is experimental: try it before")
    return Advice(False, f"it would take {said}")
