"""The operator's metrics as Prometheus reads them."""

from __future__ import annotations

import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator import telemetry
from tests.unit.test_figures import decided

POOL = {"namespace": "ns", "serving": "chat", "pool": "interactive"}


@pytest.fixture
def shown() -> dict[str, Metric]:
    """Two pools' figures, read over HTTP."""
    known = replace(decided(), plain={"gpus": 2.0, "ttft_p95_seconds": 1e-7})
    batch = replace(known, plain={"gpus": 3.0}, labelled={})
    telemetry.pools.show(
        lambda: {("ns", "chat", "interactive"): known, ("ns", "chat", "batch"): batch}, lambda: {("ns", "chat"): 8}
    )
    server = telemetry.serve(0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        telemetry.pools.show(dict, dict)
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "Prometheus wants the lines of a metric together"
    return {family.name: family for family in families}


def test_each_figure_of_a_pool_is_a_gauge_with_its_value(shown: dict[str, Metric]) -> None:
    known = decided()
    gpus = shown["gemma_operator_gpus"]
    assert (gpus.type, gpus.documentation) == ("gauge", telemetry.POOL_GAUGES["gpus"])
    assert {sample.labels["pool"]: sample.value for sample in gpus.samples} == {"interactive": 2, "batch": 3}
    (p95,) = shown["gemma_operator_ttft_p95_seconds"].samples
    assert (p95.labels, p95.value) == (POOL, 1e-7)
    for name, (label, text) in telemetry.LABELLED_GAUGES.items():
        family = shown[f"gemma_operator_{name}"]
        assert (family.type, family.documentation) == ("gauge", text)
        assert [(s.labels, s.value) for s in family.samples] == [
            ({**POOL, label: value}, number) for value, number in known.labelled[name].items()
        ]


def test_budgets_and_the_operators_own_metrics_stand_beside_them(shown: dict[str, Metric]) -> None:
    (budget,) = shown["gemma_operator_gpu_budget"].samples
    assert (budget.labels, budget.value) == ({"namespace": "ns", "serving": "chat"}, 8)
    assert shown["gemma_operator_tick_seconds"].type == "histogram"
    assert shown["gemma_operator_reconciles"].type == "counter"
