"""Golden media through our encoder and vLLM's own, compared bit for bit, in the worker that is going to serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .chunks import FRAME_PATCHES, POOLED_PATCHES

SIDE = int(POOLED_PATCHES**0.5)


class Media(dict[str, Any]):
    """Media as the model's methods read them: tensors by key, and the counts of soft tokens."""

    counts: Sequence[Any]


def grid(columns: int, rows: int, patches: int, device: torch.device) -> torch.Tensor:
    """(patches, 2): the (x, y) of columns x rows soft tokens' patches, line by line, then -1."""
    wide, high = columns * SIDE, rows * SIDE
    index = torch.arange(wide * high, device=device)
    places = torch.stack([index % wide, index // wide], dim=-1)
    return torch.nn.functional.pad(places, (0, 0, 0, patches - wide * high), value=-1)


def pattern(items: int, patches: int, pixels: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Pixel values between 0 and 1 that no two patches share, the same on every machine up to rounding."""
    steps = torch.arange(items * patches * pixels, device=device, dtype=torch.float32)
    return (0.5 + 0.5 * torch.sin(steps * 0.37)).view(items, patches, pixels).to(dtype)


def golden_images(
    shapes: Sequence[tuple[int, int]], soft_tokens: int, pixels: int, device: torch.device, dtype: torch.dtype
) -> Media:
    """Images of so many columns and rows of soft tokens."""
    patches = soft_tokens * POOLED_PATCHES
    media = Media(
        pixel_values=pattern(len(shapes), patches, pixels, device, dtype),
        pixel_position_ids=torch.stack([grid(*shape, patches, device) for shape in shapes]),
    )
    media.counts = [columns * rows for columns, rows in shapes]
    return media


def golden_video(columns: int, rows: int, frames: int, pixels: int, device: torch.device, dtype: torch.dtype) -> Media:
    media = Media(
        pixel_values_videos=pattern(frames, FRAME_PATCHES, pixels, device, dtype),
        pixel_position_ids_videos=torch.stack([grid(columns, rows, FRAME_PATCHES, device)] * frames),
        video_frame_counts=[frames],
    )
    media.counts = [[columns * rows] * frames]
    return media


def self_check(model: Any) -> list[str]:
    """What differs between our encoder and vLLM's, in words; empty when every bit is the same."""
    device = model.vision_tower.patch_embedder.position_embedding_table.device
    config = model.config.vision_config
    kind = (3 * config.patch_size**2, device, model.model_dtype)
    most = model.image_soft_tokens()
    # One image with much padding and one that fills its budget; frames of 16:9, as most videos have, and full ones: without
    # any padding there is no mask, and attention may take another kernel.
    images = golden_images([(most // 4, 3), (most // 10, 10)], most, *kind)
    found = differences("image", model.encode_images(images), model.stock_images(images))
    for columns, rows in ((11, 6), (10, 7)):
        video = golden_video(columns, rows, 2, *kind)
        found += differences("video", model.encode_videos(video), model.stock_videos(video))
    return found


def differences(kind: str, ours: Sequence[torch.Tensor], stocks: Sequence[torch.Tensor]) -> list[str]:
    found = []
    for index, (our, stock) in enumerate(zip(ours, stocks, strict=True)):
        if our.shape != stock.shape:
            found.append(f"{kind} {index} has shape {tuple(our.shape)}, vLLM's has {tuple(stock.shape)}")
        elif not torch.isfinite(our).all():
            found.append(f"{kind} {index} has values that are not finite")
        elif not torch.equal(our, stock):
            share = (our != stock).float().mean().item()
            most = (our.float() - stock.float()).abs().max().item()
            found.append(f"{kind} {index} differs in {share:.2%} of its values, by up to {most:.3g}")
    return found
