"""One pool: how its engines work. How its Pods look is in pod.py."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gemma_operator.api.base import ApiModel, Name, Rule, ShortText
from gemma_operator.api.media import VIDEO_TOKENS, Encoder, Modalities
from gemma_operator.api.pod import PodSettings
from gemma_operator.api.scaling import Replicas, Scaling, Slo
from gemma_operator.api.values import Schema, canonical_quantity, quantity_value

PoolClass = Literal["interactive", "batch"]
DEFAULT_SHM = "2Gi"
ONE_ARGUMENT = Rule(
    "one-argument-per-item",
    r"!self.matches('^[\\s\\p{Z}]+--|^--[^=]*[\\s\\p{Z}]')",
    lambda argument: not re.match(r"^\s+--|^--[^=]*\s", argument),
    "there is a blank in the flag: write a flag and its value as two items, or as --flag=value, without blanks around the flag",
    source="research/practice.md A6, A7",
)


def _one_argument(argument: str) -> str:
    if not ONE_ARGUMENT.holds(argument):
        raise ValueError(ONE_ARGUMENT.message)
    return argument


Argument = Annotated[
    str,
    Field(max_length=4096),
    AfterValidator(_one_argument),
    Schema({"x-kubernetes-validations": [ONE_ARGUMENT.validation()]}),
]


class PrefixCaching(ApiModel):
    """Reuse of KV cache between requests with equal beginnings."""

    enabled: bool
    """true or false (--enable-prefix-caching)."""
    hash: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] | None = None
    """Hash of a block (--prefix-caching-hash-algo); sha256 where absent. xxhash is quicker, and tenants who don't
    trust each other should not share it."""
    salt: Annotated[int, Field(ge=0, le=4294967295)] | None = None
    """Seed of the first block's hash (PYTHONHASHSEED): engines that share a KV store need the same, others differ by it; random where absent."""


class BatchStep(ApiModel):
    """Drafted tokens up to a number of running requests."""

    requests: Annotated[int, Field(ge=1, le=4096)]
    """Up to this many requests run at once ..."""
    tokens: Annotated[int, Field(ge=0, le=16)]
    """... so many tokens are drafted; 0 is none."""


class Mtp(ApiModel):
    """Multi-token prediction (speculative decoding with Gemma 4's own drafters, --speculative-config)."""

    enabled: bool
    """true or false."""
    tokens: Annotated[int, Field(ge=1, le=16)] | None = None
    """Tokens drafted per step; the catalog's value for the model where absent."""
    assistant: ShortText | None = None
    """Drafter's id or path; the catalog's one for the model where absent."""
    by_load: Annotated[
        list[BatchStep],
        Field(max_length=8),
        Schema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["requests"]}),
    ] = []
    """Fewer drafted tokens while many requests run, where drafting costs more than it gains; above the last step none are."""


class Admission(ApiModel):
    """What is turned away with 503 at once rather than answered too late (vLLM 0.29 and newer)."""

    enabled: bool
    """true or false."""
    max_queued_tokens: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """Prompt tokens that may wait (--max-num-queued-tokens); what the engine can take within the TTFT target where absent."""
    max_queued_requests: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Requests that may wait (--max-num-queued-reqs); no limit where absent."""


class KvOffload(ApiModel):
    """Room in the Pod's memory for KV cache that the GPU has no room for."""

    size_gib: Annotated[float, Field(gt=0, le=4096)]
    """Size in GiB over all GPUs of an engine (--kv-offloading-size); it counts against the memory limit."""


class Lora(ApiModel):
    """An adapter that clients choose by its name in `model` (--lora-modules)."""

    name: Name
    """Name for clients."""
    path: ShortText
    """Adapter's hub id, or its path in the Pod."""


