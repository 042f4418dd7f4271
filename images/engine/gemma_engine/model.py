"""vLLM's Gemma 4 with the vision encoder of encoder.py: one call and no wait for the GPU per step, with stock's bits.

Whatever goes wrong in our path is logged and counted, and vLLM's own path answers; so does it where ours doesn't apply (LoRA in
the towers, counts missing because another process runs without this plugin).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.model_executor.models import gemma4_mm as stock
from vllm.multimodal import MULTIMODAL_REGISTRY

from . import shared
from .chunks import chunk, item_bytes
from .encoder import Pool, batched_pool, encode, encode_chunk, has_lean_kernel, per_item_pool
from .graphs import PlacedGraphs
from .processor import IMAGE_COUNTS, CountingProcessor
from .selfcheck import Golden

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is logged below its own name

LOOKUP_EMBEDDING = (5, 16)
"""The transformers versions from here on look position embeddings up. Before, they multiplied by one-hot rows of 10,240 columns,
which is what vLLM reckons with; 5.16.1 to 5.20 have been read."""


class Way(NamedTuple):
    """How a chunk is encoded."""

    pool: Pool
    lean: bool


WAYS = {
    "batched": Way(batched_pool, lean=True),
    "per_item": Way(per_item_pool, lean=True),
    "plain": Way(batched_pool, lean=False),
}
"""From the best on. Plain keeps vLLM's chunks and one wait per call: for a GPU whose kernel for vLLM's dense mask is another one
than that for ours, and so gives other bits."""


@MULTIMODAL_REGISTRY.register_processor(
    CountingProcessor, info=stock.Gemma4ProcessingInfo, dummy_inputs=stock.Gemma4DummyInputsBuilder
)
class Gemma4ForConditionalGeneration(PlacedGraphs, stock.Gemma4ForConditionalGeneration):
    """Named as vLLM's class is, since vLLM looks models up by this name in several places."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.record = shared.own_record()
        self.way = WAYS["batched"]
        self._first_rank = get_tensor_model_parallel_rank() == 0
        self._profiling = True
        self._chunk = 0
        logger.info("The vision encoder is gemma_engine's; it is checked against vLLM's before its first use.")

    def _parse_and_validate_image_input(self, **kwargs: object) -> Any:
        parsed = super()._parse_and_validate_image_input(**kwargs)
        return with_counts(parsed, kwargs.get(IMAGE_COUNTS))

    def _parse_and_validate_video_input(self, **kwargs: object) -> Any:
        parsed = super()._parse_and_validate_video_input(**kwargs)
        return with_counts(parsed, kwargs.get("video_num_soft_tokens"))

    def _process_image_input(self, image_input: Any) -> list[torch.Tensor]:
        return self._ours_or_stock(self.encode_images, super()._process_image_input, image_input)

    def _process_video_input(self, video_input: Any) -> list[torch.Tensor]:
        return self._ours_or_stock(self.encode_videos, super()._process_video_input, video_input)

    def stock_images(self, image_input: Any) -> list[torch.Tensor]:
        """vLLM's own path: what the self-check compares with."""
        return super()._process_image_input(image_input)  # type: ignore[no-any-return]

    def stock_videos(self, video_input: Any) -> list[torch.Tensor]:
        return super()._process_video_input(video_input)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def chunks_of(self, most: int) -> Iterator[None]:
        """Both paths take chunks of so many items meanwhile, whatever memory there is: bits are compared at the same chunks."""
        self._chunk = most
        try:
            yield
        finally:
            self._chunk = 0

    def _encoder_chunk(self, patches: int, free: int, total: int, positions: int) -> int:
        """vLLM's own answer, for its own path; a static method there, and called through the instance."""
        if self._chunk:
            return self._chunk
        size: int = stock.Gemma4ForConditionalGeneration._encoder_chunk(patches, free, total, positions)
        return size

    def embed_input_ids(self, input_ids: Any, multimodal_embeddings: Any = None, *, is_multimodal: Any = None) -> Any:
        # Start-up profiling encodes media but never merges them into a prompt: the first merge ends it.
        self._profiling = False
        return super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)

    def _ours_or_stock(
        self,
        ours: Callable[[Any], list[torch.Tensor]],
        stocks: Callable[[Any], list[torch.Tensor]],
        media: Any,
    ) -> list[torch.Tensor]:
        if getattr(self, "_enable_mm_lora", False):
            return stocks(media)
        try:
            if shared.STATES[self.record["state"]] == "unchecked":
                self._check()
            if shared.STATES[self.record["state"]] == "failed":
                return stocks(media)
            return ours(media)
        except Exception:
            logger.exception("gemma_engine's vision encoder failed; vLLM's own encodes this batch.")
            self._count("fallbacks")
        return stocks(media)

    def _check(self) -> None:
        """Chooses the first way that gives stock's bits on the golden media; where none does, stock serves and is unready."""
        started = time.perf_counter()
        # Should the check raise: it is not repeated.
        self.record["state"] = shared.STATES.index("failed")
        golden = Golden(self)
        for name, way in WAYS.items():
            self.way = way
            differences = golden.differences(self)
            if not differences:
                self.record["state"] = shared.STATES.index(name)
                seconds = time.perf_counter() - started
                logger.info("The vision encoder, %s, gives vLLM's bits; checked in %.1f s.", name, seconds)
                return
            logger.warning("The vision encoder, %s, differs from vLLM's: %s", name, "; ".join(differences))
        logger.error("vLLM's own vision encoder serves, and the readiness probe fails because of that.")

    def image_soft_tokens(self) -> int:
        """Soft tokens that an image of this server is padded to: max_soft_tokens where it is set."""
        given = getattr(self.multimodal_config, "mm_processor_kwargs", None) or {}
        nested = given.get("images_kwargs") or {}
        most = given.get("max_soft_tokens") or nested.get("max_soft_tokens")
        return int(most or self.config.vision_config.default_output_length)

    def encode_images(self, media: Any) -> list[torch.Tensor]:
        pixels, positions = media["pixel_values"], media["pixel_position_ids"]
        counts = [int(count) for count in media.counts]
        buckets: dict[int, list[int]] = {}
        for index, item in enumerate(pixels):
            buckets.setdefault(item.shape[0], []).append(index)
        tokens: list[torch.Tensor] = [None] * len(counts)
        for members in buckets.values():
            whole = len(buckets) == 1 and isinstance(pixels, torch.Tensor)
            bucket_pixels = pixels if whole else torch.stack([pixels[index] for index in members])
            bucket_positions = positions if whole else torch.stack([positions[index] for index in members])
            encoded = self._encode(bucket_pixels, bucket_positions, [counts[index] for index in members])
            for index, item in zip(members, encoded, strict=True):
                tokens[index] = item
        embeddings = self._project(tokens, counts)
        self._count("encoder_images", len(counts))
        return embeddings

    def encode_videos(self, media: Any) -> list[torch.Tensor]:
        per_video = [[int(count) for count in video] for video in media.counts]
        counts = [count for video in per_video for count in video]
        tokens = self._encode(media["pixel_values_videos"], media["pixel_position_ids_videos"], counts)
        embeddings = self._project(tokens, [sum(video) for video in per_video])
        self._count("encoder_frames", len(counts))
        return embeddings

    def _encode(self, pixels: torch.Tensor, positions: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
        if not len(pixels) == len(positions) == len(counts):
            raise ValueError(f"{len(pixels)} items with {len(positions)} positions and {len(counts)} counts")

        def run(part: slice) -> list[torch.Tensor]:
            self._count("encoder_calls")
            return encode_chunk(
                self.vision_tower, pixels[part], positions[part], counts[part], self.model_dtype, *self.way
            )

        most = self._most_items(pixels.shape[1], pixels.device)
        return encode(run, len(counts), most, functools.partial(self._count, "oom_splits"))

    def _most_items(self, patches: int, device: torch.device) -> int:
        free, total = torch.accelerator.get_memory_info()
        config = self.config.vision_config
        stocks = self._encoder_chunk(patches, free, total, config.position_embedding_size)
        if self._chunk or not self.way.lean or not has_lean_kernel(device) or transformers_version() < LOOKUP_EMBEDDING:
            return stocks
        cost = item_bytes(patches, config.hidden_size, config.intermediate_size, self.model_dtype.itemsize)
        ours = chunk(patches, cost, free, total)
        # What profiling uses is taken from the KV cache: never more there than vLLM's own code would use.
        return min(ours, stocks) if self._profiling else ours

    def _project(self, tokens: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        flat = torch.cat(list(tokens)).to(self.model_dtype)
        projected = self.embed_vision(inputs_embeds=flat.unsqueeze(0)).squeeze(0)
        return list(projected.split(list(sizes)))

    def _count(self, field: str, value: int = 1) -> None:
        # Neither start-up profiling nor the self-check is anybody's request.
        if self._first_rank and not self._profiling and not self._chunk:
            self.record.add(field, value)


@functools.cache
def transformers_version() -> tuple[int, int]:
    major, minor = importlib.metadata.version("transformers").split(".")[:2]
    return int(major), int(minor)


def with_counts(parsed: Any, counts: Any) -> Any:
    if parsed is not None:
        parsed.counts = counts
    return parsed
