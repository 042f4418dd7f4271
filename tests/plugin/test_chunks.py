"""How many items a call of the encoder takes."""

from __future__ import annotations

import pytest
from gemma_engine.chunks import FRAME_PATCHES, MOST_PATCHES, chunk, even_sizes, item_bytes
from hypothesis import given
from hypothesis import strategies as st

GIB = 1 << 30
E4B = (768, 3072, 2)


@pytest.mark.parametrize(
    ("patches", "most_megabytes"), [(630, 20), (2520, 90), (5040, 220), (10080, 640)], ids=["70", "280", "560", "1120"]
)
def test_an_item_costs_a_small_part_of_what_vllm_reckons(patches: int, most_megabytes: float) -> None:
    """vLLM: patches x 4 x 10,240 positions x 8 bytes."""
    cost = item_bytes(patches, *E4B)
    assert cost < most_megabytes * 1e6
    assert cost * 5 < patches * 4 * 10_240 * 8


@pytest.mark.parametrize(
    ("patches", "free", "total", "items"),
    [
        pytest.param(630, 1.9, 24, 57, id="frames on 24 GB, where vLLM takes 4"),
        pytest.param(2520, 1.9, 24, 11, id="images on 24 GB, where vLLM takes 1"),
        pytest.param(630, 6.4, 80, 64, id="frames on 80 GB: the cap"),
        pytest.param(2520, 6.4, 80, 16, id="images on 80 GB: the cap"),
        pytest.param(2520, 0, 24, 1, id="no memory: one all the same"),
    ],
)
def test_what_a_card_holds(patches: int, free: float, total: float, items: int) -> None:
    assert chunk(patches, item_bytes(patches, *E4B), int(free * GIB), int(total * GIB)) == items


@given(st.integers(1, 20_000), st.integers(0, 200 * GIB), st.integers(0, 200 * GIB))
def test_a_chunk_keeps_to_the_budget_and_the_cap(patches: int, free: int, total: int) -> None:
    cost = item_bytes(patches, *E4B)
    items = chunk(patches, cost, free, total)
    assert items >= 1
    if items > 1:
        assert items * cost <= min(free // 2, total // 10)
        assert items * patches <= MOST_PATCHES


@given(st.integers(0, 400), st.integers(1, 64))
def test_chunks_are_few_and_even(items: int, most: int) -> None:
    sizes = even_sizes(items, most)
    assert sum(sizes) == items
    assert len(sizes) == -(-items // most)
    assert not sizes or (max(sizes) <= most and max(sizes) - min(sizes) <= 1)


def test_a_frame_is_630_patches() -> None:
    assert FRAME_PATCHES == 630
