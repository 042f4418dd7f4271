"""What we know to go wrong with a model, a GPU and a version of the engine: one table of checks.

What needs the spec alone is a rule of the API (api/), said at `kubectl apply`; what is here depends on the catalog, on the
engine's version or on the GPU, and is said in a condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gemma_operator.api.values import quantity_value
from gemma_operator.engine import plugin
from gemma_operator.engine.accelerators import Architecture
from gemma_operator.engine.catalog import MODELS, published
from gemma_operator.engine.findings import Finding, Severity
from gemma_operator.engine.settings import MTP_SINCE, mtp_config, rejects_drafts
from gemma_operator.engine.versions import NEWEST, Version, spell
from gemma_operator.engine.view import PoolView

GIB = 1 << 30
# vLLM's share of a GPU's memory where nobody sets it (research/vllm.md 4: config/cache.py).
MEMORY_UTILIZATION = 0.92
# Activations, CUDA graphs and the encoder's peak beside weights and KV cache: our round allowance.
OVERHEAD_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look for; `find` gives the message, or None where all is well."""

    id: str
    severity: Severity
    what: str
    """What is looked for, for the table in the docs."""
    source: str
    find: Callable[[PoolView], str | None]


def findings(view: PoolView) -> Iterator[Finding]:
    """What the checks say of a pool."""
    for check in CHECKS:
        if message := check.find(view):
            yield Finding(check.id, check.severity, message)


def _before(view: PoolView, version: Version) -> bool:
    return view.version < version


def _upgrade(version: Version) -> str:
    return f"raise engine.image to vLLM {spell(version)} or newer"


def _precision(view: PoolView) -> str | None:
    if view.checkpoint is not None:
        return None
    model = view.spec.model
    entry = published(model.id)
    known = (
        f"the catalog has {', '.join(sorted(entry.checkpoints))} of it"
        if entry
        else f"the catalog doesn't know it ({', '.join(m.size for m in MODELS)} as published)"
    )
    return (
        f"model.precision is {model.precision}, and {known} for model {model.id!r}: set model.checkpoint to "
        "weights of that precision, or another precision"
    )


def _revision(view: PoolView) -> str | None:
    model, loaded = view.spec.model, view.checkpoint
    if (
        loaded is None
        or loaded.id == model.id
        or model.checkpoint
        or not re.fullmatch("[0-9a-f]{40}", model.revision or "")
    ):
        return None
    return (
        f"model.revision is a commit of {model.id}, and precision {model.precision} loads {loaded.id}: "
        "name a commit of that, or remove revision"
    )


def _model_since(view: PoolView) -> str | None:
    known = view.known_model
    if known is None or not _before(view, known.since):
        return None
    return f"model.id: vLLM {spell(view.version)} can't serve Gemma 4 {known.size}: {_upgrade(known.since)}"


def _audio(view: PoolView) -> str | None:
    known, count = view.known_model, view.pool.modalities.audio.count
    if not count or known is None or known.audio:
        return None
    return (
        f"{view.path}.modalities.audio.count is {count}: Gemma 4 {known.size} hears nothing; set it to 0 "
        "(E2B, E4B and 12B take audio)"
    )


def _context(view: PoolView) -> str | None:
    known, asked = view.known_model, view.pool.max_model_len
    if known is None or asked is None or asked <= known.context_tokens:
        return None
    return f"{view.path}.maxModelLen is {asked}: Gemma 4 {known.size} takes at most {known.context_tokens} tokens"


def _drafter(view: PoolView) -> str | None:
    own = view.pool.mtp
    if not (own and own.enabled):
        return None
    if mtp_config(view) is None:
        why = (
            f"the catalog has no drafter for model {view.spec.model.id!r}"
            if view.known_model is None
            else "the model comes from no hub that its drafter could be fetched from"
        )
        return f"{view.path}.mtp is on, but {why}: set mtp.assistant, or mtp.enabled to false"
    if _before(view, MTP_SINCE):
        return (
            f"{view.path}.mtp is on, but Gemma 4's MTP needs vLLM 0.26 or newer: raise engine.image, or set "
            "mtp.enabled to false"
        )
    return None


def _drafter_name(view: PoolView) -> str | None:
    name = (view.pool.mtp.assistant or "") if view.pool.mtp and view.pool.mtp.enabled else ""
    mark = next((mark for mark in ("eagle-", "eagle3", "dflash", "dspark") if mark in name.lower()), None)
    if mark is None:
        return None
    return (
        f"{view.path}.mtp.assistant is {name!r}: vLLM takes a path with {mark!r} in it for another kind of "
        "drafter; store it under another name"
    )


