"""Every flag that we would set for a pool's engine, with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gemma_operator.api.scaling import Slo
from gemma_operator.engine import plugin
from gemma_operator.engine.versions import Version
from gemma_operator.engine.view import PoolView, drain_seconds, served_name

PORT = 8000
CHAT_TEMPLATE = "/etc/gemma/chat-template"
# research/vllm.md section 2: MTP of Gemma 4 exists since 0.21; crashes at start are known up to 0.25.
MTP_SINCE: Version = (0, 26, 0)
# research/autoscaling.md section 2.2, row 15: 16 edges in seconds, dense around 300 ms; another objective adds one.
TTFT_EDGES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag that we set: its values, where it comes from, and the field that asked for it, if one did."""

    flag: str
    values: tuple[str, ...]
    why: str
    field: str | None = None
    """Path of the user's field below `spec`; None for a default, which an engine that doesn't know the flag goes without."""


def settings(view: PoolView) -> tuple[Setting, ...]:
    """All flags for a pool, whether its engine's version knows them or not."""
    groups: tuple[Callable[[PoolView], Iterator[Setting]], ...] = (
        _model, _server, _limits, _parallel, _cache, _media, _encoder, _speculative, _loras, _observability,
    )  # fmt: skip
    return tuple(setting for group in groups for setting in group(view))


def _of(view: PoolView, flag: str, value: Any, field: str, own: Any, default: str) -> Setting:
    """A flag whose value is the user's where `own` is set, else a default that `default` explains."""
    values = () if value is None else (value if isinstance(value, str) else to_json(value),)
    path = f"{view.path}.{field}"
    return Setting(flag, values, f"spec.{path}", path) if own is not None else Setting(flag, values, default)


def _model(view: PoolView) -> Iterator[Setting]:
    model, known = view.spec.model, view.known_model
    explicit = "checkpoint" if model.checkpoint else "source" if model.source and not model.source.hub else None
    if explicit:
        yield Setting("--model", (view.model_path,), f"spec.model.{explicit}")
    elif model.precision:
        yield Setting(
            "--model", (view.model_path,), f"spec.model.precision: the catalog's {model.precision} checkpoint"
        )
    else:
        yield Setting("--model", (view.model_path,), "spec.model.id")
    names = (served_name(view.spec), *model.aliases)
    yield Setting(
        "--served-model-name", names, f"spec.model.{'servedName' if model.served_name else 'id'}; labels the metrics"
    )
    yield Setting("--dtype", ("bfloat16",), "rule: Gemma 4 answers only <pad> in fp16 (vllm#40290)")
    if model.revision:
        yield Setting("--revision", (model.revision,), "spec.model.revision", "model.revision")
    if model.load_format:
        yield Setting("--load-format", (model.load_format,), "spec.model.loadFormat", "model.loadFormat")
    elif model.source and model.source.object_store:
        yield Setting("--load-format", ("runai_streamer",), "spec.model.source.objectStore", "model.source.objectStore")
    if model.loader_config:
        value = (to_json(model.loader_config),)
        yield Setting("--model-loader-extra-config", value, "spec.model.loaderConfig", "model.loaderConfig")
    for own, name, flags in (
        (model.reasoning, "reasoning", (("--reasoning-parser", ("gemma4",)),)),
        (model.tool_calling, "toolCalling", (("--enable-auto-tool-choice", ()), ("--tool-call-parser", ("gemma4",)))),
    ):
        if own.enabled if own else known is not None:
            why, field = (f"spec.model.{name}", f"model.{name}") if own else ("default for models of the catalog", None)
            yield from (Setting(flag, values, why, field) for flag, values in flags)
    if model.chat_template:
        path = f"{CHAT_TEMPLATE}/{model.chat_template.key}"
        yield Setting("--chat-template", (path,), "spec.model.chatTemplate", "model.chatTemplate")
    elif view.plugin and known is not None:
        yield Setting(
            "--chat-template", (plugin.CHAT_TEMPLATE,), "default for models of the catalog with spec.engine.plugin"
        )


def _server(view: PoolView) -> Iterator[Setting]:
    yield Setting("--host", ("0.0.0.0",), "operator: the Pod's address")
    yield Setting("--port", (str(PORT),), "operator: Service, probes and metrics use it")
    drain = str(drain_seconds(view.spec, view.name))
    default = f"default of class {view.class_}: running requests finish when an engine is stopped"
    yield _of(view, "--shutdown-timeout", drain, "drainSeconds", view.pool.drain_seconds, default)
    if view.pool.api_servers:
        yield _of(view, "--api-server-count", view.pool.api_servers, "apiServers", view.pool.api_servers, "")


