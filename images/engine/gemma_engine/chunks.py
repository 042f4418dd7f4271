"""How many images or video frames one call of the vision encoder takes. Pure arithmetic."""

POOLED_PATCHES = 9
"""Patches that the pooler averages to one soft token: Gemma 4's pooling kernel is 3 x 3."""

FRAME_PATCHES = 70 * POOLED_PATCHES
"""A video frame has at most 70 soft tokens (vLLM's _VIDEO_MAX_SOFT_TOKENS)."""

MOST_PATCHES = 64 * FRAME_PATCHES
"""One call never takes more than 64 frames or 16 images of 280 tokens: past that a GPU is full and only memory grows."""


def item_bytes(patches: int, hidden: int, intermediate: int, itemsize: int) -> int:
    """An upper bound, in bytes, of what one more item adds to the peak of a call, its pooling included.

    The peak is in the gated MLP: three tensors of patches x intermediate beside five of patches x hidden. Then the mask, as
    bool and as the additive copy that CUDA's kernels make of it, in case a kernel spreads it to patches x patches; then the
    pooler's weights in float32. Fitted to profiler figures of towers 768 and 1152 wide, 630 to 10,080 patches per item:
    docs/engine-image.md has bound and measurement side by side. It holds for attention kernels that never store the scores.
    """
    layers = itemsize * patches * (3 * intermediate + 5 * hidden)
    mask = (1 + itemsize) * patches * patches
    pooler = 4 * patches * patches // POOLED_PATCHES
    return layers + mask + pooler


def chunk(patches: int, cost: int, free: int, total: int) -> int:
    """Items per call, at least 1: as many as half of the free memory holds, or a tenth of all (vLLM's own budget)."""
    affordable = min(free // 2, total // 10) // max(cost, 1)
    return max(1, min(affordable, MOST_PATCHES // max(patches, 1)))


def even_sizes(items: int, most: int) -> list[int]:
    """Sizes of as few chunks as possible, none above `most`, no two further apart than 1.

    A small remainder would be another matrix shape, and some GEMMs choose their kernel, hence their bits, by the shape.
    """
    count = -(-items // most)
    return [items // count + (index < items % count) for index in range(count)] if count else []
