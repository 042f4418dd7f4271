"""One pool as its engine sees it: what the user said, what the class's defaults are, and what is known of model, GPU and version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemma_operator.api.media import VIDEO_TOKENS
from gemma_operator.api.model import Precision
from gemma_operator.api.pool import Pool, PoolClass
from gemma_operator.api.scaling import Slo
from gemma_operator.api.serving import Spec
from gemma_operator.engine.accelerators import Accelerator, Architecture, selected
from gemma_operator.engine.catalog import CatalogModel, Checkpoint, checkpoint_of, lookup, precision_of, weight_bytes
from gemma_operator.engine.versions import Version

MODELS_FOLDER = "/models"
# vLLM's default where neither the pool nor the catalog says more (research/practice.md section 4: the usual value).
MAX_MODEL_LEN = 32768
# A middle way of research/vllm.md 1.7 (2048 to 4096 for interactive pools) where the GPU isn't known.
INTERACTIVE_BUDGET = 4096
# What waits in a batch pool without an objective may wait this long.
BATCH_WAIT_SECONDS = 60.0
# Share of a GPU's peak that prefill reaches: our assumption, on the careful side of published measurements.
PREFILL_EFFICIENCY = 0.4


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """Defaults of a class: requests at once, tokens per step, seconds to drain (sources: design.md, seeds/001, seeds/002)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    drain_seconds: int
    prefix_caching: bool
    mtp: bool
    slo: Slo | None


DEFAULTS: Mapping[PoolClass, ClassDefaults] = {
    "interactive": ClassDefaults(64, INTERACTIVE_BUDGET, 30, prefix_caching=False, mtp=False, slo=Slo()),
    "batch": ClassDefaults(256, 16384, 120, prefix_caching=True, mtp=True, slo=None),
}


def pool_slo(spec: Spec, pool: str) -> Slo | None:
    """Objective of a pool: its own, else its class's; None for a batch pool without one."""
    return spec.pools[pool].slo or DEFAULTS[spec.class_of(pool)].slo


def drain_seconds(spec: Spec, pool: str) -> int:
    """Seconds that running requests get when an engine of the pool is stopped."""
    own = spec.pools[pool].drain_seconds
    return DEFAULTS[spec.class_of(pool)].drain_seconds if own is None else own


def served_name(spec: Spec) -> str:
    """Name that clients put into `model`."""
    return spec.model.served_name or spec.model.id


