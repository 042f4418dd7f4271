"""Our vision encoder inside a real vLLM model, on the CPU: the same bits as vLLM's own, one call, no wait."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gemma_engine import model as plugin_model
from gemma_engine import processor, shared
from gemma_engine.chunks import even_sizes
from gemma_engine.selfcheck import Golden

from tests.plugin import harness
from tests.plugin.conftest import HOME
from tests.plugin.harness import GIB, Memory, Real, Work

pytestmark = pytest.mark.engine

STATES = shared.STATES


@pytest.fixture(scope="module")
def real() -> Real:
    return Real(str(HOME / "models" / "gemma-4-tiny"), "bfloat16")


@pytest.fixture(scope="module")
def images(real: Real) -> list[Any]:
    return [real.image(*size, seed=seed) for seed, size in enumerate([*harness.SIZES, harness.FULL])]


@pytest.fixture(scope="module")
def videos(real: Real) -> list[Any]:
    return [real.video(frames, 640, 360, seed=100 + frames) for frames in (1, 2, 6)]


@pytest.fixture(autouse=True)
def serving(real: Real) -> Iterator[None]:
    """A model that has been checked and profiled, on a card with much memory."""
    harness.MEMORY.free, harness.MEMORY.total = 60 * GIB, 80 * GIB
    real.model.record["state"] = STATES.index("batched")
    real.model.way = plugin_model.WAYS["batched"]
    real.model._profiling = False
    with real.serving():
        yield


def test_the_start_up_check_finds_the_batched_way_bit_equal(real: Real) -> None:
    real.model.record["state"] = STATES.index("unchecked")
    before = {field: real.model.record[field] for field in shared.COUNTS}
    real.model._check()
    assert STATES[real.model.record["state"]] == "batched"
    assert before == {field: real.model.record[field] for field in shared.COUNTS}, "it is nobody's request"


@pytest.mark.parametrize("seed", range(8))
def test_random_steps_have_the_bits_of_vllm_at_the_same_chunks(
    real: Real, images: list[Any], videos: list[Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(seed)
    items = harness.random_items(random_, images, videos, most_images=2)
    most = random_.choice([1, 2, 3, 64])
    monkeypatch.setattr(real.model, "_most_items", lambda *_: most)
    for modality, batch in real.batches(items):
        rows = batch["pixel_values" if modality == "image" else "pixel_values_videos"]
        ours = real.ours(batch)
        stocks = real.stocks_in_chunks(modality, batch, even_sizes(len(rows), most))
        assert [our.shape for our in ours] == [stock.shape for stock in stocks]
        assert all(torch.equal(our, stock) for our, stock in zip(ours, stocks, strict=True))
    assert real.model.record["fallbacks"] == 0


def test_a_step_without_media_gives_nothing(real: Real) -> None:
    assert list(real.model.embed_multimodal()) == []


@pytest.mark.parametrize(
    "card", [Memory(int(1.9 * GIB), 24 * GIB), Memory(int(6.4 * GIB), 80 * GIB)], ids=["24GB", "80GB"]
)
@pytest.mark.parametrize("kind", ["images", "videos"])
def test_one_call_and_no_wait_where_vllm_has_many(
    real: Real, images: list[Any], videos: list[Any], card: Memory, kind: str
) -> None:
    ((modality, batch),) = real.batches(images[:3] if kind == "images" else videos)
    harness.MEMORY.free, harness.MEMORY.total = card.free, card.total
    ours, stocks = Work(), Work()
    with harness.counted(real.model, ours):
        real.ours(batch)
    with harness.counted(real.model, stocks):
        real.stocks(modality, batch)
    assert (ours.encoder_calls, ours.waits) == (1, 0)
    items = len(images[:3]) if kind == "images" else 1 + 2 + 6
    assert stocks.pooler_calls == items
    assert stocks.waits == stocks.encoder_calls + stocks.pooler_calls
    assert ours.operations < stocks.operations


def test_profiling_takes_no_more_at_once_than_vllm_would(real: Real, images: list[Any]) -> None:
    device = torch.device("cpu")
    harness.MEMORY.free, harness.MEMORY.total = int(1.9 * GIB), 24 * GIB
    serving = real.model._most_items(2520, device)
    real.model._profiling = True
    assert real.model._most_items(2520, device) == 1 < serving


def test_counts_calls_and_media(real: Real, images: list[Any], videos: list[Any]) -> None:
    before = {field: real.model.record[field] for field in shared.COUNTS}
    for _, batch in real.batches([*images[:2], videos[2]]):
        real.ours(batch)
    after = {field: real.model.record[field] - before[field] for field in shared.COUNTS}
    assert after == {"encoder_calls": 2, "encoder_images": 2, "encoder_frames": 6, "fallbacks": 0, "oom_splits": 0}


def test_a_chunk_that_runs_out_of_memory_is_halved(
    real: Real, images: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, batch),) = real.batches(images[:3])
    sizes = []
    encode_chunk = plugin_model.encode_chunk

    def small(tower: Any, pixels: torch.Tensor, *rest: Any) -> Any:
        sizes.append(len(pixels))
        if len(pixels) > 1:
            raise torch.OutOfMemoryError("too large")
        return encode_chunk(tower, pixels, *rest)

    monkeypatch.setattr(plugin_model, "encode_chunk", small)
    before = real.model.record["oom_splits"]
    assert len(real.ours(batch)) == 3
    assert sizes == [3, 1, 2, 1, 1]
    assert real.model.record["oom_splits"] - before == 2


@pytest.mark.parametrize("surprise", ["an exception", "no counts", "a wrong number of counts"])
def test_a_surprise_ends_in_vllms_own_encoder(
    real: Real, videos: list[Any], surprise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((modality, batch),) = real.batches(videos)
    expected = real.stocks(modality, batch)
    if surprise == "an exception":
        monkeypatch.setattr(plugin_model, "encode_chunk", lambda *_: 1 / 0)
    elif surprise == "no counts":
        batch = {key: value for key, value in batch.items() if key != "video_num_soft_tokens"}
    else:
        batch = {**batch, "video_num_soft_tokens": batch["video_num_soft_tokens"][:2]}
    before = real.model.record["fallbacks"]
    found = real.ours(batch)
    assert all(torch.equal(our, stock) for our, stock in zip(found, expected, strict=True))
    assert real.model.record["fallbacks"] == before + 1


def test_a_request_cannot_say_how_its_media_are_processed_where_vllm_would_let_it(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends an engine that takes it: patches of one pixel, of which the tower can make nothing."""
    picture = real.processor.info.parse_mm_data({"image": [harness.Image.new("RGB", (64, 48))]})
    prompt = real.processor.info.get_tokenizer().encode("<|image|>", add_special_tokens=False)

    def processed(**options: int) -> Any:
        return real.processor(prompt, picture, hf_processor_mm_kwargs=options)["mm_kwargs"]["image"][0]

    ((_, batch),) = real.batches([("image", processed(patch_size=1))])
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        real.ours(batch)
    monkeypatch.setattr(processor, "untrusted", lambda: True)
    context = type(real.processor.info.ctx)
    call, called = context.call_hf_processor, []
    monkeypatch.setattr(context, "call_hf_processor", lambda *a, **more: called.append(1) or call(*a, **more))
    for size in (1, 512):
        with pytest.raises(ValueError, match="mm_processor_kwargs: how media are read is not for a request to say"):
            processed(patch_size=size)
        assert not called, "it is refused before anything is computed: patches of 512 pixels take GiB"
    monkeypatch.setattr(real.config.model_config.multimodal_config, "mm_processor_kwargs", {"max_soft_tokens": 280})
    assert processed(), "what the server is told to do is no request's word"
    assert called


