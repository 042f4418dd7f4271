"""Alerts: each says what is wrong, and has a page in docs/runbooks that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.monitoring.promql import ENGINES, POOL, Clock, name_of, of_operator
from tools.monitoring.rules import (
    ALLOWED,
    ENCODER_FILL,
    MTP_ACCEPTANCE,
    REQUESTS,
    SCRAPED,
    UTILISATION,
    missed,
    recording,
)  # fmt: skip

RUNBOOKS = "docs/runbooks/"
"""Before the page's name in `runbook_url`; the chart puts prometheusRule.runbookUrl in its place."""
WHERE = "Pool {{ $labels.pool }} of GemmaServing {{ $labels.namespace }}/{{ $labels.serving }}"
BURNS = (
    (14.4, 3600, 300, 120, "critical"),
    (6.0, 21600, 1800, 900, "critical"),
    (3.0, 86400, 7200, 3600, "warning"),
    (1.0, 259200, 21600, 10800, "warning"),
)
"""Factor, long and short window, time that it must last: the pairs of Google's SRE workbook (research/gitops.md 5)."""
MOST_MISSES = 0.9
"""Where the objective is so low that not even 100 % of misses burn that fast, this share of misses counts."""
LEAST_REQUESTS = 0.02
"""Per second: fewer are no traffic to judge an objective by."""
LEAST_FILL = 0.3
"""Of the encoder's batch (seed 003)."""
LEAST_ACCEPTANCE = 0.3
"""Of draft tokens: below it drafting costs more than it brings (research/vllm.md 2)."""
PRODUCTION = Clock()
LEADING = "gemma_operator_leading"
SLOWER = 1.5
"""Times the usual cold start."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; `lasting` is how long its expression must hold, in seconds."""

    name: str
    severity: str
    lasting: float
    expression: str
    summary: str
    description: str
    labels: tuple[tuple[str, str], ...] = ()

    def rule(self, clock: Clock) -> dict[str, Any]:
        """As Prometheus reads it."""
        texts = {"summary": self.summary, "description": self.description, "runbook_url": f"{RUNBOOKS}{self.name}.md"}
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": clock(self.lasting),
            "labels": {"severity": self.severity, **dict(self.labels)},
            "annotations": texts,
        }


def groups(clock: Clock = PRODUCTION) -> dict[str, Any]:
    """A rules file by a clock."""
    alerts = [*_slo(clock), *_engines(clock), *_capacity(clock), *_operator(clock)]
    return {
        "groups": [
            {"name": "gemma-serving.records", "rules": recording(clock)},
            {"name": "gemma-serving.alerts", "rules": [alert.rule(clock) for alert in alerts]},
        ]
    }


def _slo(clock: Clock) -> Iterator[Alert]:
    for factor, long, short, lasting, severity in BURNS:
        threshold = f"on ({POOL}) clamp_max({factor:g} * {ALLOWED}, {MOST_MISSES})"
        yield Alert(
            "GemmaSloBurn", severity, lasting,
            f"{missed(long)} > {threshold}\nand on ({POOL})\n{missed(short)} > {threshold}\n"
            f"and on ({POOL})\n{REQUESTS} > {LEAST_REQUESTS:g}",
            "{{ $value | humanizePercentage }} of the requests of {{ $labels.serving }}/{{ $labels.pool }} miss the TTFT target",
            f"{WHERE} uses up its error budget at least {factor:g} times as fast as its objective allows, "
            f"over {name_of(long)} and over {name_of(short)}. Refused, failed and aborted requests are misses.",
            (("long", name_of(long)), ("short", name_of(short))),
        )  # fmt: skip
    yield Alert(
        "GemmaSloMissed", "warning", 600,
        f"{of_operator('attainment_high')} < {of_operator('slo_ttft_percentile')} / 100",
        "{{ $labels.serving }}/{{ $labels.pool }} misses its objective now",
        f"{WHERE}: at most {{{{ $value | humanizePercentage }}}} of the last requests were within the TTFT target, which is proven to be too few.",
    )  # fmt: skip
    yield Alert(
        "GemmaSloInfeasible", "warning", 300,
        _finding("SloInfeasible"),
        "More engines don't help {{ $labels.serving }}/{{ $labels.pool }} to reach its TTFT target",
        f"{WHERE} misses its target without any queue: each request takes too long by itself.",
    )  # fmt: skip
    yield Alert(
        "GemmaAboveOperatingPoint", "warning", 600,
        f"{UTILISATION} > 1\nand on ({POOL}) {of_operator('slo_ttft_target_seconds')}",
        "{{ $labels.serving }}/{{ $labels.pool }} carries {{ $value | humanizePercentage }} of what its engines can within the target",
        f"{WHERE} is past the knee: from here on TTFT rises without limit, and no more engines have come.",
    )  # fmt: skip


