"""Recording rules: what is asked often, or over long times, per pool. Names are level:metric:operation."""

from __future__ import annotations

from typing import Any

from tools.monitoring.promql import ENGINES, POOL, TTFT, Clock, name_of, of_operator, term

WINDOWS = (300, 1800, 3600, 7200, 21600, 86400, 259200)
"""Of the burn rates, seconds."""
REMEMBER_SECONDS = 900
"""An operator that restarts must not silence what watches the SLO."""

REQUESTS, MISSES = "pool:gemma_ttft_requests:rate5m", "pool:gemma_ttft_misses:rate5m"
ALLOWED = "pool:gemma_slo_allowed_misses:ratio"
ATTAINMENT, P95 = "pool:gemma_attainment:ratio_rate5m", "pool:gemma_ttft_seconds:p95_rate5m"
UTILISATION = "pool:gemma_utilisation:ratio"
ENCODER_FILL = "pool:gemma_encoder_fill:ratio_rate1h"
MTP_ACCEPTANCE = "pool:gemma_mtp_acceptance:ratio_rate30m"
SCRAPED = "pool:gemma_scraped_engines:count"


def missed(window: int) -> str:
    """Name of the share of requests that missed over a window."""
    return f"pool:gemma_ttft_miss:ratio_rate{name_of(window)}"


def recording(clock: Clock) -> list[dict[str, Any]]:
    """All recording rules; a later one may use an earlier one."""
    rules = {
        REQUESTS: _requests(clock),
        # Extrapolated rates differ a little: no share may be negative.
        MISSES: f"clamp_min({REQUESTS}\n- on ({POOL})\n{_good(clock)}, 0)",
        ALLOWED: f"1 - max by ({POOL}) (last_over_time(gemma_operator_slo_ttft_percentile[{clock(REMEMBER_SECONDS)}])) / 100",
        # Of a pool without requests there is no share, which is neither 0 nor 1.
        missed(300): f"{MISSES} / ({REQUESTS} > 0)",
        **{missed(window): _over(window, clock) for window in WINDOWS[1:]},
        ATTAINMENT: f"1 - {missed(300)}",
        # A comparison drops the NaN of a pool without requests.
        P95: f"histogram_quantile(0.95, sum by ({POOL}, le) (rate({TTFT}_bucket{ENGINES}[{clock(300)}]))) >= 0",
        UTILISATION: f"{term('fast')}\n/\n({term('operating_point')}\n  * {term('correction')}\n"
        f"  * ({of_operator('ready_replicas')} + {of_operator('lent_replicas')} > 0))",
        ENCODER_FILL: _ratio("gemma_engine_encoder_tokens_total", "gemma_engine_encoder_budget_tokens_total", clock(3600)),
        MTP_ACCEPTANCE: _ratio(
            "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total", clock(1800)
        ),
        SCRAPED: f"count by ({POOL}) (count by ({POOL}, pod) (vllm:num_requests_running{ENGINES}))",
    }  # fmt: skip
    return [{"record": name, "expr": expression} for name, expression in rules.items()]


def _requests(clock: Clock) -> str:
    """Requests per second: those that got a first token, and those that never will. Each engine rank is summed."""
    answered = f"sum by ({POOL}) (rate({TTFT}_count{ENGINES}[{clock(300)}]))"
    failed = f'sum by ({POOL}) (rate(vllm:request_success_total{{serving!="",finished_reason=~"error|abort"}}[{clock(300)}]))'
    # Of vLLM 0.32 and newer only.
    refused = f"sum by ({POOL}) (rate(vllm:admission_rejections_total{ENGINES}[{clock(300)}]))"
    return f"{answered}\n+ ({failed} or 0 * {answered})\n+ ({refused} or 0 * {answered})"


def _good(clock: Clock) -> str:
    """Requests per second within the target, by the bucket whose edge it is.

    The target becomes a label `le` and picks its bucket. Edges that are whole numbers are written 1.0 by vLLM, and by
    Prometheus 3 in any case, but 1 by `count_values`. A pool without an edge at its target has no such series.
    """
    rates = f"sum by ({POOL}, le) (rate({TTFT}_bucket{ENGINES}[{clock(300)}]))"
    edges = f'label_replace({rates}, "le", "$1", "le", "([0-9]+)[.]0")'
    target = f"max by ({POOL}) (last_over_time(gemma_operator_slo_ttft_target_seconds[{clock(REMEMBER_SECONDS)}]))"
    return f'sum by ({POOL}) (\n  {edges}\n  * on ({POOL}, le)\n  count_values by ({POOL}) ("le", {target})\n)'


def _over(window: int, clock: Clock) -> str:
    """Share of a long window, from the rates of five minutes: raw buckets over days would cost too much."""
    return f"sum_over_time({MISSES}[{clock(window)}]) / (sum_over_time({REQUESTS}[{clock(window)}]) > 0)"


def _ratio(part: str, whole: str, window: str) -> str:
    """Of two counters; nothing where the whole stands still."""
    return f"sum by ({POOL}) (rate({part}{ENGINES}[{window}]))\n/\n(sum by ({POOL}) (rate({whole}{ENGINES}[{window}])) > 0)"
