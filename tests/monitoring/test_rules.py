"""Alerts by promtool: which fire in a state, and that no other does; not on a blip, not without traffic, not twice."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.worlds import BATCH, EDGES, POOL, Engine, Operator, always, between
from tools.monitoring.__main__ import rules_file

HOUR = 60
FIRING = 'count by (alertname, long) (ALERTS{alertstate="firing"})'
FAST, HIGH, SLOW = "GemmaSloBurn 1h", "GemmaSloBurn 6h", "GemmaSloBurn 1d"
DEADLINE = {"deadline_seconds": 3600, "wanted_replicas": 1, "ready_replicas": 1, "max_replicas": 4}


@dataclass(frozen=True)
class Case:
    """A state, and which alerts fire at which minutes (burn rates with their long window), with how many series each."""

    name: str
    things: tuple[Engine | Operator, ...]
    firing: Mapping[int, Mapping[str, int]]


def figure(name: str, minutes: int, alert: str, figures: Mapping[str, Any]) -> Case:
    return Case(name, (Engine(), Operator(figures)), {minutes - 2: {}, minutes + 3: {alert: 1}})


MISSING_ALL = {"good": between(0, 60, 60), "slow": between(60, 10_000, 60)}
CASES = [
    Case("healthy", (Engine(), Operator()), {10: {}, 200: {}}),
    Case("two ranks and two engines are one pool",
         (Engine(), Engine(rank="1"), Engine("p1"), Operator({"ready_replicas": 2})), {200: {}}),
    Case("no traffic", (Engine(good=always(0), tokens=always(0), running=always(0)), Operator()), {200: {}}),
    Case("never had traffic", (Operator({"ready_replicas": 0}),), {200: {}}),
    Case("a blip of five minutes",
         (Engine(good=between(60, 65, 0, 60), slow=between(60, 65, 60)), Operator()),
         {minute: {} for minute in (62, 66, 70, 90, 120, 180)}),
    Case("all requests miss", (Engine(**MISSING_ALL), Operator()),
         {75: {}, 115: {FAST: 1, HIGH: 1}, 140: {FAST: 1, HIGH: 1, SLOW: 1}}),
    Case("misses end", (Engine(good=between(60, 120, 0, 60), slow=between(60, 120, 60)), Operator()),
         {115: {FAST: 1, HIGH: 1}, 155: {SLOW: 1}}),
    Case("8 % miss: no page", (Engine(good=always(55.2), slow=always(4.8)), Operator()), {5 * HOUR: {"GemmaSloBurn 3d": 1}}),
    Case("4 % miss", (Engine(good=always(57.6), slow=always(2.4)), Operator()), {5 * HOUR: {}}),
    Case("an objective so low that nothing burns 14 times as fast",
         (Engine(**MISSING_ALL), Operator({"slo_ttft_percentile": 50})), {75: {}, 121: {FAST: 1}}),
    Case("refused requests", (Engine(good=between(0, 60, 60, 6), refused=between(60, 999, 54)), Operator()),
         {75: {}, 115: {FAST: 1, HIGH: 1}}),
    Case("aborted requests", (Engine(good=between(0, 60, 60, 6), aborted=between(60, 999, 54)), Operator()),
         {75: {}, 115: {FAST: 1, HIGH: 1}}),
    Case("five requests an hour, all late",
         (Engine(good=always(0), slow=lambda m: float(m % 12 == 0)), Operator()), {minute: {} for minute in range(288, 301)}),
    Case("no edge at the target: the operator's verdict",
         (Engine(**MISSING_ALL, edges=("0.1", "0.5", "1.0", "+Inf")), Operator({"attainment_high": between(60, 999, 0.4, 1)})),
         {75: {"GemmaSloMissed": 1}, 200: {"GemmaSloMissed": 1}}),
    Case("misses go on while the operator restarts", (Engine(**MISSING_ALL), Operator(until=110)),
         {114: {FAST: 1, HIGH: 1}, 130: {"GemmaOperatorDown": 1}}),
    Case("an old and a new operator at once", (Engine(**MISSING_ALL), Operator(), Operator(instance="o2")),
         {115: {FAST: 1, HIGH: 1}}),
    Case("a standby beside the operator", (Engine(), Operator(), Operator(instance="o2", base={}, leading=0)), {60: {}}),
    Case("no leader", (Engine(), Operator(leading=0), Operator(instance="o2", base={}, leading=0)),
         {1: {}, 5: {"GemmaNoLeader": 1}}),
    Case("the leader's ticks end, the standby's don't",
         (Engine(), Operator(ticks_until=60), Operator(instance="o2", base={}, leading=0)), {61: {}, 66: {"GemmaOperatorTickOld": 1}}),
    Case("one of two engines is not scraped",
         (Engine(), Engine("p1", until=60), Operator({"ready_replicas": 2})), {62: {}, 75: {"GemmaEnginesNotScraped": 1}}),
    Case("no engine is scraped", (Engine(until=60), Operator()), {62: {}, 75: {"GemmaEnginesNotScraped": 1}}),
    Case("an engine that starts is not missed", (Operator({"ready_replicas": 0, "pending_replicas": 1}),), {60: {}}),
    Case("no operator", (Engine(),), {3: {}, 8: {"GemmaOperatorDown": 1}}),
    Case("the operator is lost", (Engine(), Operator(until=60)), {61: {}, 75: {"GemmaOperatorDown": 1}}),
    Case("ticks end", (Engine(), Operator(ticks_until=60)), {61: {}, 66: {"GemmaOperatorTickOld": 1}}),
    Case("an engine hangs",
         (Engine(good=between(0, 60, 60), tokens=between(0, 60, 600)), Operator()), {61: {}, 67: {"GemmaEngineHung": 1}}),
    Case("an engine is idle",
         (Engine(good=between(0, 60, 60), tokens=between(0, 60, 600), running=between(0, 60, 2)), Operator()), {67: {}}),
    Case("an engine hangs in its first step after it was idle",
         (Engine(good=between(0, 60, 60), tokens=between(0, 60, 600), running=between(0, 60, 2),
                 more={"gemma_engine_unanswered_requests": between(60, 999, 3), "gemma_engine_answered_requests_total": between(0, 60, 60)}),
          Operator()), {61: {}, 67: {"GemmaEngineHung": 1}}),
    Case("an idle engine refuses what comes",
         (Engine(good=between(0, 60, 60), tokens=between(0, 60, 600), running=between(0, 60, 2),
                 more={"gemma_engine_unanswered_requests": between(60, 999, 3), "gemma_engine_answered_requests_total": always(60)}),
          Operator()), {67: {}}),
    Case("one of two hangs",
         (Engine(), Engine("p1", good=between(0, 60, 60), tokens=between(0, 60, 600)), Operator({"ready_replicas": 2})),
         {67: {"GemmaEngineHung": 1}}),
    Case("an engine hangs for two minutes", (Engine(tokens=between(60, 62, 0, 600)), Operator()), {m: {} for m in (62, 64, 67)}),
    Case("above the operating point", (Engine(), Operator({'scaling_term{term="fast"}': 1.2})),
         {8: {}, 13: {"GemmaAboveOperatingPoint": 1}}),
    Case("above it with engines enough", (Engine(), Engine("p1"),
         Operator({'scaling_term{term="fast"}': 1.2, "ready_replicas": 2})), {13: {}}),
    Case("a batch pool at its limit is as it should be",
         (Engine(labels=BATCH, good=always(0), slow=always(60)),
          Operator({'scaling_term{term="fast"}': 2, 'scaling_term{term="operating_point"}': 1,
                    'scaling_term{term="correction"}': 1, "lent_replicas": 0}, BATCH, base=DEADLINE)), {60: {}}),
    Case("sparse media",
         (Engine(more={"gemma_engine_encoder_tokens_total": always(200), "gemma_engine_encoder_budget_tokens_total": always(1000)}),
          Operator()), {4 * HOUR - 2: {}, 4 * HOUR + 5: {"GemmaEncoderFillLow": 1}}),
    Case("dense media",
         (Engine(more={"gemma_engine_encoder_tokens_total": always(400), "gemma_engine_encoder_budget_tokens_total": always(1000)}),
          Operator()), {4 * HOUR + 5: {}}),
    Case("no media",
         (Engine(more={"gemma_engine_encoder_tokens_total": always(0), "gemma_engine_encoder_budget_tokens_total": always(0)}),
          Operator()), {4 * HOUR + 5: {}}),
    Case("drafts are refused",
         (Engine(more={"vllm:spec_decode_num_accepted_tokens_total": always(20), "vllm:spec_decode_num_draft_tokens_total": always(100)}),
          Operator()), {28: {}, 35: {"GemmaMtpAcceptanceLow": 1}}),
    Case("drafts are accepted",
         (Engine(more={"vllm:spec_decode_num_accepted_tokens_total": always(60), "vllm:spec_decode_num_draft_tokens_total": always(100)}),
          Operator()), {60: {}}),
    Case("cold starts twice as long", (Engine(), Operator({"cold_start_seconds": between(600, 9999, 620, 300)})),
         {605: {}, 615: {"GemmaColdStartSlow": 1}}),
    Case("cold starts as long as ever", (Engine(), Operator({"cold_start_seconds": 900})), {300: {}}),
    Case("batch work needs more engines",
         (Engine(labels=BATCH), Operator({"wanted_replicas": 3}, BATCH, base=DEADLINE)), {8: {}, 13: {"GemmaBatchDeadlineAtRisk": 1}}),
    Case("batch work is overdue",
         (Engine(labels=BATCH), Operator({"backlog_due_timestamp_seconds": 3600}, BATCH, base=DEADLINE)),
         {65: {}, 75: {"GemmaBatchDeadlineAtRisk": 1}}),
    Case("batch work is in time",
         (Engine(labels=BATCH), Operator({"backlog_due_timestamp_seconds": lambda m: 60.0 * m + 900}, BATCH, base=DEADLINE)), {75: {}}),
    figure("budget spent", 15, "GemmaGpuBudgetExhausted", {'decision_reason{reason="BudgetSpent"}': 1}),
    figure("at the maximum", 15, "GemmaAtMaximum", {"wanted_replicas": 6}),
    figure("no node", 15, "GemmaNoCapacity", {"unschedulable_replicas": 2}),
    figure("profile stale", 60, "GemmaProfileStale", {'finding{kind="ProfileStale"}': 1}),
    figure("infeasible", 5, "GemmaSloInfeasible", {'finding{kind="SloInfeasible"}': 1}),
    figure("metrics missing", 5, "GemmaMetricsMissing", {"metrics_missing": 1}),
]  # fmt: skip


def _labels(name: str) -> str:
    alert, _, long = name.partition(" ")
    return f'{{alertname="{alert}"{f", long={chr(34)}{long}{chr(34)}" if long else ""}}}'


def run(promtool: Path, folder: Path, test: Mapping[str, Any], minutes: int) -> str:
    """What promtool says; empty where all is as expected."""
    (folder / "rules.yaml").write_text(rules_file())
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [{"interval": "1m", **test}]}
    path = folder / f"test-{minutes}.yaml"
    path.write_text(yaml.safe_dump(content, width=10**9))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def series(things: tuple[Engine | Operator, ...], minutes: int) -> list[dict[str, str]]:
    found: dict[str, str] = {}
    for thing in things:
        found |= thing.series(minutes)
    return [{"series": name, "values": values} for name, values in found.items()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_fires(promtool: Path, tmp_path: Path, case: Case) -> None:
    minutes = max(case.firing) + 1
    expected = [
        {
            "expr": FIRING,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": _labels(name), "value": count} for name, count in alerts.items()],
        }
        for minute, alerts in case.firing.items()
    ]
    test = {"input_series": series(case.things, minutes), "promql_expr_test": expected}
    assert run(promtool, tmp_path, test, minutes) == ""


def test_every_alert_fires_in_some_state() -> None:
    rules = yaml.safe_load(rules_file())["groups"][1]["rules"]
    fired = {name.partition(" ")[0] for case in CASES for alerts in case.firing.values() for name in alerts}
    assert {rule["alert"] for rule in rules} == fired


@pytest.mark.parametrize(
    ("target", "edges", "share"),
    [
        (0.3, EDGES, 0.5),
        (1, EDGES, 0.0),
        (1, ("0.3", "1", "+Inf"), 0.0),
        (0.5, EDGES, 0.5),
        (0.4, EDGES, None),
    ],
)
def test_misses_are_those_over_the_edge_at_the_target(
    promtool: Path, tmp_path: Path, target: float, edges: tuple[str, ...], share: float | None
) -> None:
    """However the edge is written: vLLM and Prometheus 3 write 1.0 where others write 1."""
    engine = Engine(good=always(60), slow=always(60), edges=edges)
    things = (engine, Operator({"slo_ttft_target_seconds": target}))
    labels = ", ".join(f'{key}="{value}"' for key, value in POOL.items())
    samples = [] if share is None else [{"labels": f"{{{labels}}}", "value": share}]
    expected = [
        {
            "expr": "round(sum by (namespace, serving, pool) (pool:gemma_ttft_miss:ratio_rate5m), 0.001)",
            "eval_time": "20m",
            "exp_samples": samples,
        }
    ]
    assert run(promtool, tmp_path, {"input_series": series(things, 21), "promql_expr_test": expected}, 21) == ""


def test_the_words_of_an_alert(promtool: Path, tmp_path: Path) -> None:
    expected = {
        "exp_labels": {**POOL, "pod": "p0", "severity": "critical"},
        "exp_annotations": {
            "summary": "Engine p0 has requests and brings no token forth",
            "description": "Pool interactive of GemmaServing ns/chat: 2 requests are in engine p0, and for 3 minutes nothing came of them.",
            "runbook_url": "docs/runbooks/GemmaEngineHung.md",
        },
    }
    things = (Engine(good=between(0, 60, 60), tokens=between(0, 60, 600)), Operator())
    test = {
        "input_series": series(things, 71),
        "alert_rule_test": [{"eval_time": "70m", "alertname": "GemmaEngineHung", "exp_alerts": [expected]}],
    }
    assert run(promtool, tmp_path, test, 71) == ""


def test_the_rules_are_accepted(promtool: Path, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules_file())
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