def _engines(clock: Clock) -> Iterator[Alert]:
    window = clock(180)
    flat = [
        f"sum by ({POOL}, pod) (increase(vllm:{tokens}_tokens_total{ENGINES}[{window}])) == 0"
        for tokens in ("generation", "prompt")
    ]
    held = " + ".join(
        f"sum by ({POOL}, pod) (min_over_time(vllm:num_requests_{state}{ENGINES}[{window}]))"
        for state in ("running", "waiting")
    )
    # Of our plugin: vLLM counts a request with its first step, which an engine that was idle may never come to.
    unanswered = f"sum by ({POOL}, pod) (min_over_time(gemma_engine_unanswered_requests{ENGINES}[{window}])) > 0"
    answered = f"sum by ({POOL}, pod) (increase(gemma_engine_answered_requests_total{ENGINES}[{window}])) > 0"
    yield Alert(
        "GemmaEngineHung", "critical", 60,
        f"(\n({held}) > 0\nor on ({POOL}, pod)\n({unanswered} unless on ({POOL}, pod) {answered})\n)\nand on ({POOL}, pod)\n"
        + f"\nand on ({POOL}, pod)\n".join(flat),
        "Engine {{ $labels.pod }} has requests and brings no token forth",
        f"{WHERE}: {{{{ $value }}}} requests are in engine {{{{ $labels.pod }}}}, and for 3 minutes nothing came of them.",
    )  # fmt: skip
    ready = of_operator("ready_replicas")
    yield Alert(
        "GemmaEnginesNotScraped", "warning", 300,
        f"({ready}\n  - on ({POOL})\n  ({SCRAPED} or 0 * {ready})) > 0",
        "Prometheus lacks {{ $value }} engines of {{ $labels.serving }}/{{ $labels.pool }}",
        f"{WHERE}: so many Ready engines have no series in this Prometheus, so that nothing of them can be judged.",
    )  # fmt: skip
    cold = of_operator("cold_start_seconds")
    # The inner aggregation is no series: quantile_over_time needs the raw one, whose old copies max joins.
    usual = f"max by ({POOL}) (quantile_over_time(0.5, gemma_operator_cold_start_seconds[{clock(86400)}]))"
    yield Alert(
        "GemmaColdStartSlow", "info", 600,
        f"{cold} > {SLOWER:g} * {usual}",
        "Engines of {{ $labels.serving }}/{{ $labels.pool }} take {{ $value | humanizeDuration }} to start",
        f"{WHERE}: that is more than {SLOWER:g} times as long as usual in the last day, so that a rise of the load is answered later.",
    )  # fmt: skip
    yield Alert(
        "GemmaEncoderFillLow", "info", 14400,
        f"{ENCODER_FILL} < {LEAST_FILL:g}",
        "The encoder's batches of {{ $labels.serving }}/{{ $labels.pool }} are {{ $value | humanizePercentage }} full",
        f"{WHERE}: images and videos come too sparsely to be encoded together. Share the engines with other traffic, or take fewer or smaller GPUs.",
    )  # fmt: skip
    yield Alert(
        "GemmaMtpAcceptanceLow", "info", 1800,
        f"{MTP_ACCEPTANCE} < {LEAST_ACCEPTANCE:g}",
        "Only {{ $value | humanizePercentage }} of the draft tokens of {{ $labels.serving }}/{{ $labels.pool }} are accepted",
        f"{WHERE}: multi-token prediction costs more than it brings.",
    )  # fmt: skip


