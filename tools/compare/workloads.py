"""The workloads of the comparison: public traces at the scales of research/bound.md, and made ones like those kept aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.logs import read_csv, read_jsonl
from gemma_operator.workload.servegen import read_servegen
from gemma_operator.workload.synthetic import arrivals_at

LOG_START = 240.0
"""The conversation log's own start makes an artificial ramp (research/autoscaling.md section 4)."""
SLICE = 3.5 * 3600
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests over `seconds`."""

    arrivals: Arrivals
    seconds: float

    def plain(self, seed: int) -> Workload:
        """The same arrivals as in research/bound.md: 500 text tokens each, a tenth with a video of 6 frames."""
        a = self.arrivals
        same = Arrivals.of(a.at, 500, a.output_tokens).with_media(0.1, seed)
        return Workload(same, self.seconds)


def conversation(traces: Path, seed: int, scale: float = 8) -> Workload:
    """Azure's conversation log of 2023, as copies moved by up to 20 s."""
    log = read_csv(traces / "AzureLLMInferenceTrace_conv.csv").arrivals.crop(LOG_START)
    return Workload(log.scaled(scale, seed), log.seconds)


def code(traces: Path, seed: int, scale: float = 10) -> Workload:
    """Azure's code log of 2023: a quiet base with bursts of some ten seconds on it."""
    log = read_csv(traces / "AzureLLMInferenceTrace_code.csv").arrivals
    return Workload(log.scaled(scale, seed), log.seconds)


def multimodal_day(traces: Path, seed: int, scale: float = 5) -> Workload:
    """ServeGen's day of a multimodal service."""
    day = read_servegen(traces / "servegen-mm-image", seed)
    return Workload(day.scaled(scale, seed, jitter=5.0), DAY)


def multimodal_slice(traces: Path, seed: int, scale: float = 5) -> Workload:
    """Its first three and a half hours."""
    day = multimodal_day(traces, seed, scale)
    return Workload(day.arrivals.crop(0, SLICE), SLICE)


def mooncake(traces: Path, seed: int, scale: float = 3) -> Workload:
    """Mooncake's synthetic log; its prompts are cut to what a small model is asked for."""
    log = read_jsonl(traces / "mooncake_synthetic_trace.jsonl").arrivals
    short = Arrivals.of(log.at, np.minimum(log.prompt_tokens, 4000) // 4, log.output_tokens)
    return Workload(short.scaled(scale, seed), log.seconds)


def bursts(traces: Path, seed: int, scale: float = 10) -> Workload:
    """Made after Azure's code log, on which nothing was tuned: a quiet base, and bursts of some ten seconds on it.

    Its published figures (research/autoscaling.md section 4, bound.md section 1): 2.6 requests/s over 57 minutes, 33/s
    within the busiest 10 s, 10/s in the busiest minute.
    """
    rng = np.random.default_rng([seed, 3])
    seconds = 3456
    rate = np.full(seconds, 1.0)
    start = 0.0
    while (start := start + rng.exponential(50)) < seconds:
        rate[int(start) : int(start + 3 + rng.exponential(8))] += min(32.0, rng.gamma(1.5, 5))
    counts = rng.poisson(rate)
    at = np.repeat(np.arange(seconds), counts) + rng.random(counts.sum())
    prompt = np.minimum(rng.lognormal(np.log(1500), 0.8, len(at)), 6000).astype(np.int32)
    log = Arrivals.of(at, prompt, 1 + rng.geometric(1 / 28, len(at)))
    return Workload(log.scaled(scale, seed), float(seconds))


def steps(traces: Path, seed: int) -> Workload:
    """Three times the load for twenty minutes, after and before forty minutes without."""
    seconds = 6000.0
    at = arrivals_at(lambda now: np.where((now >= 2400) & (now < 3600), 66.0, 22.0), seconds, seed=seed)
    return Workload(Arrivals.of(at, 500, np.random.default_rng([seed, 4]).geometric(1 / 100, len(at))), seconds)


ALL: dict[str, Callable[[Path, int], Workload]] = {
    "mm day": multimodal_day,
    "mm 3.5 h": multimodal_slice,
    "conversation": conversation,
    "code": code,
    "bursts": bursts,
    "step": steps,
    "mooncake": mooncake,
}
