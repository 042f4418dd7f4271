"""What the catalog says of a model: its checkpoints, sizes and limits, and what it can't know."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.api.model import Model
from gemma_operator.engine.catalog import GB, MODELS, Attention, checkpoint_of, lookup, precision_of, weight_bytes


def model(**fields: Any) -> Model:
    return Model.model_validate({"id": "google/gemma-4-E4B-it", **fields})


@pytest.mark.parametrize(
    ("model_id", "size"),
    [
        ("google/gemma-4-E2B-it", "E2B"),
        ("google/gemma-4-e4b-it", "E4B"),
        ("google/gemma-4-E4B", "E4B"),
        ("google/gemma-4-12B-it", "12B"),
        ("google/gemma-4-26B-A4B-it", "26B-A4B"),
        ("RedHatAI/gemma-4-31B-it-FP8-dynamic", "31B"),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "31B"),
        ("/models/gemma-4-E4B-it", "E4B"),
        ("google/gemma-3-27b-it", None),
        ("google/gemma-4", None),
        ("my/own-gemma-4-E4B", None),
        ("gemma-4-E4B-it/", None),
        ("/models", None),
    ],
)
def test_a_model_is_found_by_the_last_part_of_its_id(model_id: str, size: str | None) -> None:
    found = lookup(model_id)
    assert (found.size if found else None) == size


def test_no_size_is_the_beginning_of_another() -> None:
    for entry in MODELS:
        assert lookup(f"google/gemma-4-{entry.size}-it") is entry


def test_every_checkpoint_is_found_as_a_model_of_its_own_size_and_precision() -> None:
    for entry in MODELS:
        for precision, checkpoint in entry.checkpoints.items():
            assert lookup(checkpoint.id) is entry, checkpoint.id
            assert precision_of(model(id=checkpoint.id)) == precision, checkpoint.id
            assert checkpoint_of(model(id=checkpoint.id)) is checkpoint


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({}, "bf16"),
        ({"id": "my/own"}, "bf16"),
        ({"precision": "w4a16"}, "w4a16"),
        ({"precision": "bf16", "checkpoint": "x/y-FP8"}, "bf16"),
        ({"checkpoint": "x/y-FP8"}, "fp8"),
        ({"id": "nvidia/Gemma-4-31B-IT-NVFP4"}, "nvfp4"),
        ({"id": "x/own-nvfp4-fp8"}, "nvfp4"),
    ],
)
def test_the_precision_is_the_one_asked_for_else_what_the_name_says(fields: Any, precision: str) -> None:
    assert precision_of(model(**fields)) == precision


@pytest.mark.parametrize(
    ("fields", "checkpoint"),
    [
        ({}, "google/gemma-4-E4B-it"),
        ({"precision": "bf16"}, "google/gemma-4-E4B-it"),
        ({"precision": "fp8"}, "RedHatAI/gemma-4-E4B-it-FP8-dynamic"),
        ({"precision": "w4a16"}, "google/gemma-4-E4B-it-qat-w4a16-ct"),
        ({"precision": "fp8", "checkpoint": "x/y"}, "x/y"),
        ({"id": "my/own"}, "my/own"),
        ({"id": "my/gemma-4-E4B-it-own", "precision": "bf16"}, "my/gemma-4-E4B-it-own"),
        ({"id": "my/gemma-4-E4B-it-FP8", "precision": "fp8"}, "my/gemma-4-E4B-it-FP8"),
        ({"id": "google/gemma-4-E4B", "precision": "bf16"}, "google/gemma-4-E4B"),
        ({"id": "my/own", "precision": "fp8", "source": {"pvc": {"claimName": "a"}}}, "my/own"),
    ],
)
def test_the_checkpoint_is_the_users_else_that_of_the_precision_else_the_id(fields: Any, checkpoint: str) -> None:
    assert checkpoint_of(model(**fields)).id == checkpoint


@pytest.mark.parametrize(
    "fields",
    [{"precision": "nvfp4"}, {"id": "my/own", "precision": "fp8"}, {"id": "my/gemma-4-E4B-it-own", "precision": "fp8"}],
)
def test_a_precision_that_the_catalog_lacks_is_an_error_and_has_no_size(fields: Any) -> None:
    with pytest.raises(KeyError):
        checkpoint_of(model(**fields))
    assert weight_bytes(model(**fields)) is None


def test_sizes_of_weights_are_known_or_estimated_and_shrink_with_the_precision() -> None:
    for entry in MODELS:
        by_precision = {
            p: weight_bytes(model(id=f"google/gemma-4-{entry.size}-it", precision=p)) for p in entry.checkpoints
        }
        sizes = [by_precision[p] for p in ("bf16", "fp8") if p in by_precision]
        assert all(size and size > GB for size in by_precision.values()), entry.size
        assert sizes == sorted(sizes, key=lambda size: -(size or 0)), entry.size
    assert weight_bytes(model(id="my/own")) is None


# Sums of safetensors files: research/vllm.md section 3.
@pytest.mark.parametrize(
    ("size", "least_gb", "most_gb"),
    [("E2B", 9, 11), ("E4B", 14, 17), ("12B", 22, 25), ("26B-A4B", 50, 53), ("31B", 57, 64)],
)
def test_bf16_weights_are_as_large_as_the_files(size: str, least_gb: int, most_gb: int) -> None:
    assert least_gb * GB <= (weight_bytes(model(id=f"google/gemma-4-{size}-it")) or 0) <= most_gb * GB


def test_every_model_has_what_the_checks_need() -> None:
    for entry in MODELS:
        assert entry.assistant == f"google/gemma-4-{entry.size}-it-assistant"
        assert 1 <= entry.mtp_tokens <= 16
        assert entry.context_tokens in (131072, 262144)
        assert "bf16" in entry.checkpoints


def test_kv_bytes_grow_by_the_layers_without_a_window() -> None:
    attention = Attention(window_tokens=100, sliding=(3, 2, 10), full=(1, 2, 20))
    growing, windowed = 2 * 1 * 2 * 20 * 2, 2 * 3 * 2 * 10 * 2
    assert attention.bytes_per_token() == growing
    assert attention.bytes_per_token(1) == growing // 2
    assert attention.bytes_per_sequence(50) == 50 * (growing + windowed)
    assert attention.bytes_per_sequence(1000) == 1000 * growing + 100 * windowed
