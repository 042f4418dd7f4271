"""Rules, alerts and dashboard: built from code, of metrics that exist, each alert with its runbook."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator import telemetry
from gemma_operator.engine.versions import parse_version
from gemma_operator.simulation.standin.arguments import parse_arguments
from gemma_operator.simulation.standin.metrics import EngineMetrics
from tests.unit.test_figures import decided
from tools.monitoring.__main__ import FILES, dashboard_file, rules_file
from tools.monitoring.alerts import BURNS, MOST_MISSES, groups
from tools.monitoring.dashboard import content
from tools.monitoring.promql import Clock

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
DATA = ROOT / "tests/unit/data"
TARGET = {"namespace", "serving", "pool", "class", "pod", "pod_uid", "instance", "job"}
"""Labels of targets: see the chart's Prometheus configuration and PodMonitors."""
RULES: list[dict[str, Any]] = [rule for group in groups()["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
NAME = r"\b(?:vllm:|gemma_engine_|gemma_operator_|pool:gemma_)\w+(?::\w+)*"


def exposed(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels


def standin() -> str:
    flags = ["--speculative-config", '{"num_speculative_tokens": 2}']
    return EngineMetrics(parse_arguments(flags, parse_version("0.32.0"), batched_encoder=True)).render().decode()


def operator() -> str:
    """What a real decision makes the operator expose, for every gauge of a pool and its serving."""
    everything = dict.fromkeys(telemetry.POOL_GAUGES, 1.0)
    known = decided()
    shown = type(known)({**everything, **known.plain}, known.labelled)
    telemetry.reconciles.labels("ok").inc(0)
    telemetry.writes.labels("apply", "Deployment").inc(0)
    telemetry.pools.show(lambda: {("ns", "chat", "interactive"): shown}, lambda: {("ns", "chat"): 8})
    try:
        return b"".join(telemetry.exposition()).decode()
    finally:
        telemetry.pools.show(dict, dict)


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, set[str]]]:
    """Every metric that exists -> its labels -> their values."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    texts = [(DATA / f"{name}-metrics.txt").read_text() for name in ("vllm-0.32", "gemma-engine")]
    for text in (*texts, standin(), operator()):
        for name, labels in exposed(text):
            found[name].setdefault("", set())
            for label, value in labels.items():
                found[name][label].add(value)
    return found


PANELS: list[dict[str, Any]] = [panel for panel in content()["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(str(rule.get("alert") or rule["record"]), str(rule["expr"])) for rule in RULES]
QUERIES = [(str(panel["title"]), str(target["expr"])) for panel in PANELS for target in panel["targets"]]


def check(expression: str, known: dict[str, dict[str, set[str]]]) -> list[str]:
    """What of an expression's metrics and matchers doesn't exist."""
    wrong = []
    for name, matchers in re.findall(rf"({NAME})(?:\{{([^}}]*)\}})?", expression):
        if name.startswith("pool:"):
            wrong += [] if name in RECORDS else [name]
            continue
        if name not in known:
            wrong.append(name)
            continue
        for label, how, value in re.findall(r'(\w+)(=~|!=|=|!~)"([^"]*)"', matchers):
            if label in TARGET:
                continue
            values = known[name].get(label, set())
            asked = value.split("|") if how == "=~" else [value]
            wrong += [f"{name}{{{label}={one}}}" for one in asked if one not in values]
    return wrong


@pytest.mark.parametrize(("where", "expression"), [*EXPRESSIONS, *QUERIES])
def test_only_metrics_and_labels_that_exist_are_asked_for(
    where: str, expression: str, known: dict[str, dict[str, set[str]]]
) -> None:
    assert re.search(NAME, expression) or "ALERTS" in expression, where
    assert check(expression, known) == []


def test_the_check_sees_what_does_not_exist(known: dict[str, dict[str, set[str]]]) -> None:
    assert check("rate(vllm:time_to_first_token_bucket[5m])", known)
    assert check('vllm:request_success_total{finished_reason="timeout"}', known)
    assert check('gemma_operator_scaling_term{term="quick"}', known)
    assert check("pool:gemma_p96:x", known)


def test_aggregations_are_by_the_labels_of_a_pool_or_of_an_engine() -> None:
    """The engine rank and the model's name are always summed over."""
    by = {tuple(labels.split(", ")) for _, e in EXPRESSIONS for labels in re.findall(r"\bby \(([^)]*)\)", e)}
    pool = ("namespace", "serving", "pool")
    assert by == {pool, (*pool, "le"), (*pool, "pod"), ("namespace",)}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('long', '')}")
