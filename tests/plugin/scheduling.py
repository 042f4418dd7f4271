"""vLLM's own scheduler without an engine behind it: what its steps hold while a burst of media meets a running answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gemma_engine import plugin
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
CHAT = "chat"
VIDEO_TOKENS = 378
"""Soft tokens of a video of 6 frames at 4:3."""


@dataclass(frozen=True)
class Step:
    """Videos that the step encodes, their soft tokens, and whether the running answer gets a token in it."""

    videos: int
    soft_tokens: int
    answers: bool


def scheduler(model: str, token_budget: int, limit: dict[str, Any] | None) -> Scheduler:
    """vLLM's scheduler for a model, with --ec-manager-config `limit`."""
    plugin.register()  # vLLM keeps the class that it finds first for a model
    more = {"ec_manager_config": limit} if limit else {}
    config = EngineArgs(
        model=model, dtype="bfloat16", enforce_eager=True, max_model_len=4096, enable_prefix_caching=False,
        max_num_batched_tokens=token_budget, max_num_seqs=64, **more,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = 4096
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    cache = KVCacheConfig(num_blocks=4096, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def request(name: str, videos: int) -> Request:
    """A prompt of 20 tokens of text before and after each of its videos."""
    places = [20 + number * (VIDEO_TOKENS + 20) for number in range(videos)]
    features = [
        MultiModalFeatureSpec(
            None, "video", f"{name}-{place}", PlaceholderRange(place, VIDEO_TOKENS), f"{name}-{place}"
        )
        for place in places
    ]
    prompt = [5] * (20 + videos * (VIDEO_TOKENS + 20))
    return Request(name, prompt, SamplingParams(max_tokens=1000, ignore_eos=True), None, mm_features=features)


def steps_of_a_burst(of: Scheduler, requests: int, videos_each: int = 1) -> list[Step]:
    """The steps from the burst on until all of it is encoded."""
    of.add_request(request(CHAT, 0))
    step(of)
    for number in range(requests):
        of.add_request(request(f"burst-{number}", videos_each))
    found: list[Step] = []
    while sum(one.videos for one in found) < requests * videos_each:
        found.append(step(of))
        assert len(found) < 100, "the burst waits for ever"
    return found


def step(of: Scheduler) -> Step:
    """One step, whose requests get a token where their prompt is through, as a model would give it."""
    plan = of.schedule()
    names = list(plan.num_scheduled_tokens)
    whole = [of.requests[name].num_computed_tokens >= of.requests[name].num_tokens for name in names]
    tokens = [[7] if is_whole else [] for is_whole in whole]
    of.update_from_output(plan, ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, tokens))
    videos = sum(map(len, plan.scheduled_encoder_inputs.values()))
    return Step(videos, videos * VIDEO_TOKENS, CHAT in names)