def _capacity(clock: Clock) -> Iterator[Alert]:
    wanted = of_operator("wanted_replicas")
    yield Alert(
        "GemmaBatchDeadlineAtRisk", "warning", 600,
        f"({wanted} > {of_operator('ready_replicas')} and on ({POOL}) {of_operator('deadline_seconds')})\n"
        f"or {of_operator('backlog_due_timestamp_seconds')} < time()",
        "Batch work of {{ $labels.serving }}/{{ $labels.pool }} may be finished after its deadline",
        f"{WHERE}: the engines that are Ready don't finish what waits in time, or some of it is overdue.",
    )  # fmt: skip
    yield Alert(
        "GemmaGpuBudgetExhausted", "warning", 900,
        of_operator("decision_reason", '{reason=~"BudgetSpent|OverBudget"}') + " == 1",
        "The GPU budget of {{ $labels.serving }} is too small for {{ $labels.pool }}",
        f"{WHERE} needs engines that spec.gpuBudget doesn't allow.",
    )  # fmt: skip
    yield Alert(
        "GemmaAtMaximum", "warning", 900,
        f"{wanted} > {of_operator('max_replicas')}",
        "{{ $labels.serving }}/{{ $labels.pool }} needs {{ $value }} engines, more than its maximum",
        f"{WHERE} is held at replicas.max, and its load needs more.",
    )  # fmt: skip
    yield Alert(
        "GemmaNoCapacity", "warning", 900,
        f"{of_operator('unschedulable_replicas')} > 0",
        "{{ $value }} engines of {{ $labels.serving }}/{{ $labels.pool }} find no node",
        f"{WHERE}: the cluster has no room for Pods that it needs.",
    )  # fmt: skip
    yield Alert(
        "GemmaProfileStale", "info", 3600,
        _finding("ProfileStale|ProfileWrong"),
        "The capacity profile of {{ $labels.serving }}/{{ $labels.pool }} is not of what runs",
        f"{WHERE} is planned with a profile that was measured with something else, or that the engines contradict.",
    )  # fmt: skip


def _operator(clock: Clock) -> Iterator[Alert]:
    yield Alert(
        "GemmaMetricsMissing", "warning", 300,
        f"{of_operator('metrics_missing')} == 1",
        "The autoscaler does not see {{ $labels.serving }}/{{ $labels.pool }}",
        f"{WHERE}: its metrics are missing or partial. Nothing is lowered, and its size follows no load, until they are back.",
    )  # fmt: skip
    tick = "gemma_operator_last_tick_timestamp_seconds"
    yield Alert(
        "GemmaOperatorDown", "critical", 300,
        f"absent({tick})",
        "No gemma-operator is seen",
        "Prometheus has no metrics of an operator: it is not running, or not scraped. Engines go on serving; nothing is scaled or repaired.",
    )  # fmt: skip
    yield Alert(
        "GemmaOperatorTickOld", "critical", 60,
        # A standby ticks over nothing.
        f"time() - max by (namespace) ({tick} and {LEADING} > 0) > {clock.seconds(120)}",
        "The autoscaler has not decided for {{ $value | humanizeDuration }}",
        "The operator runs, but its ticks don't end: sizes follow no load.",
    )  # fmt: skip

    yield Alert(
        "GemmaNoLeader", "critical", 120,
        f"max by (namespace) ({LEADING}) == 0",
        "No replica of gemma-operator acts",
        "Operators run, and none of them holds the Lease of its scope: nothing is scaled, rolled out or reported.",
    )  # fmt: skip


def _finding(kinds: str) -> str:
    return of_operator("finding", f'{{kind=~"{kinds}"}}') + " == 1"