def _loras(view: PoolView) -> str | None:
    if not view.pool.loras or not _before(view, (0, 20, 0)):
        return None
    return (
        f"{view.path}.loras: vLLM {spell(view.version)} takes no adapters for Gemma 4: "
        f"{_upgrade((0, 20, 0))}, or remove them"
    )


def _load_steps(view: PoolView) -> str | None:
    if not (view.pool.mtp and view.pool.mtp.enabled and view.pool.mtp.by_load) or not _before(view, (0, 24, 0)):
        return None
    return (
        f"{view.path}.mtp.byLoad: vLLM {spell(view.version)} drafts the same at every load: "
        f"{_upgrade((0, 24, 0))}, or remove it"
    )


def _prefill_interval(view: PoolView) -> str | None:
    interval = view.pool.prefill_interval or 1
    if interval == 1:
        return None
    if view.class_ == "interactive":
        return (
            f"{view.path}.prefillInterval is {interval}: requests wait for it, which an interactive pool's "
            "TTFT target doesn't bear; remove it"
        )
    if _before(view, (0, 33, 0)) and view.pool.data_parallel == 1:
        return (
            f"{view.path}.prefillInterval has no effect on vLLM {spell(view.version)} with one copy of the "
            f"model: {_upgrade((0, 33, 0))}, or remove it"
        )
    return None


def _graphs_version(view: PoolView) -> str | None:
    graphs = view.pool.encoder.cuda_graphs
    if not (graphs and graphs.enabled):
        return None
    if view.known_model is not None and not view.known_model.encoder:
        return (
            f"{view.path}.encoder.cudaGraphs is on: Gemma 4 {view.known_model.size} has no encoder; set "
            "cudaGraphs.enabled to false"
        )
    if _before(view, (0, 27, 1)):
        return (
            f"{view.path}.encoder.cudaGraphs: vLLM {spell(view.version)} has none for Gemma 4: "
            f"{_upgrade((0, 28, 0))}, or set enabled to false"
        )
    return None


def _batched_encoder(view: PoolView) -> str | None:
    if view.spec.engine.batched_encoder != "Required" or not _before(view, (0, 22, 0)):
        return None
    return (
        f"engine.batchedEncoder is Required: vLLM {spell(view.version)} encodes frames one by one: "
        f"{_upgrade((0, 22, 0))}, or use Auto"
    )


def _newer(view: PoolView) -> str | None:
    if view.version <= NEWEST or view.version[:2] == NEWEST[:2]:
        return None
    return (
        f"engine: vLLM {spell(view.version)} is newer than this operator knows; flags are those of "
        f"{spell(NEWEST)}: upgrade the operator when it knows it"
    )


def _fp4(view: PoolView) -> str | None:
    gpu = view.accelerator
    if view.precision != "nvfp4" or gpu is None or gpu.architecture >= Architecture.BLACKWELL:
        return None
    return (
        f"{view.path}: nvfp4 is native to Blackwell; on {gpu.name} it saves memory, and long prompts take "
        "longer: use fp8 or bf16 there, or nodes with Blackwell"
    )


def _fp8_weights(view: PoolView) -> str | None:
    gpu = view.accelerator
    if view.precision != "fp8" or gpu is None or gpu.architecture >= Architecture.ADA:
        return None
    return f"{view.path}: fp8 is native from Ada on; on {gpu.name} it saves memory, not time: use w4a16 or bf16 there"


def _fp8_kv(view: PoolView) -> str | None:
    gpu = view.accelerator
    if view.kv_cache_dtype != "fp8" or gpu is None or gpu.architecture >= Architecture.ADA:
        return None
    return (
        f"{view.path}.kvCacheDtype is fp8: on {gpu.name} it is slower than bf16 (vllm#49077: 113 to 88 "
        "tokens/s); set it to auto"
    )


def _turing(view: PoolView) -> str | None:
    gpu = view.accelerator
    if gpu is None or gpu.architecture > Architecture.TURING:
        return None
    return f"{view.path}: {gpu.name} has no bf16, and Gemma 4 answers only <pad> in fp16: use Ampere or newer"