class Pool(PodSettings):
    """One pool: engines of one class behind one Service."""

    class_: Annotated[PoolClass | None, Field(alias="class")] = None
    """interactive (holds the SLO) or batch (throughput); the pool's own name where that is one of the two."""
    replicas: Replicas = Replicas()
    """Number of engines."""
    scaling: Scaling = Scaling()
    """How the number of engines is decided."""
    slo: Slo | None = None
    """Objective that the autoscaler holds; p95 TTFT at or under 300ms for interactive pools where absent."""
    prefix_caching: PrefixCaching | None = None
    """Reuse of KV cache between requests with equal beginnings; off for interactive, on for batch where absent."""
    mtp: Mtp | None = None
    """Multi-token prediction; off for interactive; on for batch where the catalog has a drafter for the model."""
    modalities: Modalities = Modalities()
    """Media limits per request."""
    encoder: Encoder = Encoder()
    """The vision encoder's settings."""
    loras: Annotated[
        list[Lora],
        Field(max_length=64),
        Schema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = []
    """Adapters (--enable-lora --lora-modules)."""
    lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """Largest rank among them (--max-lora-rank); 16 where absent."""
    max_model_len: Annotated[int, Field(ge=64, le=1048576)] | None = None
    """Longest prompt plus answer in tokens (--max-model-len); 32768 where absent."""
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Requests that run at once in one engine (--max-num-seqs); 64 for interactive, 256 for batch where absent."""
    max_num_batched_tokens: Annotated[int, Field(ge=64, le=262144)] | None = None
    """Tokens per engine step, and with it the encoder's budget (--max-num-batched-tokens); from the TTFT target for
    interactive, 16384 for batch where absent."""
    prefill_interval: Annotated[int, Field(ge=1, le=64)] | None = None
    """Engine steps between those that take in new requests (--prefill-schedule-interval): they wait to be batched,
    and running ones are disturbed less. For batch pools; vLLM 0.33 and newer; every step where absent."""
    admission: Admission | None = None
    """Turning away what can't be answered in time; off where absent."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=0.99)] | None = None
    """Share of a GPU's memory for the engine (--gpu-memory-utilization); vLLM's 0.92 where absent."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8"] | None = None
    """Type of the KV cache (--kv-cache-dtype); where absent, fp8 for the precisions fp8 and nvfp4 on Ada and newer or an unknown GPU, auto else."""
    kv_offload: KvOffload | None = None
    """KV cache in the Pod's memory; none where absent."""
    tensor_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that share one copy of the model (--tensor-parallel-size)."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    """Groups of GPUs that share the layers (--pipeline-parallel-size)."""
    data_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    """Copies of the model in one engine (--data-parallel-size)."""
    api_servers: Annotated[int, Field(ge=1, le=16)] | None = None
    """Processes that take requests and prepare media (--api-server-count); more for a pool whose media keep one
    busy. One where absent."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs per engine; tensorParallel x pipelineParallel x dataParallel where absent; 0 for an engine that runs on CPU."""
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Time that running requests get to finish when an engine is stopped (--shutdown-timeout); 30 for interactive, 120 for batch where absent."""
    extra_args: Annotated[list[Argument], Field(max_length=64)] = []
    """Further vLLM arguments, one list item each; they win over ours."""

    RULES = (
        *PodSettings.RULES,
        Rule(
            "gpus-match",
            "!has(self.gpus) || self.gpus == 0 || self.gpus == (has(self.tensorParallel) ? self.tensorParallel : 1) * "
            "(has(self.pipelineParallel) ? self.pipelineParallel : 1) * (has(self.dataParallel) ? self.dataParallel : 1)",
            lambda p: p.gpus in (None, 0) or p.gpus == p.parallel,
            "it must be tensorParallel x pipelineParallel x dataParallel (or 0 for an engine on CPU): more would idle, fewer won't start",
            shows=("gpus", "tensorParallel"),
            source="research/practice.md A21",
        ),
        Rule(
            "video-budget",
            f"!has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= {VIDEO_TOKENS} || "
            "(has(self.modalities) && has(self.modalities.video) && has(self.modalities.video.count) && self.modalities.video.count == 0)",
            lambda p: (p.max_num_batched_tokens or VIDEO_TOKENS) >= VIDEO_TOKENS or not p.modalities.video.count,
            f"it must be at least {VIDEO_TOKENS} while video is on (one video's tokens); "
            "raise it or set modalities.video.count to 0",
            shows=("maxNumBatchedTokens",),
            source="research/practice.md A10, research/vllm.md 1.6",
        ),
        Rule(
            "image-budget",
            "!has(self.maxNumBatchedTokens) || !has(self.modalities) || !has(self.modalities.image) || "
            "!has(self.modalities.image.softTokens) || (has(self.modalities.image.count) && self.modalities.image.count == 0) || "
            "self.maxNumBatchedTokens >= self.modalities.image.softTokens",
            lambda p: (
                p.max_num_batched_tokens is None
                or not p.modalities.image.count
                or p.max_num_batched_tokens >= (p.modalities.image.soft_tokens or 0)
            ),
            "it must be at least modalities.image.softTokens: an image is encoded in one step",
            shows=("maxNumBatchedTokens", "modalities.image.softTokens"),
            source="research/vllm.md 7 item 18",
        ),
        Rule(
            "seqs-within-budget",
            "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs) || self.maxNumBatchedTokens >= self.maxNumSeqs",
            lambda p: p.max_num_batched_tokens is None or p.max_num_batched_tokens >= (p.max_num_seqs or 0),
            "it must be at least maxNumSeqs: each running request takes a token of every step",
            shows=("maxNumBatchedTokens", "maxNumSeqs"),
            source="vLLM config/scheduler.py",
        ),
        Rule(
            "graphs-without-video",
            "!has(self.encoder) || !has(self.encoder.cudaGraphs) || !self.encoder.cudaGraphs.enabled || "
            "(has(self.modalities) && has(self.modalities.video) && has(self.modalities.video.count) && self.modalities.video.count == 0)",
            lambda p: not (p.encoder.cuda_graphs and p.encoder.cuda_graphs.enabled and p.modalities.video.count),
            "encoder.cudaGraphs gives most frames of a video the picture of another: set modalities.video.count to 0, or cudaGraphs.enabled to false",
            source="research/encoder-feasibility.md, research/vllm.md 1.4",
        ),
        Rule(
            "graphs-need-images",
            "!has(self.encoder) || !has(self.encoder.cudaGraphs) || !self.encoder.cudaGraphs.enabled || !has(self.modalities) || "
            "!has(self.modalities.image) || !has(self.modalities.image.count) || self.modalities.image.count > 0",
            lambda p: p.modalities.image.count or not (p.encoder.cuda_graphs and p.encoder.cuda_graphs.enabled),
            "encoder.cudaGraphs is on and images are off: vLLM refuses graphs of an encoder that it doesn't load",
            source="research/vllm.md 1.4",
        ),
        Rule(
            "load-steps-one-copy",
            "!has(self.mtp) || !has(self.mtp.byLoad) || self.mtp.byLoad.size() == 0 || !has(self.dataParallel) || self.dataParallel == 1",
            lambda p: not (p.mtp and p.mtp.by_load and p.data_parallel > 1),
            "mtp.byLoad has no effect with more than one copy of the model: remove it, or use replicas instead of dataParallel",
            shows=("dataParallel",),
            source="research/vllm.md 2",
        ),
        Rule(
            "shm-within-memory",
            "!has(self.sharedMemory) || !has(self.resources) || !has(self.resources.limits) || !('memory' in self.resources.limits) || "
            "quantity(string(self.resources.limits['memory']))"
            ".isGreaterThan(quantity(string(self.sharedMemory)))",
            lambda p: (
                p.shared_memory is None
                or "memory" not in p.resources.limits
                or quantity_value(p.shared_memory) < quantity_value(p.resources.limits["memory"])
            ),
            "it counts against resources.limits.memory and must be below it",
            shows=("sharedMemory",),
            source="research/gitops.md 6",
        ),
    )

    @property
    def parallel(self) -> int:
        """GPUs that the engine's parallelism needs."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def gpu_count(self) -> int:
        """GPUs of one engine."""
        return self.parallel if self.gpus is None else self.gpus

    @property
    def sheds(self) -> bool:
        """Whether its engines turn requests away (503) rather than answer them too late."""
        return self.admission is not None and self.admission.enabled

    @property
    def shm(self) -> str:
        """Size of /dev/shm, as a quantity."""
        limit = self.resources.limits.get("memory")
        if self.shared_memory or limit is None or quantity_value(limit) > 2 * quantity_value(DEFAULT_SHM):
            return self.shared_memory or DEFAULT_SHM
        return canonical_quantity(str(quantity_value(limit) // 2))