def wrong_pool(*arguments: Any) -> list[torch.Tensor]:
    """Off by one rounding in one value: what a batched matmul does to an image."""
    pooled = plugin_model.batched_pool(*arguments)
    pooled[0][0, 0] += 0.01
    return pooled


WRONG = plugin_model.Way(wrong_pool, lean=True)


def another_order_pool(tower: Any, hidden: Any, positions: Any, padding: Any, counts: Any) -> list[torch.Tensor]:
    """The same sums, added up from the other end where several images are pooled: some CPUs and GPUs do so in a batched matmul."""
    if len(hidden) == 1 or hidden.shape[1] != 2520:
        return plugin_model.batched_pool(tower, hidden, positions, padding, counts)
    turned = [tensor.flip(1) for tensor in (hidden, positions, padding)]
    return plugin_model.batched_pool(tower, *turned, counts)


def mask_left_out(tower: Any, hidden: Any, positions: Any, padding: Any, counts: Any) -> list[torch.Tensor]:
    """Padding that is pooled like any patch: its states are not zero, and its place is that of the first patch."""
    return plugin_model.batched_pool(tower, hidden, positions, torch.zeros_like(padding), counts)


@pytest.mark.parametrize("pool", [another_order_pool, mask_left_out])
def test_the_check_finds_out_what_a_pooler_can_do_wrong(real: Real, pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden(real.model)
    assert golden.differences(real.model) == []
    real.model.way = plugin_model.Way(pool, lean=True)
    assert golden.differences(real.model)


@pytest.mark.parametrize("shapes", ["image", "frames"])
def test_the_check_finds_out_an_encoder_without_its_mask(
    real: Real, shapes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding that attends changes the image, and the frames of the chunk that has some; the full frame has no mask."""
    golden = Golden(real.model)
    encode_chunk = plugin_model.encode_chunk
    size = {"image": 2520, "frames": 630}[shapes]

    def unmasked(tower: Any, pixels: torch.Tensor, positions: torch.Tensor, counts: Any, *rest: Any) -> Any:
        if pixels.shape[1] == size:
            counts = [pixels.shape[1] // 9] * len(counts)  # as though there were no padding
        found = encode_chunk(tower, pixels, positions, counts, *rest)
        return [tokens[:kept] for tokens, kept in zip(found, real_counts(positions), strict=True)]

    monkeypatch.setattr(plugin_model, "encode_chunk", unmasked)
    found = golden.differences(real.model)
    assert found
    kind = {"image": "image", "frames": "video"}[shapes]
    assert {line.partition(" ")[0].removesuffix("'s") for line in found} == {kind}


@pytest.mark.parametrize("kind", ["image", "video"])
def test_the_check_finds_out_one_value_of_one_patch_that_is_rounded_otherwise(
    real: Real, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means of nine patches, rounded in their turn, would mostly hide it."""
    golden = Golden(real.model)
    patches = {"image": 2520, "video": 630}[kind]

    def rounded(_: Any, __: Any, states: torch.Tensor) -> torch.Tensor | None:
        if states.shape[1] != patches:
            return None
        other = states.clone()
        other.view(torch.int16)[-1, 7, 5] ^= 1
        return other

    hook = real.model.vision_tower.encoder.layers[0].register_forward_hook(rounded)
    try:
        found = golden.differences(real.model)
    finally:
        hook.remove()
    assert any(line.startswith(f"{kind}'s state") for line in found)
    assert golden.differences(real.model) == []


def test_the_check_takes_one_layer_and_gives_the_others_back(real: Real) -> None:
    layers = real.model.vision_tower.encoder.layers
    calls: list[int] = []
    hooks = [layer.register_forward_hook(lambda *_, at=at: calls.append(at)) for at, layer in enumerate(layers)]
    try:
        real.model._check()
    finally:
        for hook in hooks:
            hook.remove()
    assert set(calls) == {0}
    assert real.model.vision_tower.encoder.layers is layers
    assert len(layers) == real.model.config.vision_config.num_hidden_layers > 1


def real_counts(positions: torch.Tensor) -> list[int]:
    return [int((item[:, 0] >= 0).sum()) // 9 for item in positions]


def test_the_check_crosses_a_chunk_with_mixed_shapes_and_one_without_a_mask(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever memory there is: a card that is nearly full would take one item a call, which gives other bits."""
    harness.MEMORY.free, harness.MEMORY.total = GIB // 100, 24 * GIB
    golden, chunks = Golden(real.model), []
    encode_chunk = plugin_model.encode_chunk

    def seen(tower: Any, pixels: torch.Tensor, positions: torch.Tensor, counts: Any, *rest: Any) -> Any:
        chunks.append((pixels.shape[1], *counts))
        return encode_chunk(tower, pixels, positions, counts, *rest)

    monkeypatch.setattr(plugin_model, "encode_chunk", seen)
    assert golden.differences(real.model) == []
    assert chunks == [(2520, 210), (630, 66, 70), (630, 70)]


@pytest.mark.parametrize(
    ("wrong", "state"),
    [(["batched"], "per_item"), (["batched", "per_item"], "plain"), (["batched", "per_item", "plain"], "failed")],
)
def test_the_check_leaves_a_way_whose_bits_differ(
    real: Real, videos: list[Any], wrong: list[str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((modality, batch),) = real.batches(videos[:1])
    monkeypatch.setattr(plugin_model, "WAYS", {**plugin_model.WAYS, **dict.fromkeys(wrong, WRONG)})
    monkeypatch.setattr(real.model, "image_soft_tokens", lambda: 70)  # small golden images: only the choice is tested
    real.model.record["state"] = STATES.index("unchecked")
    found = real.ours(batch)
    assert STATES[real.model.record["state"]] == state
    assert torch.equal(found[0], real.stocks(modality, batch)[0])
