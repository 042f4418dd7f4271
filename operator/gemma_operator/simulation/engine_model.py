"""What an engine of the simulator costs and takes in: the step model's, or the prototype's that research/bound.md used."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_operator.engine.view import DEFAULTS
from gemma_operator.simulation.engine_kernel import Limits, Prices
from gemma_operator.simulation.step_model import VIDEO_SOFT_TOKENS, Costs, EngineConfig, Media

IMAGE_SOFT_TOKENS = 280


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One kind of engine."""

    prices: Prices
    limits: Limits
    threads: int = 8
    """That decode frames beside the GPU."""


def from_step_model(
    config: EngineConfig | None = None, costs: Costs | None = None, queued_tokens: int = 0
) -> EngineModel:
    """The engine of `step_model`; `queued_tokens` is --max-num-queued-tokens (0: nothing is refused)."""
    config, costs = config or EngineConfig(), costs or Costs()
    batched = config.batched_encoder
    return EngineModel(
        Prices(
            step=costs.step,
            sequence=costs.sequence_token,
            prompt_token=costs.prompt_token,
            prefill=0.0,
            media_step=costs.encoder_batch if batched else 0.0,
            media_item=0.0,
            media_frame=0.0 if batched else costs.encoder_pass,
            media_unit=costs.encoder_unit if batched else 0.0,
            tokenize=costs.tokenize,
            decode_frame=costs.media_decode,
            process_frame=costs.media_process,
        ),
        Limits(
            tokens=config.max_num_batched_tokens,
            media_tokens=config.encoder_budget,
            sequences=config.max_num_seqs,
            kv_tokens=config.kv_cache_tokens,
            queued_tokens=queued_tokens,
        ),
    )


PROTOTYPE = EngineModel(
    Prices(
        step=4.5e-3,
        sequence=0.1e-3,
        prompt_token=0.0,
        prefill=20e-3,
        media_step=0.0,
        media_item=55e-3,
        media_frame=0.0,
        media_unit=0.0,
        tokenize=0.0,
        decode_frame=0.0,
        process_frame=0.0,
    ),
    Limits(tokens=1_000_000_000, media_tokens=1_000_000_000, prefills=16, items=8),
)
"""research/autoscaling.md section 6 and bound.md section 2: at most 16 prefills and 8 videos per step."""


def media_of(frames: int) -> Media | None:
    """The item of a request: one frame is an image, more are a video, none is text alone."""
    if not frames:
        return None
    return Media(frames, IMAGE_SOFT_TOKENS if frames == 1 else VIDEO_SOFT_TOKENS)


INTERACTIVE = from_step_model(
    EngineConfig(
        max_num_batched_tokens=DEFAULTS["interactive"].max_num_batched_tokens,
        max_num_seqs=DEFAULTS["interactive"].max_num_seqs,
    )
)
"""An engine of an interactive pool with the operator's defaults."""
