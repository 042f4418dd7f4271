"""Encoder CUDA graphs with vLLM's own manager; only capture and replay are replaced by running what they would have recorded.

Shows where every row of the output comes from. Whether a GPU can capture it is not shown here.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gemma_engine.graphs import PlacedGraphs
from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Stock
from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata, EncoderCudaGraphManager

from tests.plugin.conftest import HOME
from tests.plugin.harness import Real
from tools.images.recipes import CACHE

pytestmark = pytest.mark.engine

METHODS = (
    "get_encoder_cudagraph_item_specs",
    "select_encoder_cudagraph_items",
    "prepare_encoder_cudagraph_replay_buffers",
    "prepare_encoder_cudagraph_capture_inputs",
    "encoder_cudagraph_forward",
)


class Manager(EncoderCudaGraphManager):
    def _capture_budget_graph(self, token_budget: int, path: str = "default", axis_keys: Any = ()) -> None:
        inputs = self.model.prepare_encoder_cudagraph_capture_inputs(
            token_budget, self.max_batch_size, self.max_frames_per_batch, self.device, self.dtype, path, axis_keys
        ).values
        output = torch.empty(token_budget, self.config.out_hidden_size)

        def replay() -> None:
            output.copy_(self.model.encoder_cudagraph_forward({**inputs}, path=path))

        self._get_graph_set(path)[(token_budget, axis_keys) if axis_keys else token_budget] = BudgetGraphMetadata(
            token_budget=token_budget,
            max_batch_size=self.max_batch_size,
            max_frames_per_batch=self.max_frames_per_batch,
            graph=SimpleNamespace(replay=replay),
            input_buffers=inputs,
            output_buffer=output,
            axis_keys=axis_keys,
        )


@pytest.fixture(scope="module")
def real() -> Real:
    graphs = {
        "cudagraph_mm_encoder": True,
        "encoder_cudagraph_token_budgets": [280],
        "encoder_cudagraph_max_vision_items_per_batch": 2,
        "encoder_cudagraph_max_frames_per_batch": 4,
    }
    return Real(str(HOME / "models" / "gemma-4-tiny"), "float32", compilation_config=graphs)


@pytest.fixture(autouse=True)
def serving(real: Real) -> Iterator[None]:
    real.model.record["state"] = 1
    with real.serving():
        yield


def manager(real: Real) -> Manager:
    made = Manager(real.config, torch.device("cpu"), torch.float32, real.model)
    made.capture(graph_pool=object())
    return made


def right_rows(real: Real, made: Manager, items: list[Any]) -> float:
    """The share of the prompt's media tokens that get their own embedding, as vLLM's runner hands the rows out."""
    ((_, batch),) = real.batches(items)
    own = real.ours(batch)
    found = made.execute(batch)
    right = total = 0
    for expected, rows in zip(own, found, strict=True):
        given = rows[: len(expected)]
        right += int(torch.isclose(given, expected, atol=1e-4, rtol=1e-3).all(dim=-1).sum())
        total += len(expected)
    return right / total


NEWEST = CACHE / "wheels" / "0.33.0" / "vllm" / "model_executor" / "models" / "gemma4_mm.py"


def newest_class() -> Any:
    """vLLM 0.33's class with our methods before it; its graph manager is the installed one's."""
    spec = importlib.util.spec_from_file_location("vllm.model_executor.models.gemma4_mm_newest", NEWEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return type("Newest", (PlacedGraphs, module.Gemma4ForConditionalGeneration), {"image_soft_tokens": lambda _: 280})


@pytest.mark.skipif(not NEWEST.exists(), reason="vLLM 0.33's sources are not in the cache")
def test_the_same_with_the_class_of_0_33(real: Real, video_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = real.ours
    installed, newest = type(real.model), newest_class()

    def own(batch: Any) -> Any:
        monkeypatch.setattr(real.model, "__class__", installed)
        found = ours(batch)
        monkeypatch.setattr(real.model, "__class__", newest)
        return found

    monkeypatch.setattr(real, "ours", own)
    monkeypatch.setattr(real.model, "__class__", newest)
    assert right_rows(real, manager(real), [real.video(4, 640, 360, seed=6)]) == 1.0


@pytest.fixture
def video_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMA_ENGINE_VIDEO_GRAPHS", "on")


@pytest.mark.parametrize("frames", [1, 4])
def test_every_frame_of_a_video_gets_its_own_rows(real: Real, frames: int, video_graphs: None) -> None:
    assert right_rows(real, manager(real), [real.video(frames, 640, 360, seed=frames)]) == 1.0


def test_two_videos_in_one_graph(real: Real, video_graphs: None) -> None:
    assert right_rows(real, manager(real), [real.video(1, 640, 360, seed=1), real.video(3, 480, 640, seed=5)]) == 1.0


def test_vllms_own_methods_misplace_all_but_the_first_frame(
    real: Real, video_graphs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault itself: when this fails, vLLM has mended it, and gemma_engine/graphs.py can go."""
    for name in METHODS:
        monkeypatch.setattr(real.model, name, getattr(Stock, name).__get__(real.model))
    monkeypatch.delattr(real.model.config.vision_config, "num_soft_tokens", raising=False)
    assert right_rows(real, manager(real), [real.video(4, 640, 360, seed=6)]) == pytest.approx(1 / 4, abs=0.02)


def test_by_default_videos_take_no_graph(real: Real) -> None:
    made = manager(real)
    assert made.supports_modality("image")
    assert not made.supports_modality("video")
    assert right_rows(real, made, [real.image(640, 480, seed=3)]) == 1.0