def test_an_alert_says_what_where_and_what_to_do(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert set(texts) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    page = ROOT / texts["runbook_url"]
    assert page == RUNBOOKS / f"{rule['alert']}.md"
    content = page.read_text()
    assert content.startswith(f"# {rule['alert']}\n")
    assert re.findall(r"^## (.*)$", content, re.M) == ["Look", "Do"]
    assert len(texts["summary"]) < 150
    assert texts["description"].endswith(".")
    templates = re.findall(r"\{\{(.*?)\}\}", texts["summary"] + texts["description"])
    assert all(re.fullmatch(r" \$(value( \| humanize\w+)?|labels\.\w+) ", one) for one in templates), templates


def test_there_is_a_page_for_each_alert_and_for_no_other() -> None:
    names = {rule["alert"] for rule in ALERTS}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == names
    listed = re.findall(r"^\| \[(\w+)\]", (ROOT / "docs/monitoring.md").read_text(), re.M)
    assert sorted(listed) == sorted(names)


@given(st.floats(50, 99.9))
def test_every_burn_rate_can_fire_for_every_objective(percentile: float) -> None:
    for factor, *_ in BURNS:
        assert min(factor * (1 - percentile / 100), MOST_MISSES) < 1
    usual = [factor * 0.05 for factor, *_ in BURNS]
    assert all(threshold < MOST_MISSES for threshold in usual), "at 95 % the factors are those of the workbook"


def test_what_the_chart_ships_is_what_the_code_builds() -> None:
    assert (FILES / "rules.yaml").read_text() == rules_file()
    assert (FILES / "dashboard.json").read_text() == dashboard_file()
    assert yaml.safe_load(rules_file()) == groups()


def test_panels_lie_side_by_side_and_below_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in content()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in content()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_query_is_of_the_chosen_pools() -> None:
    """But for what is of the whole operator, and for alerts."""
    free = [e for _, e in QUERIES if 'serving=~"$serving"' not in e]
    assert all(re.search("ALERTS|last_tick|tick_seconds|reconciles|writes", e) for e in free)


def test_the_dashboard_has_what_an_operator_on_call_asks_for() -> None:
    asked = " ".join(expression for _, expression in QUERIES)
    figures = (*telemetry.POOL_GAUGES, *telemetry.LABELLED_GAUGES, "gpu_budget")
    shown_otherwise = {"attainment_high", "ttft_p95_seconds", "metrics_missing"}
    assert {name for name in figures if f"gemma_operator_{name}" not in asked} == shown_otherwise
    dashed = [panel["title"] for panel in PANELS if panel["fieldConfig"]["overrides"]]
    assert "TTFT p95 and its target" in dashed


@pytest.mark.parametrize(
    ("seconds", "clock", "text"),
    [(300, Clock(), "5m"), (86400, Clock(), "1d"), (90, Clock(), "90s"), (300, Clock(60), "5s"), (45, Clock(60), "750ms"),
     (259200, Clock(3600), "72s"), (259200, Clock(60, most=20), "20s"), (300, Clock(60, most=20), "5s")],
)  # fmt: skip
def test_durations(seconds: float, clock: Clock, text: str) -> None:
    assert clock(seconds) == text


def test_a_scaled_file_has_other_durations_and_nothing_else() -> None:
    def bare(clock: Clock) -> str:
        return re.sub(
            r"\[\w+\]|for: \S+|> [0-9.e-]+\n", "", json.dumps(groups(clock), indent=1).replace('"for":', "for:")
        )

    short = groups(Clock(60))["groups"][1]["rules"][0]
    assert short["for"] == "2s"
    assert short["labels"]["long"] == "1h", "names stay"
    assert len(bare(Clock(60, most=20)).splitlines()) == len(bare(Clock()).splitlines())