def _memory(view: PoolView) -> str | None:
    gpu, weights, known = view.accelerator, view.weight_bytes, view.known_model
    if gpu is None or weights is None or known is None:
        return None
    copies = view.pool.tensor_parallel * view.pool.pipeline_parallel
    room = int(gpu.memory_gib * GIB * (view.pool.gpu_memory_utilization or MEMORY_UTILIZATION)) * copies
    where = f"{copies} x {gpu.name} ({room / GIB:.0f} GiB for the engine)"
    if weights + OVERHEAD_BYTES > room:
        return (
            f"{view.path}: {known.size} in {view.precision} has {weights / GIB:.0f} GiB of weights, which "
            f"don't fit {where}: raise tensorParallel, or choose a smaller precision"
        )
    width = 1 if view.kv_cache_dtype == "fp8" else 2
    needed = known.attention.bytes_per_sequence(view.max_model_len, width) if known.attention else 0
    if weights + OVERHEAD_BYTES + needed > room:
        return (
            f"{view.path}: beside the weights, {where} has no room for one request of maxModelLen "
            f"{view.max_model_len} ({needed / GIB:.1f} GiB of KV cache): lower maxModelLen, or raise "
            "tensorParallel or gpuMemoryUtilization"
        )
    return None


def _bad_checkpoint(view: PoolView) -> str | None:
    checkpoint = view.checkpoint
    if checkpoint is None or checkpoint.broken_until is None or view.version > checkpoint.broken_until:
        return None
    return (
        f"model: {checkpoint.id} answers only <pad> on vLLM {spell(view.version)}: raise engine.image, or "
        "use another precision"
    )


def _mixed_images(view: PoolView) -> str | None:
    if view.pool.modalities.text_only or not _before(view, (0, 22, 0)):
        return None
    return (
        f"{view.path}: images of different sizes crash vLLM {spell(view.version)} (vllm#39681, #40796), and "
        f"frames are encoded one by one: {_upgrade((0, 22, 0))}"
    )


def _engine_027(view: PoolView) -> str | None:
    if view.version[:2] != (0, 27):
        return None
    return (
        "engine: vLLM 0.27 as published can't load Gemma 4 (transformers 5.15: vllm#51744, #52768), and videos crash it "
        f"on a GPU (vllm#52441): {_upgrade((0, 28, 0))}"
    )


def _mtp_fp8_kv(view: PoolView) -> str | None:
    if not rejects_drafts(view) or not mtp_config(view):
        return None
    return (
        f"{view.path}: with a KV cache in fp8, 31B's drafts were hardly ever accepted (vllm#41789: 0.2 %): "
        "set kvCacheDtype to auto or mtp.enabled to false, and watch the acceptance"
    )


def _cache_of_processors(view: PoolView) -> str | None:
    if not view.pool.encoder.processor_cache_gb or max(view.pool.api_servers or 1, view.pool.data_parallel) == 1:
        return None
    return (
        f"{view.path}.encoder.processorCacheGb: with several API servers or copies each keeps a cache of "
        "its own, and sends all pixels to the engine again; it costs that memory per process"
    )


def _claims(view: PoolView) -> str | None:
    there = {claim.get("name") for claim in view.pool.resource_claims}
    missing = next((claim["name"] for claim in view.pool.resources.claims if claim["name"] not in there), None)
    if missing is None:
        return None
    return f"{view.path}.resources.claims: {missing!r} is not in {view.path}.resourceClaims: add it there, or remove it"


def _hash(view: PoolView) -> str | None:
    own = view.pool.prefix_caching
    if not (own and own.enabled and own.hash and own.hash.startswith("xxhash")):
        return None
    return (
        f"{view.path}.prefixCaching.hash is {own.hash}: vLLM comes without the package xxhash, and exits where it is missing: "
        "use sha256 or sha256_cbor, or an engine.image that has it"
    )


def _host_memory(view: PoolView) -> str | None:
    pool, limit = view.pool, view.pool.resources.limits.get("memory")
    # research/vllm.md 4: each API server and each copy of the model keeps a processor cache.
    caches = (pool.encoder.processor_cache_gb or 0) * ((pool.api_servers or 1) + pool.data_parallel)
    gib = caches + (pool.kv_offload.size_gib if pool.kv_offload else 0)
    if limit is None or not gib or int(gib * GIB) + quantity_value(pool.shm) < quantity_value(limit):
        return None
    return (
        f"{view.path}.resources.limits.memory is {limit}, and kvOffload.sizeGib, encoder.processorCacheGb (for each process) "
        f"and sharedMemory ({pool.shm}) need {gib:g} GiB and that: raise the limit, or lower one of them"
    )


def _gpus(view: PoolView) -> str | None:
    resource, count = view.pool.gpu_resource, view.pool.gpu_count
    asked = view.pool.resources.limits.get(resource)
    if asked is None or quantity_value(asked) == count:
        return None
    return (
        f"{view.path}.resources.limits[{resource}] is {asked}, and tensorParallel x pipelineParallel x dataParallel (or gpus) "
        f"is {count}: remove the limit, it is written for you, or change tensorParallel"
    )