def _limits(view: PoolView) -> Iterator[Setting]:
    pool, of_class = view.pool, f"default of class {view.class_}"
    yield _of(
        view,
        "--max-model-len",
        view.max_model_len,
        "maxModelLen",
        pool.max_model_len,
        "default: the usual length in practice",
    )
    yield _of(view, "--max-num-seqs", view.max_num_seqs, "maxNumSeqs", pool.max_num_seqs, of_class)
    budget = of_class
    if view.class_ == "interactive" and view.slo and view.prefill_tokens_per_second:
        speed = f"{view.prefill_tokens_per_second:.0f} tokens/s of prefill"
        budget = f"rule: at {speed}, a step takes a third of the TTFT target; at least {view.smallest_budget} for the largest item"
    yield _of(
        view, "--max-num-batched-tokens", view.token_budget, "maxNumBatchedTokens", pool.max_num_batched_tokens, budget
    )
    if (admission := pool.admission) and admission.enabled:
        field = f"{view.path}.admission"
        why = (
            f"spec.{field}: what can be taken in within the TTFT target"
            if admission.max_queued_tokens is None
            else f"spec.{field}.maxQueuedTokens"
        )
        yield Setting("--max-num-queued-tokens", (str(view.max_queued_tokens),), why, field)
        if admission.max_queued_requests:
            # vLLM counts those that run as well.
            most = str(admission.max_queued_requests + view.max_num_seqs * pool.data_parallel)
            yield Setting(
                "--max-num-queued-reqs", (most,), f"spec.{field}.maxQueuedRequests, and those that run", field
            )
    if pool.prefill_interval:
        yield _of(
            view, "--prefill-schedule-interval", pool.prefill_interval, "prefillInterval", pool.prefill_interval, ""
        )


def _parallel(view: PoolView) -> Iterator[Setting]:
    for flag, count, field in (
        ("--tensor-parallel-size", view.pool.tensor_parallel, "tensorParallel"),
        ("--pipeline-parallel-size", view.pool.pipeline_parallel, "pipelineParallel"),
        ("--data-parallel-size", view.pool.data_parallel, "dataParallel"),
    ):
        if count > 1:
            yield _of(view, flag, count, field, count, "")


def _cache(view: PoolView) -> Iterator[Setting]:
    pool, own = view.pool, view.pool.prefix_caching
    flag = "--enable-prefix-caching" if view.prefix_caching else "--no-enable-prefix-caching"
    yield _of(view, flag, None, "prefixCaching", own, f"default of class {view.class_}")
    if own and own.hash and own.enabled:
        yield _of(view, "--prefix-caching-hash-algo", own.hash, "prefixCaching.hash", own.hash, "")
    if view.kv_cache_dtype != "auto":
        default = f"rule: {view.precision} checkpoints keep their KV cache in fp8 as well (vLLM recipes)"
        yield _of(view, "--kv-cache-dtype", view.kv_cache_dtype, "kvCacheDtype", pool.kv_cache_dtype, default)
    if pool.gpu_memory_utilization:
        share = pool.gpu_memory_utilization
        yield _of(view, "--gpu-memory-utilization", share, "gpuMemoryUtilization", share, "")
    if pool.kv_offload:
        yield _of(view, "--kv-offloading-size", pool.kv_offload.size_gib, "kvOffload.sizeGib", pool.kv_offload, "")


def _media(view: PoolView) -> Iterator[Setting]:
    media, field = view.pool.modalities, f"{view.path}.modalities"
    if media.text_only:
        yield Setting("--language-model-only", (), f"spec.{field}: no media, so no encoder is loaded", field)
        return
    limits = {"image": media.image.count, "video": media.video.count, "audio": media.audio.count}
    yield Setting("--limit-mm-per-prompt", (to_json(limits),), f"spec.{field}, and its defaults")
    if media.image.count and media.image.soft_tokens:
        value = (to_json({"max_soft_tokens": media.image.soft_tokens}),)
        yield Setting("--mm-processor-kwargs", value, f"spec.{field}.image.softTokens", f"{field}.image.softTokens")
    video = {"num_frames": media.video.frames, "fps": media.video.fps}
    if media.video.count and (asked := {key: value for key, value in video.items() if value is not None}):
        yield Setting("--media-io-kwargs", (to_json({"video": asked}),), f"spec.{field}.video", f"{field}.video")


def _encoder(view: PoolView) -> Iterator[Setting]:
    encoder, field = view.pool.encoder, f"{view.path}.encoder"
    if view.pool.modalities.text_only:
        return
    if encoder.processor_cache_gb is not None:
        value = f"{encoder.processor_cache_gb:g}"
        yield _of(view, "--mm-processor-cache-gb", value, "encoder.processorCacheGb", value, "")
    elif not view.prefix_caching:
        # seeds/000 switches it off as well.
        yield Setting(
            "--mm-processor-cache-gb",
            ("0",),
            "rule: unique media never hit the cache, it only costs memory (seeds/000)",
        )
    elif view.pool.sheds:
        why = "rule: a request that is refused leaves its media in a cache of two halves in one alone; when they come again they fail once"
        yield Setting("--mm-processor-cache-gb", ("0",), f"{why} (vLLM 0.32, seen)")
    if (graphs := encoder.cuda_graphs) and graphs.enabled:
        config = {
            "cudagraph_mm_encoder": True,
            "encoder_cudagraph_token_budgets": sorted(graphs.token_budgets),
            "encoder_cudagraph_max_vision_items_per_batch": graphs.max_items,
        }
        yield Setting("--compilation-config", (to_json(config),), f"spec.{field}.cudaGraphs", f"{field}.cudaGraphs")
    if limit := encoder.tokens_per_step:
        manager = (to_json(plugin.encoder_limit(limit)),)
        yield Setting("--ec-manager-config", manager, f"spec.{field}.tokensPerStep", f"{field}.tokensPerStep")


