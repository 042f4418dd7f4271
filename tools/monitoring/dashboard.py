"""The dashboard of GemmaServing: is the objective met, why these sizes, and what limits them."""

from __future__ import annotations

from typing import Any

from tools.monitoring import rules
from tools.monitoring.grafana import Panel, Query, Row, dashboard, variable
from tools.monitoring.promql import POOL, TTFT

CHOSEN = 'namespace=~"$namespace",serving=~"$serving",pool=~"$pool"'
WINDOW = "$__rate_interval"


def content() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    known = "gemma_operator_ready_replicas"
    variables = [
        variable("namespace", "Namespace", f"label_values({known}, namespace)"),
        variable("serving", "GemmaServing", f'label_values({known}{{namespace=~"$namespace"}}, serving)'),
        variable("pool", "Pool", f'label_values({known}{{namespace=~"$namespace",serving=~"$serving"}}, pool)'),
    ]
    rows = [_objective(), _demand(), _replicas(), _engines(), _encoder(), _batch(), _operator()]
    return dashboard("gemma-serving", "Gemma serving", variables, rows)


def _figure(name: str, matchers: str = "", by: str = POOL) -> str:
    """A figure of the operator for the chosen pools."""
    return f"max by ({by}) (gemma_operator_{name}{{{CHOSEN}{matchers}}})"


def _term(name: str) -> str:
    return _figure("scaling_term", f',term="{name}"')


def _recorded(name: str) -> str:
    return f"{name}{{{CHOSEN}}}"


def _sum(metric: str, matchers: str = "", by: str = POOL) -> str:
    """A gauge of the engines."""
    return f"sum by ({by}) ({metric}{{{CHOSEN}{matchers}}})"


def _rate(counter: str, matchers: str = "", by: str = POOL) -> str:
    return f"sum by ({by}) (rate({counter}{{{CHOSEN}{matchers}}}[{WINDOW}]))"


def _p95(histogram: str, matchers: str = "", by: str = POOL) -> str:
    return f"histogram_quantile(0.95, {_rate(f'{histogram}_bucket', matchers, f'{by}, le')})"


