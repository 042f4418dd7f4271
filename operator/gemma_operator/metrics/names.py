"""What the engines' metrics are called: in every version of vLLM (research/vllm.md 6), and however they are spelled.

Each constant lists the names of one quantity, the newest first: an engine that exports an old and a new one at once
is read by the new one.
"""

from __future__ import annotations


def _spelled(*names: str) -> tuple[str, ...]:
    """The names, and the names without a colon, as exporters and collectors write them that allow none."""
    return (*names, *(name.replace(":", "_", 1) for name in names if ":" in name))


TTFT = _spelled("vllm:time_to_first_token_seconds_bucket")
ITL = _spelled("vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket")
RUNNING = _spelled("vllm:num_requests_running")
WAITING = _spelled("vllm:num_requests_waiting")
FINISHED = _spelled("vllm:request_success_total")
REJECTED = _spelled("vllm:admission_rejections_total")
PROMPT_TOKENS_BY_SOURCE = _spelled("vllm:prompt_tokens_by_source_total")
PROMPT_TOKENS = _spelled("vllm:prompt_tokens_total")
PROMPT_TOKENS_CACHED = _spelled("vllm:prompt_tokens_cached_total")
GENERATION_TOKENS = _spelled("vllm:generation_tokens_total")
KV_USAGE = _spelled("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
MM_CACHE_QUERIES = _spelled("vllm:mm_cache_queries_total")
# Of our engine plugin (images/engine); the first two count only with --enable-logging-iteration-details.
ENCODER_ITEMS = _spelled("gemma_engine_encoder_items_total")
ENCODER_EMBEDDINGS = _spelled("gemma_engine_encoder_tokens_total")
UNANSWERED = _spelled("gemma_engine_unanswered_requests")
ANSWERED = _spelled("gemma_engine_answered_requests_total")
STARTED = _spelled("process_start_time_seconds")

REQUIRED = (TTFT, RUNNING, WAITING)
"""Without these an engine says nothing that can be judged."""
OPTIONAL = (
    ITL,
    FINISHED,
    REJECTED,
    PROMPT_TOKENS_BY_SOURCE,
    PROMPT_TOKENS,
    PROMPT_TOKENS_CACHED,
    GENERATION_TOKENS,
    KV_USAGE,
    MM_CACHE_QUERIES,
    ENCODER_ITEMS,
    ENCODER_EMBEDDINGS,
    UNANSWERED,
    ANSWERED,
    STARTED,
)
ALL = tuple(name for names in (*REQUIRED, *OPTIONAL) for name in names)
"""Every name that is read."""
WITHOUT_ITL = tuple(name for name in ALL if name not in ITL)
"""What is read where nobody judges the inter-token latency."""
LABELS = ("engine", "le", "finished_reason", "reason", "source")
"""The labels of these metrics that mean something to us; `engine` is the data-parallel rank."""