def _speculative(view: PoolView) -> Iterator[Setting]:
    if config := mtp_config(view):
        own = view.pool.mtp
        default = "default of class batch: drafting pays where latency doesn't matter and the catalog has a drafter"
        yield _of(view, "--speculative-config", config, "mtp", own, default)


def mtp_config(view: PoolView) -> dict[str, Any] | None:
    """vLLM's speculative config of a pool; None where MTP is off, on by default only and not to be had, or has no drafter."""
    own, entry = view.pool.mtp, view.known_model
    if not (own.enabled if own else view.defaults.mtp):
        return None
    if own is None and (view.version < MTP_SINCE or rejects_drafts(view)):
        return None
    # A model that isn't from a hub may have no network to fetch the catalog's drafter with.
    assistant = (own.assistant if own else None) or (entry.assistant if entry and view.on_hub else None)
    if assistant is None:
        return None
    tokens = (own.tokens if own else None) or (entry.mtp_tokens if entry else 4)
    config: dict[str, Any] = {"method": "mtp", "model": assistant, "num_speculative_tokens": tokens}
    if own and own.by_load:
        config["num_speculative_tokens_per_batch_size"] = _ranges(
            [(s.requests, min(s.tokens, tokens)) for s in own.by_load]
        )
    return config


def rejects_drafts(view: PoolView) -> bool:
    """True where drafts were hardly ever accepted: 31B with a KV cache in fp8 (research/vllm.md 2, vllm#41789)."""
    return view.known_model is not None and view.known_model.size == "31B" and view.kv_cache_dtype == "fp8"


def _ranges(steps: list[tuple[int, int]]) -> list[list[int]]:
    """Steps "up to so many requests" as vLLM's ranges [from, to, tokens], which begin at 1 and end with none drafted.

    vLLM 0.32 config/speculative.py wants the ranges without gaps.
    """
    ranges, start = [], 1
    for requests, tokens in sorted(steps):
        ranges.append([start, requests, tokens])
        start = requests + 1
    return [*ranges, [start, max(4096, start), 0]]


def _loras(view: PoolView) -> Iterator[Setting]:
    if not view.pool.loras:
        return
    field = f"{view.path}.loras"
    yield Setting("--enable-lora", (), f"spec.{field}", field)
    modules = tuple(to_json({"name": lora.name, "path": lora.path}) for lora in view.pool.loras)
    yield Setting("--lora-modules", modules, f"spec.{field}", field)
    if view.pool.lora_rank:
        yield _of(view, "--max-lora-rank", view.pool.lora_rank, "loraRank", view.pool.lora_rank, "")


def _observability(view: PoolView) -> Iterator[Setting]:
    edges = to_json({"time_to_first_token": ttft_edges(view.slo)})
    why = "operator: an edge exactly at the TTFT target makes its verdict exact"
    yield Setting("--custom-histogram-buckets", (edges,), why)
    if view.plugin:
        why = "spec.engine.plugin: its metrics of steps and encoder"
        yield Setting("--enable-logging-iteration-details", (), why)
        yield Setting(
            "--middleware", (plugin.MIDDLEWARE,), "spec.engine.plugin: requests that wait for an engine which hangs"
        )
        if view.pool.sheds:
            why_shedding = (
                f"spec.{view.path}.admission with spec.engine.plugin: refusals are 503 with Retry-After, of streams too"
            )
            yield Setting("--middleware", (plugin.SHEDDING,), why_shedding)
        # With a plugin's stat logger there, this turns off nothing else (vLLM v1/engine/async_llm.py). Several API servers log no
        # such lines, and their engine counts nothing at all with it (v1/engine/core.py of 0.32, seen: all counters stay 0).
        if (view.pool.api_servers or 1) == 1:
            yield Setting("--disable-log-stats", (), f"{why}, without a line of log for each step")


def ttft_edges(slo: Slo | None) -> list[float]:
    """Histogram edges for TTFT in seconds, with one exactly at the objective."""
    edges = set(TTFT_EDGES)
    if slo:
        edges.add(slo.ttft.seconds)
    return sorted(edges)


def to_json(value: Any) -> str:
    """JSON without blanks, keys in order: equal values are equal bytes."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
