"""The engine's /metrics: names, labels, types and default edges as vLLM 0.32 has them, in a registry of its own.

Every label set exists with 0 from the start. TTFT is observed when the first token is emitted and includes the
preprocessing; phase times only when a request finishes; a request that its client gave up is never observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gemma_operator.simulation.standin.arguments import Arguments
from gemma_operator.simulation.standin.prompt import BLOCK_TOKENS
from gemma_operator.simulation.step_model import Emission, Engine, Request, Step

_LATENCY_EDGES = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
_TTFT_EDGES = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
_ITL_EDGES = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
_DEFAULT_EDGES = {
    "request_latency": _LATENCY_EDGES,
    "time_to_first_token": _TTFT_EDGES,
    "inter_token_latency": _ITL_EDGES,
    "iteration_tokens": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "request_params_n": "1 2 5 10 20",
    "request_num_preemptions": "1 2 3 4 5 10 20",
}
# Name (without `vllm:`) -> bucket family, help.
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "From arrival to the first token."),
    "inter_token_latency_seconds": ("inter_token_latency", "Between two outputs of a request."),
    "request_time_per_output_token_seconds": ("inter_token_latency", "Decode time of a request by its tokens."),
    "e2e_request_latency_seconds": ("request_latency", "From arrival to the last token."),
    "request_queue_time_seconds": ("request_latency", "In the engine's queue."),
    "request_inference_time_seconds": ("request_latency", "In the running batch."),
    "request_prefill_time_seconds": ("request_latency", "From the queue to the first token."),
    "request_decode_time_seconds": ("request_latency", "From the first to the last token."),
    "iteration_tokens_total": ("iteration_tokens", "Tokens of an iteration."),
    "request_prompt_tokens": ("request_tokens", "Prompt tokens of a request."),
    "request_generation_tokens": ("request_tokens", "Generated tokens of a request."),
    "request_max_num_generation_tokens": ("request_tokens", "Generated tokens of a request's longest answer."),
    "request_params_max_tokens": ("request_tokens", "The parameter max_tokens."),
    "request_prefill_kv_computed_tokens": ("request_tokens", "Prompt tokens computed for a request."),
    "request_params_n": ("request_params_n", "The parameter n."),
    "request_num_preemptions": ("request_num_preemptions", "Preemptions of a request."),
}
# Name -> extra label with its values or None, help.
_GAUGES = {
    "num_requests_running": (None, "Requests in the running batch."),
    "num_requests_waiting": (None, "Requests that wait for the engine."),
    "num_requests_waiting_by_reason": (("reason", "capacity deferred"), "Requests that wait, by reason."),
    "kv_cache_usage_perc": (None, "Share of the KV cache in use; 1 is all of it."),
    "engine_sleep_state": (("sleep_state", "awake weights_offloaded discard_all"), "1 for the state of the engine."),
}
_COUNTERS = {
    "prefix_cache_queries": (None, "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": (None, "Prompt tokens found in the prefix cache."),
    "external_prefix_cache_queries": (None, "Prompt tokens looked up in other engines' caches."),
    "external_prefix_cache_hits": (None, "Prompt tokens found in other engines' caches."),
    "mm_cache_queries": (None, "Media items looked up in the processor cache."),
    "mm_cache_hits": (None, "Media items found in the processor cache."),
    "num_preemptions": (None, "Requests taken out of the running batch."),
    "prompt_tokens": (None, "Prompt tokens of requests past their prefill."),
    "prompt_tokens_by_source": (
        ("source", "local_compute local_cache_hit external_kv_transfer"),
        "Prompt tokens by where they came from.",
    ),
    "prompt_tokens_cached": (None, "Prompt tokens that were not computed."),
    "prompt_tokens_cached_by_source": (
        ("source", "device host p2p disk external_unspecified"),
        "Prompt tokens that were not computed, by where they came from.",
    ),
    "generation_tokens": (None, "Tokens generated."),
    "estimated_flops_per_gpu": (None, "Not estimated here."),
    "estimated_read_bytes_per_gpu": (None, "Not estimated here."),
    "estimated_write_bytes_per_gpu": (None, "Not estimated here."),
    "request_success": (("finished_reason", "stop length abort error repetition"), "Finished requests."),
}
_DRAFT_COUNTERS = {
    "spec_decode_num_drafts": (None, "Drafts."),
    "spec_decode_num_draft_tokens": (None, "Draft tokens."),
    "spec_decode_num_accepted_tokens": (None, "Draft tokens accepted."),
}
M = TypeVar("M", Gauge, Counter)


class EngineMetrics:
    """All metrics of one engine."""

    def __init__(self, arguments: Arguments) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": arguments.served_names[0], "engine": "0"}
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, (label, text) in _GAUGES.items():
            self._add(self._gauges, Gauge, name, label, text)
        for name, (label, text) in _COUNTERS.items():
            self._add(self._counters, Counter, name, label, text)
        edges = _edges(arguments)
        for name, (family, text) in _HISTOGRAMS.items():
            histogram = Histogram(
                f"vllm:{name}", text, [*self._labels], registry=self.registry, buckets=tuple(edges[family])
            )
            self._histograms[name] = histogram.labels(**self._labels)
        self._drafting = arguments.draft_tokens > 0
        if self._drafting:
            self._add_draft_counters(arguments.draft_tokens)
        self._gauges["engine_sleep_state awake"].set(1)
        self._add_rejections()
        self._add_cache_info(arguments)

    def on_arrival(self, tokens: int, hits: int, media: int, media_hits: int) -> None:
        """A request reached the engine: lookups and hits in the prefix cache (tokens) and the processor cache (items)."""
        self._count("prefix_cache_queries", tokens)
        self._count("prefix_cache_hits", hits)
        self._count("mm_cache_queries", media)
        self._count("mm_cache_hits", media_hits)

    def on_rejection(self, reason: str) -> None:
        """A request was refused for a full queue; the reason is the limit's name."""
        self._count(f"admission_rejections {reason}")

    def on_step(self, step: Step, emissions: Sequence[Emission]) -> None:
        """The counters and latencies of one iteration."""
        generated = 0
        for emission in emissions:
            generated += emission.tokens
            if emission.first:
                self._on_first_token(emission.request)
            else:
                self._observe("inter_token_latency_seconds", emission.interval)
        self._count("generation_tokens", generated)
        self._observe("iteration_tokens_total", step.prompt_tokens + generated)
        if self._drafting and step.drafts and step.decodes:
            self._on_drafts(step, emissions)

    def on_state(self, engine: Engine) -> None:
        """The gauges; as in vLLM they stand still while an iteration runs."""
        self._gauges["num_requests_running"].set(len(engine.running))
        self._gauges["num_requests_waiting"].set(engine.waiting)
        self._gauges["num_requests_waiting_by_reason capacity"].set(engine.waiting)
        self._gauges["kv_cache_usage_perc"].set(engine.kv_usage)

    def on_finish(self, request: Request, reason: str, max_tokens: int | None) -> None:
        """A request that came to its end."""
        self._count(f"request_success {reason}")
        decode = request.last_token_at - request.first_token_at
        self._observe("e2e_request_latency_seconds", request.last_token_at - request.arrival)
        self._observe("request_queue_time_seconds", request.scheduled_at - request.queued_at)
        self._observe("request_inference_time_seconds", request.last_token_at - request.scheduled_at)
        self._observe("request_prefill_time_seconds", request.first_token_at - request.scheduled_at)
        self._observe("request_decode_time_seconds", decode)
        per_token = decode / (request.generated - 1) if request.generated > 1 else 0
        self._observe("request_time_per_output_token_seconds", per_token)
        self._observe("request_prompt_tokens", request.prompt_tokens)
        self._observe("request_generation_tokens", request.generated)
        self._observe("request_max_num_generation_tokens", request.generated)
        self._observe("request_prefill_kv_computed_tokens", request.prompt_tokens - request.cached_tokens)
        self._observe("request_params_n", 1)
        self._observe("request_num_preemptions", 0)
        if max_tokens:
            self._observe("request_params_max_tokens", max_tokens)

    def on_abort(self) -> None:
        """A request that the engine ended because it shuts down."""
        self._count("request_success abort")

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _on_first_token(self, request: Request) -> None:
        computed = request.prompt_tokens - request.cached_tokens
        self._observe("time_to_first_token_seconds", request.first_token_at - request.arrival)
        self._count("prompt_tokens", request.prompt_tokens)
        self._count("prompt_tokens_cached", request.cached_tokens)
        self._count("prompt_tokens_cached_by_source device", request.cached_tokens)
        self._count("prompt_tokens_by_source local_compute", computed)
        self._count("prompt_tokens_by_source local_cache_hit", request.cached_tokens)

    def _on_drafts(self, step: Step, emissions: Sequence[Emission]) -> None:
        self._count("spec_decode_num_drafts", len(step.decodes))
        self._count("spec_decode_num_draft_tokens", step.drafts * len(step.decodes))
        for emission in emissions:
            self._count("spec_decode_num_accepted_tokens", emission.accepted)
            for position in range(emission.accepted):
                self._count(f"spec_decode_num_accepted_tokens_per_pos {position}")

    def _count(self, name: str, amount: float = 1) -> None:
        self._counters[name].inc(amount)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _add(self, into: dict[str, M], kind: type[M], name: str, label: tuple[str, str] | None, text: str) -> None:
        """Make a metric with all its label sets; one of several values is found as `name value`."""
        names = [*self._labels, *([label[0]] if label else [])]
        metric = kind(f"vllm:{name}", text, names, registry=self.registry)
        if label is None:
            into[name] = metric.labels(**self._labels)
            return
        for value in label[1].split():
            into[f"{name} {value}"] = metric.labels(*self._labels.values(), value)

    def _add_draft_counters(self, tokens: int) -> None:
        for name, (label, text) in _DRAFT_COUNTERS.items():
            self._add(self._counters, Counter, name, label, text)
        positions = ("position", " ".join(str(position) for position in range(tokens)))
        name = "spec_decode_num_accepted_tokens_per_pos"
        self._add(self._counters, Counter, name, positions, "Draft tokens accepted, by position.")

    def _add_rejections(self) -> None:
        labels = ["model_name", "reason"]
        counter = Counter("vllm:admission_rejections", "Requests refused.", labels, registry=self.registry)
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            self._counters[f"admission_rejections {reason}"] = counter.labels(self._labels["model_name"], reason)

    def _add_cache_info(self, arguments: Arguments) -> None:
        info = {
            "block_size": str(BLOCK_TOKENS),
            "num_gpu_blocks": str(arguments.engine.kv_cache_tokens // BLOCK_TOKENS),
            "enable_prefix_caching": str(arguments.prefix_caching),
            "engine": "0",
        }
        gauge = Gauge("vllm:cache_config_info", "Settings of the KV cache.", [*info], registry=self.registry)
        gauge.labels(**info).set(1)


def _edges(arguments: Arguments) -> Mapping[str, Sequence[float]]:
    """Bucket edges by family: vLLM's defaults, token counts in steps of 1-2-5, and the custom ones."""
    defaults = {family: [float(edge) for edge in edges.split()] for family, edges in _DEFAULT_EDGES.items()}
    steps = (mantissa * 10.0**exponent for exponent in range(12) for mantissa in (1, 2, 5))
    tokens = [edge for edge in steps if edge <= arguments.max_model_len]
    return {**defaults, "request_tokens": tokens, **arguments.buckets}
