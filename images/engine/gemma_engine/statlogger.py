"""The metrics that vLLM lacks: what its encoder does, how full the steps are, and when it last got on.

Needs `--enable-logging-iteration-details` (without it only the self-check and the progress are told), and goes well with
`--disable-log-stats`, which keeps vLLM from printing a line per step and turns off nothing else while a plugin is there.

Fill ratios are quotients of two counters, so that they can be taken over any time and summed over engines:
    rate(gemma_engine_encoder_tokens_total[5m]) / rate(gemma_engine_encoder_budget_tokens_total[5m])
"""

from __future__ import annotations

import functools
import time
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from . import __version__, plugin, shared
from .budget import step_limit

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is logged below its own name

STEP_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)

HELP = {
    "encoder_calls": "Calls of the vision encoder",
    "encoder_images": "Images encoded",
    "encoder_frames": "Video frames encoded",
    "fallbacks": "Batches that vLLM's own encoder took because ours failed",
    "oom_splits": "Chunks that ran out of memory and were halved",
}


class Metrics:
    """Registered once per process. Values of several API servers of one engine add up, or the most recent one counts."""

    def __init__(self) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"gemma_engine_{name}", text, labels, multiprocess_mode="mostrecent")

        self.is_idle = True
        """Whether the newest step that this process was told of left no request behind."""
        self.waiting = 0
        """The value of `unanswered` in this process."""

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"gemma_engine_{name}", text, labels)

        self.info = gauge("info", "1, with versions and whose vision encoder serves", ("version", "vllm", "encoder"))
        self.self_check = gauge("self_check", "1 for the state of the vision encoder's self-check", ("state",))
        self.last_progress = gauge(
            "last_progress_timestamp_seconds", "When an engine step last gave tokens, or no request was there"
        )
        self.unanswered = Gauge(
            "gemma_engine_unanswered_requests",
            "Requests that are here whole, and have had no byte of an answer",
            multiprocess_mode="livesum",
        )
        self.answered = counter("answered_requests", "Requests that had the first byte of an answer")
        self.step_seconds = Histogram(
            "gemma_engine_step_seconds", "Time of an engine step", ("encoder",), buckets=STEP_SECONDS
        )
        self.step_tokens = counter("step_tokens", "Prompt and output tokens of the steps", ("encoder",))
        self.step_budget = counter("step_budget_tokens", "What the steps could have held", ("encoder",))
        self.encoder_items = counter("encoder_items", "Media whose encoding was scheduled; repeated ones are not")
        self.encoder_tokens = counter("encoder_tokens", "Soft tokens that the encoder gave")
        self.encoder_budget = counter("encoder_budget_tokens", "What the steps with encoder work could have given")
        self.counts = {field: counter(field, HELP[field]) for field in shared.COUNTS}
        self.record_errors = counter("record_errors", "Steps that these metrics missed because of an error")


metrics = functools.cache(Metrics)


class EncoderStatLogger(AggregateStatLoggerBase):
    """vLLM calls it in the API server for every engine step. An exception out of `record` would end the server."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        scheduler = vllm_config.scheduler_config
        self._step_budget = scheduler.max_num_batched_tokens
        self._encoder_budget = step_limit(vllm_config) or scheduler.max_num_encoder_input_tokens
        self._metrics = metrics()
        self._workers = shared.Workers()
        tower_lora = getattr(getattr(vllm_config, "lora_config", None), "enable_tower_connector_lora", False)
        ours = plugin.ARCHITECTURE in vllm_config.model_config.architectures and not tower_lora
        self._ours = plugin.wanted() and ours
        self._state = ""
        self._cache_key = getattr(vllm_config, "compute_hash", lambda: "unknown")()

    def log_engine_initialized(self) -> None:
        encoder = "gemma_engine" if self._ours else "vllm"
        self._metrics.info.labels(__version__, plugin.vllm_version(), encoder).set(1)
        self._metrics.last_progress.set(time.time())
        self._workers.find()
        self._tell_state()
        logger.info("gemma_engine %s: the vision encoder is %s's", __version__, encoder)
        # Engines with the same key can share a compile cache; with another one it would not be found there.
        logger.info("compile cache key: %s", self._cache_key)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        try:
            self._record(scheduler_stats, iteration_stats)
        except Exception:
            if self._metrics.record_errors._value.get() == 0:
                logger.exception("gemma_engine's metrics miss a step; further errors are only counted")
            self._metrics.record_errors.inc()

    def _record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        details = getattr(scheduler_stats, "iteration_details", None)
        if details is not None and not details.is_dummy:
            self._record_step(details)
        known = self._metrics
        if scheduler_stats is not None:
            known.is_idle = not scheduler_stats.num_running_reqs + scheduler_stats.num_waiting_reqs
        was_step = details is not None or (iteration_stats is not None and iteration_stats.num_generation_tokens)
        # One prompt token is as good a sign of life as one output token: a long prompt takes many steps.
        if was_step or (known.is_idle and not known.waiting):
            known.last_progress.set(time.time())
        self._tell_state()

    def _record_step(self, details: Any) -> None:
        known = self._metrics
        encoder = "yes" if details.num_encoder_inputs else "no"
        known.step_seconds.labels(encoder).observe(details.elapsed_ms / 1000)
        known.step_tokens.labels(encoder).inc(details.num_ctx_tokens + details.num_generation_tokens)
        known.step_budget.labels(encoder).inc(self._step_budget)
        if not details.num_encoder_inputs:
            return
        known.encoder_items.inc(details.num_encoder_inputs)
        known.encoder_tokens.inc(details.num_encoder_output_tokens)
        known.encoder_budget.inc(self._encoder_budget)
        for field, news in self._workers.new_counts().items():
            known.counts[field].inc(news)

    def _tell_state(self) -> None:
        state = self._workers.state() if self._ours else "off"
        if state != self._state:
            self._state = state
            for other in (*shared.STATES, "off"):
                self._metrics.self_check.labels(other).set(other == state)
