"""Encoder CUDA graphs that put every video frame where it belongs.

vLLM 0.27 to 0.33 take 70 rows per frame out of a replayed graph, though a frame has 60 to 66 soft tokens in the prompt, and the
rows are handed out by the running count: from the second frame on they are wrong, without an error. Until 0.32 the index into
the graph's output also uses the batch's row width where the graph has its captured one.

No GPU has confirmed the correction yet. So by default videos take the path without graphs; GEMMA_ENGINE_VIDEO_GRAPHS=on
changes that, for 0.32 and 0.33. Images are right as they are, at the width that is captured.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from .chunks import POOLED_PATCHES

SWITCH = "GEMMA_ENGINE_VIDEO_GRAPHS"
COUNTS = "video_num_soft_tokens"

ROW = 4096
"""An index into a graph's output is row * ROW + column until the graph's width is known; no item has so many soft tokens."""


def video_graphs() -> bool:
    return os.environ.get(SWITCH, "off") == "on"


class PlacedGraphs:
    """Overrides for vLLM's class, which comes after this one in the order of resolution."""

    def get_encoder_cudagraph_config(self) -> Any:
        config = super().get_encoder_cudagraph_config()  # type: ignore[misc]
        if video_graphs():
            return config
        return replace(config, modalities=["image"], max_frames_per_video=1)

    def get_encoder_cudagraph_item_specs(self, mm_kwargs: dict[str, Any]) -> Any:
        specs = super().get_encoder_cudagraph_item_specs(mm_kwargs)  # type: ignore[misc]
        if COUNTS not in mm_kwargs:
            return specs
        # A frame fills a whole row of the graph, however few of its columns are read.
        return [
            replace(spec, output_tokens=sum(counts), path_output_tokens={"default": spec.output_tokens})
            for spec, counts in zip(specs, videos(mm_kwargs), strict=True)
        ]

    def select_encoder_cudagraph_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        selected: dict[str, Any] = super().select_encoder_cudagraph_items(mm_kwargs, indices)  # type: ignore[misc]
        if COUNTS in mm_kwargs:
            counts = videos(mm_kwargs)
            selected[COUNTS] = [counts[index] for index in indices]
        return selected

    def prepare_encoder_cudagraph_capture_inputs(self, *args: Any, **kwargs: Any) -> Any:
        # 0.32 reads the width from here and takes 280 where there is nothing, whatever max_soft_tokens is.
        base: Any = self
        base.config.vision_config.num_soft_tokens = base.image_soft_tokens()
        return super().prepare_encoder_cudagraph_capture_inputs(*args, **kwargs)  # type: ignore[misc]

    def prepare_encoder_cudagraph_replay_buffers(self, mm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # vLLM's own version fills whole rows, so it must not see the true counts.
        uncounted = {key: value for key, value in mm_kwargs.items() if key != COUNTS}
        buffers = super().prepare_encoder_cudagraph_replay_buffers(uncounted, *args, **kwargs)  # type: ignore[misc]
        if COUNTS in mm_kwargs:
            counts = [count for video in videos(mm_kwargs) for count in video]
        else:
            counts = [spec.output_tokens for spec in self.get_encoder_cudagraph_item_specs(mm_kwargs)]
        device = buffers.values["pixel_values"].device
        places = [torch.arange(row * ROW, row * ROW + count, device=device) for row, count in enumerate(counts)]
        buffers.values["gather_indices"] = torch.cat(places)
        return buffers

    def encoder_cudagraph_forward(self, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        width = inputs["pixel_values"].shape[1] // POOLED_PATCHES
        places = inputs["gather_indices"]
        flat = torch.div(places, ROW, rounding_mode="floor") * width + places % ROW
        output: torch.Tensor = super().encoder_cudagraph_forward(  # type: ignore[misc]
            {**inputs, "gather_indices": flat}, *args, **kwargs
        )
        return output


def videos(mm_kwargs: dict[str, Any]) -> list[list[int]]:
    return [[int(count) for count in video] for video in mm_kwargs[COUNTS]]
