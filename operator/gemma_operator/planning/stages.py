"""A load test as the planner sees it: stages of one rate each, measured with one mix of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import Rates
from gemma_operator.simulation.step_model import VIDEO_SOFT_TOKENS

TOKENS_PER_FRAME = VIDEO_SOFT_TOKENS + 8
"""Of a video frame in a prompt: embeddings and what stands around them (vLLM)."""


@dataclass(frozen=True, slots=True)
class Mix:
    """What one request asks for, on average."""

    prompt_tokens: float = 500.0
    """All of the prompt, with those of media."""
    output_tokens: float = 200.0
    media_share: float = 0.0
    """Images and videos per request."""
    units: float = 0.0
    """Encoder work per image or video: its frames; an image is 4."""

    def rates(self, requests: float = 1.0) -> Rates:
        """So many requests per second of this mix."""
        return Rates(
            requests=requests,
            prompt_tokens=requests * self.prompt_tokens,
            generated_tokens=requests * self.output_tokens,
            media_items=requests * self.media_share,
            media_units=requests * self.media_share * self.units,
        )

    def like(self, other: Mix) -> bool:
        """Whether both are the same kind of load, within what a random sample differs."""
        return (
            abs(self.media_share - other.media_share) <= 0.03
            and _near(self.units, other.units, 0.1)
            and _near(self.prompt_tokens, other.prompt_tokens, 0.15)
            and _near(self.output_tokens, other.output_tokens, 0.25)
        )

    def __str__(self) -> str:
        text = f"{self.prompt_tokens:.0f} prompt and {self.output_tokens:.0f} output tokens"
        return (
            f"{text}, {self.media_share:.0%} with media of {self.units:.3g} frames"
            if self.media_share
            else f"{text}, text only"
        )


def mix_of(
    prompt_tokens: float | None, output_tokens: float | None, videos: float, frames: float, images: float
) -> Mix:
    """A mix from what a tool measured per request; a prompt shorter than its media doesn't count them, so they are added."""
    items = videos + images
    units = (videos * frames + images * 4) / items if items else 0.0
    media_tokens = items * units * TOKENS_PER_FRAME
    prompt = 500.0 if prompt_tokens is None else prompt_tokens
    if prompt < media_tokens:
        prompt += media_tokens
    return Mix(prompt, 200.0 if output_tokens is None else output_tokens, min(1.0, items), units)


@dataclass(frozen=True, slots=True)
class Process:
    """How requests arrived."""

    name: str
    """As people call it: constant, poisson, gamma, concurrent, unknown."""
    burstiness: float | None
    """Coefficient of variation of the gaps: 0 is constant, 1 is Poisson. None where clients waited for answers, or it isn't known."""


CONSTANT = Process("constant", 0.0)
POISSON = Process("poisson", 1.0)
CLOSED = Process("concurrent", None)
UNKNOWN = Process("unknown", None)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of load at one rate."""

    requested: float
    """Requests per second that were to be sent."""
    achieved: float
    """Requests per second that were sent."""
    requests: int
    """Requests that came to an end, well or badly."""
    within: float
    """Of those, the ones within the SLO; failures are none of them."""
    ttft: float | None
    """Seconds at the SLO's percentile of the answered requests; None where none was answered."""
    mix: Mix = Mix()
    process: Process = UNKNOWN
    incomplete: int = 0
    """Requests that were cut off at the end of the stage."""
    delay: float | None = None
    """Seconds by which the client was late with its requests, 95th percentile."""
    failed: int = 0
    flaws: tuple[str, ...] = ()
    """Why it says nothing, by the tool itself."""
    model: str | None = None
    source: str = ""
    """The file it is from."""
    folder: str = ""
    """The folder of a sweep with a file per rate; files given one by one belong together."""


def share_within(percentiles: Mapping[float, float], slo: Slo) -> float:
    """Share of observations at or under the SLO, linear between the percentiles known (0 to 1 -> seconds).

    Raises:
        ValueError: no percentile as high as the SLO's is known.
    """
    known = sorted(percentiles.items())
    wanted = slo.percentile / 100
    if not known or known[-1][0] < wanted - 1e-9:
        raise ValueError(f"it has no percentile of TTFT as high as the SLO's {slo.percentile:g}th")
    below, edge = 0.0, 0.0
    for share, seconds in known:
        if seconds > slo.seconds:
            span = seconds - edge
            part = (slo.seconds - edge) / span if span > 0 and below > 0 else 0.0
            return below + (share - below) * part
        below, edge = share, seconds
    return below if known[-1][0] < 1 else 1.0


def at_percentile(percentiles: Mapping[float, float], slo: Slo) -> float:
    """Seconds at the SLO's percentile, linear between those known. Raises ValueError as `share_within` does."""
    wanted = slo.percentile / 100
    below, edge = 0.0, 0.0
    for share, seconds in sorted(percentiles.items()):
        if share >= wanted - 1e-9:
            span = share - below
            return seconds if span <= 0 or below <= 0 else edge + (seconds - edge) * (wanted - below) / span
        below, edge = share, seconds
    raise ValueError(f"it has no percentile of TTFT as high as the SLO's {slo.percentile:g}th")


def percentiles_of(values: Sequence[float]) -> dict[float, float]:
    """Every measured value as a percentile."""
    ordered = sorted(values)
    return {(number + 1) / len(ordered): value for number, value in enumerate(ordered)}


def _near(one: float, other: float, share: float) -> bool:
    return abs(one - other) <= share * max(one, other, 1.0)
