"""Gemma 4's vision encoder over many items at once: needs PyTorch and transformers' tower, and nothing of vLLM.

An item is an image or one video frame: (P, pixels) patch pixels, (P, 2) patch positions with -1 for padding, and its count of
soft tokens, which is known on the CPU beforehand. Because it is, nothing here waits for the GPU.

The contract: the same bits as vLLM's own code at the same chunk. What keeps them was found by trying (docs/engine-image.md):
one pooling matmul per item, since a batched one gives images other bits, and the same choice between a mask and none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .chunks import POOLED_PATCHES, even_sizes

LEAN_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
"""The attention kernels that never store the scores. The MATH one takes 756 MB for an image of 280 tokens at E4B's width."""

Pool = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int]], list[torch.Tensor]]


def batched_pool(
    tower: Any, hidden: torch.Tensor, positions: torch.Tensor, padding: torch.Tensor, counts: Sequence[int]
) -> list[torch.Tensor]:
    """The (count, D) float32 soft tokens of each item: the pooler's index, weights and masks for the whole chunk at once.

    Repeats transformers' Gemma4VisionPooler except that the matmul is one per item, as stock's is. A soft token is the mean of
    a k x k square of patches, and an item's valid tokens come first, so that its count cuts the padding off.
    """
    patches = hidden.shape[1]
    length = patches // POOLED_PATCHES
    side = int(POOLED_PATCHES**0.5)
    corner = positions.clamp(min=0)
    width = corner[..., 0].max(dim=-1, keepdim=True)[0] + 1
    square = torch.div(corner, side, rounding_mode="floor")
    index = square[..., 0] + (width // side) * square[..., 1]
    weights = (index.unsqueeze(-1) == torch.arange(length, device=index.device)).float() / POOLED_PATCHES
    weights = weights.transpose(1, 2)
    values = hidden.masked_fill(padding.unsqueeze(-1), 0.0).float()
    means = torch.cat([weights[item : item + 1] @ values[item : item + 1] for item in range(len(counts))])
    scaled = means.to(hidden.dtype).float() * tower.pooler.root_hidden_size
    return [standardized(tower, scaled[item, :count]) for item, count in enumerate(counts)]


def per_item_pool(
    tower: Any, hidden: torch.Tensor, positions: torch.Tensor, padding: torch.Tensor, counts: Sequence[int]
) -> list[torch.Tensor]:
    """The same by the tower's own pooler, one item at a time: for a transformers whose pooler isn't the one repeated above."""
    pooled = []
    for item, count in enumerate(counts):
        one = slice(item, item + 1)
        tokens, _ = tower.pooler(
            hidden_states=hidden[one],
            pixel_position_ids=positions[one],
            padding_positions=padding[one],
            output_length=hidden.shape[1] // POOLED_PATCHES,
        )
        pooled.append(standardized(tower, tokens[0, :count]))
    return pooled


def standardized(tower: Any, tokens: torch.Tensor) -> torch.Tensor:
    if getattr(tower.config, "standardize", False):
        return (tokens - tower.std_bias) * tower.std_scale
    return tokens


def encode_chunk(
    tower: Any,
    pixels: torch.Tensor,
    positions: torch.Tensor,
    counts: Sequence[int],
    dtype: torch.dtype,
    pool: Pool = batched_pool,
    lean: bool = True,
) -> list[torch.Tensor]:
    """Soft tokens of the items of one chunk, by one call of the encoder.

    Without `lean`, attention is left to transformers: a dense mask, any kernel, and one wait for the GPU.
    """
    padding = (positions == -1).all(dim=-1)
    embedded = tower.patch_embedder(pixels, positions, padding).to(dtype)
    padded = any(count * POOLED_PATCHES != pixels.shape[1] for count in counts)
    # A mask of four dimensions, or none, goes past transformers' mask builder, which would ask the GPU whether there is padding.
    lean_mask = ~padding[:, None, None, :] if padded else None
    mask = lean_mask if lean else ~padding
    with lean_attention(embedded.device) if lean else contextlib.nullcontext():
        hidden = tower.encoder(
            inputs_embeds=embedded, attention_mask=mask, pixel_position_ids=positions
        ).last_hidden_state
    return pool(tower, hidden, positions, padding, counts)


def encode(
    run: Callable[[slice], list[torch.Tensor]], items: int, most: int, on_split: Callable[[], None]
) -> list[torch.Tensor]:
    """The results of `run` over even chunks of at most `most` items; a chunk that runs out of memory is halved.

    Raises torch.OutOfMemoryError when a single item doesn't fit.
    """
    results = []
    start = 0
    for size in even_sizes(items, most):
        results += _halving(run, start, start + size, on_split)
        start += size
    return results


def _halving(
    run: Callable[[slice], list[torch.Tensor]], start: int, stop: int, on_split: Callable[[], None]
) -> list[torch.Tensor]:
    try:
        return run(slice(start, stop))
    except torch.OutOfMemoryError:
        if stop - start == 1:
            raise
    # Outside the handler: the exception would keep the failed attempt's tensors alive.
    on_split()
    middle = (start + stop) // 2
    return _halving(run, start, middle, on_split) + _halving(run, middle, stop, on_split)


@contextlib.contextmanager
def lean_attention(device: torch.device) -> Iterator[None]:
    """Forbids CUDA the kernel that stores the scores. CPUs have none that does."""
    if device.type == "cuda" and has_lean_kernel(device):
        with sdpa_kernel(LEAN_KERNELS):
            yield
    else:
        yield


_lean: dict[torch.device, bool] = {}


def has_lean_kernel(device: torch.device) -> bool:
    """Whether masked attention runs without storing the scores; tried once per device, on a tiny input."""
    if device.type != "cuda":
        return bool(device.type == "cpu")
    if device not in _lean:
        query = torch.zeros(1, 1, 16, 64, device=device, dtype=torch.bfloat16)
        mask = torch.ones(1, 1, 1, 16, device=device, dtype=torch.bool)
        try:
            with sdpa_kernel(LEAN_KERNELS):
                scaled_dot_product_attention(query, query, query, attn_mask=mask)
            _lean[device] = True
        except RuntimeError:
            _lean[device] = False
    return _lean[device]