def _admission(view: PoolView) -> str | None:
    limit = view.pool.admission.max_queued_tokens if view.pool.admission and view.pool.admission.enabled else None
    if limit is None or limit >= view.token_budget:
        return None
    return (
        f"{view.path}.admission.maxQueuedTokens is {limit}, less than one step takes ({view.token_budget}): "
        "requests are turned away while the engine idles; raise it"
    )


CHECKS = (
    Check("PrecisionUnknown", "refuse", "no checkpoint of that precision in the catalog", "research/vllm.md 3", _precision),
    Check("RevisionOfAnother", "refuse", "a commit together with a precision that loads another repository", "Hugging Face hub", _revision),
    Check("ModelNeedsNewerEngine", "refuse", "the version can't serve that size", "research/vllm.md 4.2", _model_since),
    Check("NoAudio", "refuse", "audio for a model without ears", "research/vllm.md 1.6, vLLM recipes", _audio),
    Check("ContextTooLong", "refuse", "maxModelLen beyond the model's context", "the models' config.json", _context),
    Check("MtpUnavailable", "refuse", "MTP without a drafter, or before 0.26", "research/vllm.md 2", _drafter),
    Check("DrafterName", "refuse", "a drafter's path that vLLM misreads", "research/vllm.md 2", _drafter_name),
    Check("LoraUnavailable", "refuse", "adapters before 0.20", "vLLM gemma4_mm.py of 0.19 to 0.33", _loras),
    Check("LoadStepsUnavailable", "refuse", "mtp.byLoad before 0.24", "vLLM config/speculative.py of 0.19 to 0.33", _load_steps),
    Check("PrefillInterval", "refuse", "prefillInterval where it harms, or does nothing", "vLLM v1/core/sched/scheduler.py", _prefill_interval),
    Check("GraphsUnavailable", "refuse", "encoder graphs before 0.27.1, or without an encoder", "research/vllm.md 1.4", _graphs_version),
    Check("BatchedEncoderUnavailable", "refuse", "batchedEncoder Required before 0.22", "research/vllm.md 1.1", _batched_encoder),
    Check("PluginUnavailable", "refuse", "our plugin with a vLLM that it doesn't know", "images/engine", plugin.wrong_version),
    Check("EncoderLimitUnavailable", "refuse", "encoder.tokensPerStep without our plugin", "images/engine", plugin.encoder_limit_without),
    Check("ClaimMissing", "refuse", "a container's claim that the Pod doesn't have", "Kubernetes core/v1", _claims),
    Check("GpuCount", "refuse", "another number of GPUs in resources than the engine uses", "research/practice.md A21", _gpus),
    Check("HostMemoryShort", "refuse", "a memory limit below what is kept in memory for sure", "research/vllm.md 4", _host_memory),
    Check("NoBf16", "refuse", "a GPU without bf16", "research/vllm.md 3", _turing),
    Check("EngineVersionUnknown", "warn", "a version newer than the flag table", "design.md", _newer),
    Check("PrecisionUnsuited", "warn", "nvfp4 before Blackwell", "research/vllm.md 3", _fp4),
    Check("PrecisionUnsuited", "warn", "fp8 weights before Ada", "research/vllm.md 3", _fp8_weights),
    Check("KvCacheUnsuited", "warn", "fp8 KV cache before Ada", "research/vllm.md 3", _fp8_kv),
    Check("MemoryShort", "warn", "weights or one request don't fit the GPU", "research/vllm.md 7 item 11, practice.md A11", _memory),
    Check("KnownBadCheckpoint", "warn", "a checkpoint that answers <pad> on this version", "research/vllm.md 7 item 30", _bad_checkpoint),
    Check("KnownBadEngine", "warn", "images before 0.22", "research/vllm.md 7 items 1, 2", _mixed_images),
    Check("KnownBadEngine", "warn", "0.27", "research/vllm.md 7 items 6, 8, 28", _engine_027),
    Check("MtpIneffective", "warn", "MTP of 31B with an fp8 KV cache", "research/vllm.md 2", _mtp_fp8_kv),
    Check("CachePerProcess", "warn", "a processor cache with several processes", "research/vllm.md 4", _cache_of_processors),
    Check("HashUnavailable", "warn", "a hash whose package vLLM doesn't bring", "vLLM utils/hashing.py", _hash),
    Check("PluginSwitchedOff", "warn", "VLLM_PLUGINS without our plugin's names", "vLLM plugins/__init__.py", plugin.switched_off),
    Check("RequestsTrusted", "warn", "media before 0.31 without our plugin", "images/engine", plugin.options_of_requests),
    Check("AdmissionTooTight", "warn", "a queue limit below one step", "vLLM v1/engine/async_llm.py", _admission),
)  # fmt: skip
