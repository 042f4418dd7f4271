"""The network policies let pass what the product needs, and nothing else, by the rules evaluated; tests/node enforces them."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.desired.names import labels
from tests.chart.conftest import SERVING_CHART, documents
from tests.support.policies import End, passes

CHART_PODS = {"app.kubernetes.io/name": "gemma-operator", "app.kubernetes.io/instance": "r"}
OPERATOR = End("system", {**CHART_PODS, "app.kubernetes.io/component": "operator"}, {"metrics": 8080, "health": 8081})
PROMETHEUS = End("system", {**CHART_PODS, "app.kubernetes.io/component": "prometheus"}, {"http": 9090})
TEST = End("system", {**CHART_PODS, "app.kubernetes.io/component": "test"})
ENGINE = End("team-a", labels("gemma", "interactive"), {"http": 8000})
OTHER_ENGINE = End("team-c", labels("gemma", "batch"), {"http": 8000})
STRANGER = End("other", {"app": "stranger"}, {"http": 8000})
SCRAPER = End("monitoring", {"app": "prometheus"})
GATEWAY = End("gateway", {"app": "gateway"})
CLIENT = End("team-a", {"team": "inference"})
NEIGHBOUR = End("team-a", {"team": "other"})
OUTSIDE = End("")


def policies(helm: Any, *arguments: str, **options: str) -> list[dict[str, Any]]:
    found = helm.render("--set", "networkPolicy.enabled=true", *arguments, **options)
    return [m for m in found if m["kind"] == "NetworkPolicy"]


FLOWS = [
    (OPERATOR, OUTSIDE, 443, True), (OPERATOR, OUTSIDE, 6443, True), (OPERATOR, OUTSIDE, 53, True),
    (OPERATOR, OUTSIDE, 80, False), (OPERATOR, STRANGER, 8000, False),
    (OPERATOR, PROMETHEUS, 9090, True), (PROMETHEUS, OPERATOR, 8080, True), (PROMETHEUS, OUTSIDE, 6443, True),
    (PROMETHEUS, STRANGER, 8000, False), (STRANGER, PROMETHEUS, 9090, False), (TEST, PROMETHEUS, 9090, True),
    (TEST, OPERATOR, 8080, True), (OUTSIDE, OPERATOR, 8081, True), (SCRAPER, OPERATOR, 8080, True),
    (OPERATOR, ENGINE, 8000, True), (PROMETHEUS, ENGINE, 8000, True),
]  # fmt: skip


@pytest.mark.parametrize("values", ["cluster", "namespaced"])
def test_the_operator_and_its_prometheus_reach_what_they_need(helm: Any, values: str) -> None:
    found = policies(helm, values=values)
    assert [(s, t, port) for s, t, port, wanted in FLOWS if passes(found, s, t, port) != wanted] == []
    assert passes(found, OPERATOR, OTHER_ENGINE, 8000) == (values == "cluster"), (
        "team-c isn't watched in namespaced mode"
    )


def test_metrics_are_for_those_who_are_named(helm: Any) -> None:
    peer = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring"
    found = policies(helm, "--set", peer, values="cluster")
    for source, wanted in ((SCRAPER, True), (PROMETHEUS, True), (TEST, True), (STRANGER, False), (ENGINE, False)):
        assert passes(found, source, OPERATOR, 8080) == wanted, source


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://p.m.svc:9090", 9090),
        ("https://p.m.svc", 443),
        ("http://p.m.svc/x", 80),
        ("http://[fd00::1]:9091/p", 9091),
    ],
)
def test_the_users_prometheus_is_reached(helm: Any, url: str, port: int) -> None:
    found = policies(helm, "--set", f"metrics.prometheusUrl={url}")
    assert passes(found, OPERATOR, SCRAPER, port)
    assert not passes(found, OPERATOR, SCRAPER, 9999)


def test_without_policies_there_are_none(helm: Any) -> None:
    assert not helm.names(helm.render(values="cluster"), "NetworkPolicy")


def test_engines_answer_those_who_are_named(helm: Any) -> None:
    rendered = documents(
        helm.ok(
            "template", "r", SERVING_CHART, "--namespace", "team-a", "--values", SERVING_CHART / "ci" / "pools-values.yaml",
            "--set", "networkPolicy.operatorNamespace=system",
        )
    )  # fmt: skip
    found = [m for m in rendered if m["kind"] == "NetworkPolicy"]
    sources = (
        (CLIENT, True),
        (GATEWAY, True),
        (OPERATOR, True),
        (PROMETHEUS, True),
        (NEIGHBOUR, False),
        (STRANGER, False),
    )
    assert [s for s, wanted in sources if passes(found, s, ENGINE, 8000) != wanted] == []
    assert passes(found, ENGINE, OUTSIDE, 443), "models are downloaded"