def _of(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


def _objective() -> Row:
    spent = f"sum_over_time({_recorded(rules.MISSES)}[$__range]) / (sum_over_time({_recorded(rules.REQUESTS)}[$__range]) > 0)"
    target = _figure("slo_ttft_target_seconds")
    return "Objective", (
        Panel("Attainment, 5 minutes", [Query(_recorded(rules.ATTAINMENT))], "percentunit",
              "Share of the requests within the TTFT target. Refused, failed and aborted ones are misses.", "stat", 6),
        Panel("Error budget left, in the time shown", [Query(f"1 - ({spent}) / on ({POOL}) {_recorded(rules.ALLOWED)}")], "percentunit",
              "100 %: nothing missed; 0 %: as much as the objective allows; below: the objective is missed.", "stat", 6),
        Panel("Alerts",
              [Query('count by (alertname, severity) (ALERTS{alertstate="firing",alertname=~"Gemma.*"})'
                     ' or label_replace(vector(0), "alertname", "none", "", "")', "{{alertname}}")],
              "short", "Alerts that fire; each has a runbook.", "stat", 12),
        Panel("TTFT p95 and its target",
              [Query(_recorded(rules.P95)), Query(target, "target {{serving}}/{{pool}}", dashed=True)], "s",
              "Interpolated between the edges of buckets; an edge lies exactly at the target (vLLM 0.32 and newer)."),
        Panel("Attainment and objective",
              [Query(_recorded(rules.ATTAINMENT)),
               Query(_figure("attainment_low"), "proven {{serving}}/{{pool}}"),
               Query(f"{_figure('slo_ttft_percentile')} / 100", "objective {{serving}}/{{pool}}", dashed=True)], "percentunit",
              "Proven: the lower bound (95 %) by the operator's own reading.", most=1),
        Panel("Burn of the error budget",
              [Query(f"{_recorded(rules.missed(window))} / on ({POOL}) {_recorded(rules.ALLOWED)}", f"{name} {{{{serving}}}}/{{{{pool}}}}")
               for window, name in ((300, "5m"), (3600, "1h"), (21600, "6h"))], "short",
              "1: exactly what the objective allows. Alerts are at 14.4, 6, 3 and 1."),
        Panel("Requests per second",
              [Query(_rate(f"{TTFT}_count"), "answered {{serving}}/{{pool}}"),
               Query(_rate("vllm:admission_rejections_total"), "refused {{serving}}/{{pool}}"),
               Query(_rate("vllm:request_success_total", ',finished_reason=~"error|abort"'), "failed {{serving}}/{{pool}}")], "reqps"),
        Panel("TTFT p50, p95, p99",
              [Query(f"histogram_quantile({share}, {_rate(f'{TTFT}_bucket', '', f'{POOL}, le')})", f"p{name} {{{{serving}}}}/{{{{pool}}}}")
               for share, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"))], "s"),
        Panel("Time between tokens, p95", [Query(_p95("vllm:inter_token_latency_seconds"))], "s",
              "A burst of media in a step makes every running answer wait."),
    )  # fmt: skip


def _demand() -> Row:
    by_term = f"{POOL}, term"
    return "Demand", (
        Panel("Work by modality", [Query(_figure("work", by=f"{POOL}, modality"), "{{modality}} {{serving}}/{{pool}}")], "short",
              "Answered work in engine-seconds per second: 1 keeps one engine at its operating point. Media: encoding, and their prompt tokens.",
              stacked=True),
        Panel("Demand and what the engines carry",
              [Query(_term("fast"), "half a minute {{serving}}/{{pool}}"),
               Query(_term("level"), "five minutes {{serving}}/{{pool}}"),
               Query(f"{_term('level')} + {_term('headroom')}",
                     "with headroom {{serving}}/{{pool}}"),
               Query(f"{_term('capacity')} * {_figure('ready_replicas')}",
                     "planned for {{serving}}/{{pool}}", dashed=True)], "short",
              "Engines are added where the demand, or its level with headroom, is above what is planned for."),
        Panel("Utilisation", [Query(_recorded(rules.UTILISATION))], "percentunit",
              "100 %: the operating point, past which TTFT rises without limit."),
        Panel("Media per request", [Query(_term("media_share"))], "short", width=12),
        Panel("Terms of the last decision",
              [Query(_figure("scaling_term", ',term!="cold_start"', by_term), "{{term}} {{serving}}/{{pool}}")], "short",
              "As `gemma-operator explain` names them.", width=12),
    )  # fmt: skip


def _replicas() -> Row:
    shown = ("desired", "wanted", "ready", "pending", "lent", "away")
    limits = ("min", "max")
    return "Replicas", (
        Panel("Engines",
              [*(Query(_figure(f"{name}_replicas"), f"{name} {{{{serving}}}}/{{{{pool}}}}") for name in shown),
               *(Query(_figure(f"{name}_replicas"), f"{name} {{{{serving}}}}/{{{{pool}}}}", dashed=True) for name in limits)],
              "short", "Wanted: what the demand asks for, before bounds and budget.", width=12),
        Panel("Reason of the last decision",
              [Query(f"{_figure('decision_reason', by=f'{POOL}, reason')} == 1", "{{reason}} {{serving}}/{{pool}}")], "short",
              "docs/autoscaling.md explains each.", "state-timeline", 12),
        Panel("Cold start", [Query(_figure("cold_start_seconds"))], "s", "Creation to Ready, mean of the engines that are Ready."),
        Panel("GPUs and budget",
              [Query(_figure("gpus"), "{{serving}}/{{pool}}"),
               Query('max by (namespace, serving) (gemma_operator_gpu_budget{namespace=~"$namespace",serving=~"$serving"})',
                     "budget {{serving}}", dashed=True)], "short", stacked=True),
        Panel("Pods that no node has room for", [Query(_figure("unschedulable_replicas"))], "short"),
    )  # fmt: skip


def _engines() -> Row:
    pod = f"{POOL}, pod"
    return "Engines", (
        Panel("KV cache", [Query(f"max by ({pod}) (vllm:kv_cache_usage_perc{{{CHOSEN}}})", "{{pod}}")], "percentunit", most=1),
        Panel("Queue",
              [Query(_sum("vllm:num_requests_running", by=pod), "running {{pod}}"),
               Query(_sum("vllm:num_requests_waiting", by=pod), "waiting {{pod}}")], "short"),
        Panel("Tokens per second",
              [Query(_rate("vllm:generation_tokens_total"), "generated {{serving}}/{{pool}}"),
               Query(_rate("vllm:prompt_tokens_total"), "prompt {{serving}}/{{pool}}")], "short"),
        Panel("Prefix cache hits",
              [Query(_of(_rate("vllm:prefix_cache_hits_total"), _rate("vllm:prefix_cache_queries_total")))], "percentunit", most=1),
        Panel("Draft tokens accepted (MTP)", [Query(_recorded(rules.MTP_ACCEPTANCE))], "percentunit",
              "Below 30 % drafting costs more than it brings.", most=1),
        Panel("Preemptions", [Query(_rate("vllm:num_preemptions_total"))], "short", "Requests thrown out of a full KV cache."),
    )  # fmt: skip


def _encoder() -> Row:
    return "Encoder (engine image)", (
        Panel("Fill of the encoder's batches",
              [Query(_of(_rate("gemma_engine_encoder_tokens_total"), _rate("gemma_engine_encoder_budget_tokens_total"))),
               Query(_recorded(rules.ENCODER_FILL), "1h {{serving}}/{{pool}}")], "percentunit",
              "Under 30 % for hours: media come too sparsely; share the engines, or take less.", most=1),
        Panel("Images and frames per call",
              [Query(_of(f"({_rate('gemma_engine_encoder_images_total')} + {_rate('gemma_engine_encoder_frames_total')})",
                         _rate("gemma_engine_encoder_calls_total")))], "short"),
        Panel("Encoded per second",
              [Query(_rate("gemma_engine_encoder_images_total"), "images {{serving}}/{{pool}}"),
               Query(_rate("gemma_engine_encoder_frames_total"), "frames {{serving}}/{{pool}}")], "short"),
        Panel("Step time, p95",
              [Query(_p95("gemma_engine_step_seconds", "", f"{POOL}, encoder"), "encoder: {{encoder}} {{serving}}/{{pool}}")], "s",
              "With and without encoder work; the difference is what a running answer waits.", width=12),
        Panel("Fallbacks and halved chunks",
              [Query(_rate("gemma_engine_fallbacks_total"), "vLLM's own encoder {{serving}}/{{pool}}"),
               Query(_rate("gemma_engine_oom_splits_total"), "out of memory {{serving}}/{{pool}}")], "short", width=12),
    )  # fmt: skip


def _batch() -> Row:
    return "Batch", (
        Panel("Backlog, requests", [Query(_figure("backlog_requests"))], "short"),
        Panel("Backlog, engine-seconds", [Query(_figure("backlog_work_seconds"))], "s"),
        Panel("Time until the earliest is due",
              [Query(f"{_figure('backlog_due_timestamp_seconds')} - time()"),
               Query(_figure("deadline_seconds"), "deadline {{serving}}/{{pool}}", dashed=True)], "s"),
    )  # fmt: skip


def _operator() -> Row:
    return "Operator", (
        Panel("Age of the last tick",
              [Query("time() - max by (namespace) (gemma_operator_last_tick_timestamp_seconds and gemma_operator_leading > 0)", "tick")], "s"),
        Panel("Duration of a tick, p95",
              [Query(f"histogram_quantile(0.95, sum by (le) (rate(gemma_operator_tick_seconds_bucket[{WINDOW}])))", "tick")], "s"),
        Panel("Metrics seen",
              [Query(f"{_figure('metrics_state', by=f'{POOL}, state')} == 1", "{{state}} {{serving}}/{{pool}}")], "short", "", "state-timeline"),
        Panel("Findings", [Query(f"sum by (kind) ({_figure('finding', by=f'{POOL}, kind')})", "{{kind}}")], "short",
              "What scaling alone can't mend: the number of pools where it holds.", width=12),
        Panel("Reconciles and writes",
              [Query(f"sum by (result) (rate(gemma_operator_reconciles_total[{WINDOW}]))", "{{result}}"),
               Query(f"sum by (verb, kind) (rate(gemma_operator_writes_total[{WINDOW}]))", "{{verb}} {{kind}}")], "ops",
              "Writes are flat in a steady state.", width=12),
    )  # fmt: skip