@dataclass(frozen=True)
class PoolView:
    """Everything that a flag of one pool's engine may depend on."""

    spec: Spec
    name: str
    version: Version
    custom_command: bool = False
    """True where the user starts the engine by a command of their own, whose flags we don't know."""
    plugin: bool = False
    """True where the image has our plugin, gemma_engine."""

    @property
    def path(self) -> str:
        """Where the pool stands in the spec."""
        return f"pools.{self.name}"

    @property
    def pool(self) -> Pool:
        """The pool itself."""
        return self.spec.pools[self.name]

    @property
    def class_(self) -> PoolClass:
        """Its class."""
        return self.spec.class_of(self.name)

    @property
    def defaults(self) -> ClassDefaults:
        """Its class's defaults."""
        return DEFAULTS[self.class_]

    @property
    def slo(self) -> Slo | None:
        """Its objective."""
        return pool_slo(self.spec, self.name)

    @cached_property
    def known_model(self) -> CatalogModel | None:
        """The catalog's entry for the model."""
        return lookup(self.spec.model.id)

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """The GPU that the pool's node selector or affinity asks for."""
        return selected(self.pool.node_selector, self.pool.affinity) if self.pool.gpu_count else None

    @property
    def precision(self) -> Precision:
        """Number format of the weights."""
        return precision_of(self.spec.model)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The weights to load; None where the catalog has none of the precision asked for."""
        try:
            return checkpoint_of(self.spec.model)
        except KeyError:
            return None

    @property
    def weight_bytes(self) -> int | None:
        """Size of the weights, where it is known or can be estimated."""
        return weight_bytes(self.spec.model)

    @property
    def on_hub(self) -> bool:
        """True where the engine reads the model from a hub."""
        source = self.spec.model.source
        return (source is None or source.hub is not None) and not self.spec.model.id.startswith("/")

    @property
    def model_path(self) -> str:
        """What --model says: a hub id, a folder in the Pod, or an address in an object store."""
        model, source = self.spec.model, self.spec.model.source
        if source and source.object_store:
            return source.object_store.uri
        if source and (mounted := source.pvc or source.image):
            return f"{MODELS_FOLDER}/{mounted.path}" if mounted.path else MODELS_FOLDER
        return self.checkpoint.id if self.checkpoint else model.id

    @property
    def prefix_caching(self) -> bool:
        """Whether KV cache is reused between requests."""
        own = self.pool.prefix_caching
        return own.enabled if own else self.defaults.prefix_caching

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self.pool.max_model_len or MAX_MODEL_LEN

    @property
    def kv_cache_dtype(self) -> str:
        """Type of the KV cache: recipes of vLLM and NVIDIA keep it in fp8 where the weights are (research/vllm.md 3).

        Not by default on a GPU older than Ada, where it is slower.
        """
        if self.pool.kv_cache_dtype:
            return self.pool.kv_cache_dtype
        slower = self.accelerator is not None and self.accelerator.architecture < Architecture.ADA
        return "fp8" if self.precision in ("fp8", "nvfp4") and not slower else "auto"

    @cached_property
    def prefill_tokens_per_second(self) -> float | None:
        """Tokens per second that an engine can take in, by a roofline; None where model or GPU isn't known.

        2 floating-point operations per parameter and token (Kaplan et al. 2020, section 2.1), at PREFILL_EFFICIENCY of the
        peak of the GPUs that share one copy.
        """
        if self.known_model is None or self.accelerator is None or not self.accelerator.bf16_tflops:
            return None
        shared = self.pool.tensor_parallel * self.pool.pipeline_parallel
        flops = PREFILL_EFFICIENCY * self.accelerator.bf16_tflops * 1e12 * shared
        return flops / (2 * self.known_model.active_parameters)

    @cached_property
    def token_budget(self) -> int:
        """Tokens per step. For an interactive pool, what a third of the TTFT target can take in.

        A request that arrives in the middle of a step waits for its end, then for its own: with media to prepare beside it,
        three such times are the target (research/vllm.md 1.7, seeds/002).
        """
        if self.pool.max_num_batched_tokens:
            return self.pool.max_num_batched_tokens
        budget = self.defaults.max_num_batched_tokens
        if self.class_ == "interactive" and self.slo and self.prefill_tokens_per_second:
            room = self.prefill_tokens_per_second * self.slo.ttft.seconds / 3
            budget = min(8192, 1 << max(0, int(room).bit_length() - 1))
        return max(budget, self.smallest_budget)

    @property
    def smallest_budget(self) -> int:
        """Tokens that a step must have room for: the largest item of media, and one per running request."""
        media = self.pool.modalities
        largest = [512, self.pool.max_num_seqs or 0]
        largest += [VIDEO_TOKENS] if media.video.count else []
        largest += [media.image.soft_tokens or 280] if media.image.count else []
        # Steps of 64 keep the sizes of CUDA graphs even.
        return -(-max(largest) // 64) * 64

    @property
    def max_num_seqs(self) -> int:
        """Requests that run at once."""
        return self.pool.max_num_seqs or min(self.defaults.max_num_seqs, self.token_budget)

    @property
    def max_queued_tokens(self) -> int:
        """Prompt tokens in prefill from which on an API server turns away, each counting its own (vLLM v1/engine/async_llm.py)."""
        if self.pool.admission and self.pool.admission.max_queued_tokens:
            return self.pool.admission.max_queued_tokens
        seconds = self.slo.ttft.seconds if self.slo else BATCH_WAIT_SECONDS
        # Without a known GPU, the token budget stands for a third of the target: see token_budget.
        speed = self.prefill_tokens_per_second or 3 * self.token_budget / seconds
        taken_in = speed * seconds * self.pool.data_parallel / (self.pool.api_servers or 1)
        return max(self.token_budget, int(taken_in))
