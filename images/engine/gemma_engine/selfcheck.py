"""Golden media through our encoder and vLLM's own, compared bit for bit, in the worker that is going to serve.

As little as shows each way in which the two could part, for an image costs more than all else: attention grows with the square
of its patches. One image has the real size and padding. Of three frames, two shapes share a chunk with a mask, and a full frame
is alone in the next, without one. Two images at once are only pooled, which is where their number gives other bits: a pooler
that multiplies them as one batch is found out by it.

They go through one layer of the encoder, by both. All layers have the same shapes, and so the same kernels: where one gives the
bits of the other, so does the next, which gets them. And what it gives is compared before it is pooled, too: means and rounding
hide small differences, of which a second layer would only make larger ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .chunks import FRAME_PATCHES, POOLED_PATCHES
from .encoder import standardized

Encode = Callable[[Any], list[torch.Tensor]]

SIDE = int(POOLED_PATCHES**0.5)

CHUNK = 2
FRAMES = ((11, 6), (10, 7), (10, 7))
"""Columns and rows of soft tokens: 16:9, as most videos have, and full. In chunks of two the last frame is alone, unpadded."""


LAYERS = 1
"""Of E4B's 16."""


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


def golden_image(
    shape: tuple[int, int], soft_tokens: int, pixels: int, device: torch.device, dtype: torch.dtype
) -> Media:
    """An image of so many columns and rows of soft tokens."""
    patches = soft_tokens * POOLED_PATCHES
    media = Media(
        pixel_values=pattern(1, patches, pixels, device, dtype),
        pixel_position_ids=grid(*shape, patches, device).unsqueeze(0),
    )
    media.counts = [shape[0] * shape[1]]
    return media


def golden_video(shapes: Sequence[tuple[int, int]], pixels: int, device: torch.device, dtype: torch.dtype) -> Media:
    """A video with frames of so many columns and rows of soft tokens."""
    media = Media(
        pixel_values_videos=pattern(len(shapes), FRAME_PATCHES, pixels, device, dtype),
        pixel_position_ids_videos=torch.stack([grid(*shape, FRAME_PATCHES, device) for shape in shapes]),
        video_frame_counts=[len(shapes)],
    )
    media.counts = [[columns * rows for columns, rows in shapes]]
    return media


class Golden:
    """Golden media, and what vLLM's own code makes of them."""

    def __init__(self, model: Any) -> None:
        self.tower = model.vision_tower
        device = self.tower.patch_embedder.position_embedding_table.device
        most = model.image_soft_tokens()
        padded, full = (most // 4, 3), (most // 10, 10)
        kind = (3 * model.config.vision_config.patch_size**2, device, model.model_dtype)
        self.image = golden_image(padded, most, *kind)
        self.video = golden_video(FRAMES, *kind)
        image, self.stocks = self.encoded(model, model.stock_images, model.stock_videos)
        # Two other images, as far as the pooler sees, with values of the size that it gets.
        self.states = torch.cat([image, image.flip(1)])
        self.positions = torch.stack([grid(*shape, most * POOLED_PATCHES, device) for shape in (padded, full)])
        self.counts = [columns * rows for columns, rows in (padded, full)]
        self.stocks["pooled image"] = stock_pool(self.tower, self.states, self.positions)

    def differences(self, model: Any) -> list[str]:
        """What differs between our encoder and vLLM's, in words; empty when every bit is the same."""
        _, ours = self.encoded(model, model.encode_images, model.encode_videos)
        ours["pooled image"] = model.way.pool(
            self.tower, self.states, self.positions, padding(self.positions), self.counts
        )
        return [found for kind, stocks in self.stocks.items() for found in differences(kind, ours[kind], stocks)]

    def encoded(self, model: Any, images: Encode, videos: Encode) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]]]:
        """The image's states before it is pooled, and by kind: states of real patches, and embeddings."""
        found = {}
        with model.chunks_of(CHUNK), first_layers(self.tower), encoded_by(self.tower) as states:
            found["image"] = images(self.image)
            image = states.pop()
            found["video"] = videos(self.video)
        found["image's state"] = [image[~padding(self.image["pixel_position_ids"])]]
        found["video's state"] = [torch.cat(states)[~padding(self.video["pixel_position_ids_videos"])]]
        return image, found


def padding(positions: torch.Tensor) -> torch.Tensor:
    return (positions == -1).all(dim=-1)


@contextlib.contextmanager
def first_layers(tower: Any) -> Iterator[None]:
    """The tower's encoder has no more than `LAYERS` meanwhile."""
    layers = tower.encoder.layers
    tower.encoder.layers = layers[:LAYERS]
    try:
        yield
    finally:
        tower.encoder.layers = layers


@contextlib.contextmanager
def encoded_by(tower: Any) -> Iterator[list[torch.Tensor]]:
    """What the tower's encoder gives meanwhile, call by call, before it is pooled."""
    states: list[torch.Tensor] = []
    hook = tower.encoder.register_forward_hook(lambda *call: states.append(call[-1].last_hidden_state))
    try:
        yield states
    finally:
        hook.remove()


def stock_pool(tower: Any, states: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
    """As vLLM pools images: one at a time, and the pooler's own mask cuts the padding off."""
    pooled = []
    for item in range(len(states)):
        one = slice(item, item + 1)
        tokens, valid = tower.pooler(
            hidden_states=states[one],
            pixel_position_ids=positions[one],
            padding_positions=padding(positions[one]),
            output_length=states.shape[1] // POOLED_PATCHES,
        )
        pooled.append(standardized(tower, tokens[valid]))
    return pooled


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
