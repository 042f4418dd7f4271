"""From what an engine took for single requests to the step model's costs, and from those to what clients will see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma_operator.planning.replay import Ask, ttfts
from gemma_operator.simulation.step_model import Costs, EngineConfig, Media
from gemma_operator.workload.arrivals import Arrivals

LIMIT_SECONDS = 1.0
"""The p95 TTFT up to which this engine counts as within its limit: 300 ms is nothing that a CPU holds with videos."""
LOADS = (0.4, 0.6, 0.8)
"""Shares of the highest rate within the limit that are predicted, then measured. None of them is part of the fit."""


@dataclass(frozen=True, slots=True)
class Single:
    """A request that had the engine to itself."""

    prompt_tokens: int
    frames: int
    ttft: float
    """Seconds that its client saw."""
    engine: float
    """Seconds of them inside the engine, by vLLM's `request_prefill_time_seconds`."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """So many sequences that decoded together, and the mean time between two of their tokens in seconds."""

    sequences: int
    seconds: float


def fit(singles: Sequence[Single], decodings: Sequence[Decoding]) -> Costs:
    """Costs by least squares on medians: a machine that does other things too has outliers to one side.

    What the GPU's model has and a CPU doesn't show apart is put together: frames are decoded and processed by the one
    process of the API server, so all of that is `media_process`.
    """
    sequence, step = _line([d.sequences for d in decodings], [d.seconds for d in decodings])
    text = _medians([one for one in singles if not one.frames])
    prompt, base = _line([one.prompt_tokens for one in text], [one.engine for one in text])
    media = _medians([one for one in singles if one.frames])
    encoder = [one.engine - base - prompt * one.prompt_tokens for one in media]
    unit, batch = _line([one.frames for one in media], encoder)
    front = float(np.median([one.ttft - one.engine for one in text]))
    frames = [(one.ttft - one.engine - front) / one.frames for one in media]
    # What a prefill takes beyond a decode's step is time of the request, not of the engine's next step.
    return Costs(
        step=step,
        sequence_token=sequence,
        prompt_token=prompt,
        encoder_batch=batch,
        encoder_unit=unit,
        tokenize=max(0.0, front + base - step - sequence),
        media_decode=0.0,
        media_process=max(0.0, float(np.median(frames))),
    )


def slowdown(costs: Costs, config: EngineConfig, asks: Sequence[Ask], ttft: Sequence[float]) -> float:
    """How much slower an engine with plenty to do is than its single requests say: 1 on a machine that is its own.

    The factor on all costs at which the step model answers a burst as fast, by its median, as the engine did.
    """
    low, high, measured = 0.5, 16.0, float(np.median(ttft))
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        if float(np.median(predicted(asks, config, costs.scaled(middle)))) < measured:
            low = middle
        else:
            high = middle
    return low


def predicted(asks: Sequence[Ask], config: EngineConfig, costs: Costs) -> list[float]:
    """TTFT of each request in seconds, by the step model."""
    return ttfts(asks, config, costs)


def p95(values: Sequence[float]) -> float:
    return float(np.quantile(np.asarray(values), 0.95))


def interval_of_p95(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Of 95 %, by drawing blocks of 20 neighbours again and again: neighbours wait for the same queue."""
    rng, given = np.random.default_rng(seed), np.asarray(values)
    block = min(20, len(given))
    starts = rng.integers(0, len(given) - block + 1, (1000, -(-len(given) // block)))
    drawn = given[(starts[:, :, None] + np.arange(block)).reshape(1000, -1)]
    low, high = np.quantile(np.quantile(drawn, 0.95, axis=1), (0.025, 0.975))
    return float(low), float(high)


def draw(rate: float, requests: int, seed: int, frames: int, media_share: float) -> Arrivals:
    """Random arrivals of mixed requests: 60 to 600 prompt tokens, 12 output tokens on average."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, requests))
    prompt = rng.integers(60, 600, requests)
    output = np.minimum(rng.geometric(1 / 12, requests), 60)
    return Arrivals.of(at, prompt, output, np.where(rng.random(requests) < media_share, frames, 0))


def at_once(requests: int, seed: int, frames: int, media_share: float) -> Arrivals:
    """The same kind of requests, all in the first instant."""
    drawn = draw(1.0, requests, seed, frames, media_share)
    return Arrivals.of(np.arange(requests) * 1e-3, drawn.prompt_tokens, drawn.output_tokens, drawn.frames)


def asks_of(arrivals: Arrivals) -> list[Ask]:
    """As the step model takes them."""
    columns = (arrivals.at, arrivals.prompt_tokens, arrivals.output_tokens, arrivals.frames)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Ask(at, prompt, output, frames) for at, prompt, output, frames in rows]


def highest_rate(costs: Costs, config: EngineConfig, frames: int, media_share: float) -> float:
    """Requests per second at which the predicted p95 reaches the limit; found by halving."""
    low, high = 1 / 64, 512.0
    while high > 1.05 * low:
        middle = (low * high) ** 0.5
        asks = asks_of(draw(middle, 400, random.Random(7).randrange(10_000), frames, media_share))
        if p95(predicted(asks, config, costs)) <= LIMIT_SECONDS:
            low = middle
        else:
            high = middle
    return low


def media_tokens(frames: int) -> int:
    """Prompt tokens of a video."""
    return Media(frames).tokens if frames else 0


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of least relative squares, neither under 0."""
    weights = 1 / np.asarray(y)
    rows = np.stack([np.asarray(x, dtype=float), np.ones(len(x))], axis=1) * weights[:, None]
    slope, intercept = (float(value) for value in np.linalg.lstsq(rows, np.ones(len(x)), rcond=None)[0])
    if intercept < 0:
        return float(np.median(np.asarray(y) / np.asarray(x))), 0.0
    if slope < 0:
        return 0.0, float(np.median(y))
    return slope, intercept


def _medians(singles: Sequence[Single]) -> list[Single]:
    """One for each kind of request."""
    out = []
    for kind in sorted({(one.frames, round(one.prompt_tokens, -2)) for one in singles}):
        same = [one for one in singles if (one.frames, round(one.prompt_tokens, -2)) == kind]
        columns = zip(*((one.prompt_tokens, one.ttft, one.engine) for one in same), strict=True)
        tokens, ttft, engine = (float(np.median(column)) for column in columns)
        out.append(Single(round(tokens), kind[0], ttft, engine))
    return out
