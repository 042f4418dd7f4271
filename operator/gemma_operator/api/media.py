"""What requests may carry beside text, and how it is encoded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gemma_operator.api.base import ApiModel, Rule

# vLLM 0.33 gemma4_mm.py: a video costs 32 frames x (70 soft tokens + 2 markers + 6 timestamp tokens).
VIDEO_TOKENS = 2496
MAX_VIDEO_FRAMES = 32


class ImageLimit(ApiModel):
    """Images per request."""

    count: Annotated[int, Field(ge=0, le=256)] = 4
    """Most images in one request; 0 switches images off (--limit-mm-per-prompt)."""
    soft_tokens: Literal[70, 140, 280, 560, 1120] | None = None
    """Most tokens that one image becomes: detail against cost (--mm-processor-kwargs max_soft_tokens); 280 where absent."""


class VideoLimit(ApiModel):
    """Videos per request."""

    count: Annotated[int, Field(ge=0, le=16)] = 1
    """Most videos in one request; 0 switches video off (--limit-mm-per-prompt)."""
    frames: Annotated[int, Field(ge=1, le=MAX_VIDEO_FRAMES)] | None = None
    """Frames sampled from a video file (--media-io-kwargs num_frames); 32 where absent, which is the most that Gemma 4 takes."""
    fps: Annotated[float, Field(gt=0, le=60)] | None = None
    """Frames per second sampled from a video file, up to `frames` of them (--media-io-kwargs fps)."""


class AudioLimit(ApiModel):
    """Audio clips per request."""

    count: Annotated[int, Field(ge=0, le=16)] = 0
    """Most clips in one request; 0 switches audio off (--limit-mm-per-prompt)."""


class Modalities(ApiModel):
    """What requests may carry beside text. All counts 0 makes a text-only pool, which frees the encoders' memory (--language-model-only)."""

    image: ImageLimit = ImageLimit()
    """Images; 4 per request where absent."""
    video: VideoLimit = VideoLimit()
    """Videos; 1 per request where absent."""
    audio: AudioLimit = AudioLimit()
    """Audio; off where absent."""

    RULES = (
        Rule(
            "audio-needs-video",
            "!(has(self.audio) && has(self.audio.count) && self.audio.count > 0 && "
            "has(self.video) && has(self.video.count) && self.video.count == 0)",
            lambda m: not (m.audio.count and not m.video.count),
            "audio without video makes vLLM size its memory by audio alone, and images then run out of it: "
            "set audio.count to 0, or leave video on",
            shows=("audio.count", "video.count"),
            source="research/vllm.md 1.7",
        ),
    )

    @property
    def text_only(self) -> bool:
        """True where no encoder is needed."""
        return not (self.image.count or self.video.count or self.audio.count)


class CudaGraphs(ApiModel):
    """CUDA graphs of the vision encoder: less launch overhead, but wrong frames for video, which must be off."""

    enabled: bool
    """true or false (--compilation-config cudagraph_mm_encoder)."""
    token_budgets: Annotated[list[Annotated[int, Field(ge=70, le=65536)]], Field(min_length=1, max_length=16)] = [
        280, 560, 1120, 2240,
    ]  # fmt: skip
    """Sizes in tokens for which a graph is captured: each costs start-up time and memory (encoder_cudagraph_token_budgets)."""
    max_items: Annotated[int, Field(ge=1, le=256)] = 8
    """Most images in one graph (encoder_cudagraph_max_vision_items_per_batch)."""


class Encoder(ApiModel):
    """The vision encoder's settings."""

    cuda_graphs: CudaGraphs | None = None
    """CUDA graphs of the encoder; off where absent."""
    tokens_per_step: Annotated[int, Field(ge=70, le=65536)] | None = None
    """Most soft tokens that are encoded in one step, so that a burst of media is spread over several; one item always passes
    (--ec-manager-config; needs engine.plugin and vLLM 0.28). As many as maxNumBatchedTokens where absent."""
    processor_cache_gb: Annotated[float, Field(ge=0, le=256)] | None = None
    """Memory for preprocessed media in GiB, per API server (--mm-processor-cache-gb); 0 where absent and prefix
    caching is off, as unique media never hit it, or admission is on; else 4."""
