"""Wrong values are refused with a message that names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART


@pytest.mark.gitops("A5")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("replicaCount=4", ["replicaCount", "maximum", "3"]),
        ("replicas=1", ["replicas", "not allowed"]),
        ("image.name=x", ["image", "name", "not allowed"]),
        ("image.tag=1", ["image/tag", "string"]),
        ("image.digest=sha256:abc", ["image/digest", "sha256:"]),
        ("image.pullPolicy=Sometimes", ["pullPolicy", "Always", "IfNotPresent", "Never"]),
        ("engine.image.tag=", ["vllm/vllm-openai", "neither a tag nor a digest"]),
        ("log.level=verbose", ["log/level", "debug", "warning"]),
        ("log.format=xml", ["log/format", "json", "plain"]),
        ("watchNamespaces={A_b}", ["watchNamespaces/0", "A_b"]),
        ("watchNamespaces=team-a", ["watchNamespaces", "array"]),
        ("metrics.prometheusUrl=prometheus:9090", ["metrics/prometheusUrl", "https?"]),
        ("scaling.tickSeconds=0", ["scaling/tickSeconds", "minimum"]),
        ("prometheus.scrapeInterval=1m", ["prometheus/scrapeInterval", "1m"]),
        ("prometheus.retention=long", ["prometheus/retention", "long"]),
        ("prometheus.enabled=yes", ["prometheus/enabled", "boolean"]),
        (
            "prometheus.enabled=true,metrics.prometheusUrl=http://p:9090",
            ["metrics.prometheusUrl", "http://p:9090", "prometheus.enabled=false"],
        ),
        ("metrics.source=prometheus", ["metrics.source", "metrics.prometheusUrl", "prometheus.enabled=true"]),
        ("priorityClasses.batch.value=2000000000", ["priorityClasses/batch/value", "maximum"]),
        ("fullnameOverride=Bad_Name", ["fullnameOverride", "Bad_Name"]),
        ("extraEnv[0].name=GEMMA_LOG_LEVEL,extraEnv[0].value=x", ["GEMMA_LOG_LEVEL", "drop it from extraEnv"]),
        ("extraEnv[0].value=x", ["extraEnv/0", "name"]),
        ("monitoring.renderMode=never", ["monitoring/renderMode", "skipIfMissing", "failIfMissing"]),
        ("namespaceOverride=A_b", ["namespaceOverride", "A_b"]),
        ("networkPolicy.apiServerPorts={70000}", ["networkPolicy/apiServerPorts/0", "maximum"]),
        ("networkPolicy.metricsFrom[0].namespace=x", ["networkPolicy/metricsFrom/0", "namespace", "not allowed"]),
        ("rbac.aggregateClusterRoles=yes", ["rbac/aggregateClusterRoles", "boolean"]),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Any, settings: str, words: list[str]) -> None:
    message = helm.refusal("--set", settings)
    assert [word for word in words if word not in message] == [], message


def test_a_null_is_taken_or_its_key_is_named(helm: Any) -> None:
    """`metrics:` with nothing behind it drops the key and all its defaults; a template would end in a nil pointer."""
    unclear = {}
    for key in keys(yaml.safe_load((CHART / "values.yaml").read_text())):
        done = helm.run("template", "r", CHART, "--set", f"{key}=null")
        if done.returncode and not any(
            word in done.stderr for word in (f"'{key.split('.')[-1]}'", "set one of the two")
        ):
            unclear[key] = done.stderr
    assert unclear == {}


def keys(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield above + key
        if isinstance(value, dict):
            yield from keys(value, f"{above}{key}.")


def test_an_emptied_list_of_namespaces_means_all(helm: Any) -> None:
    """`watchNamespaces:` with nothing behind it is null, for which Helm takes no default."""
    assert helm.text("--set", "watchNamespaces=null,prometheus.enabled=true") == helm.text(
        "--set", "prometheus.enabled=true"
    )


def test_a_namespace_of_digits_stays_a_name(helm: Any) -> None:
    on = ("--set", "networkPolicy.enabled=true,prometheus.enabled=true,replicaCount=2")
    manifests = helm.render(*on, "--set-string", "watchNamespaces={2024,1e3},namespaceOverride=007")
    assert {m["metadata"].get("namespace") for m in manifests} - {None} == {"2024", "1e3", "007"}
    subjects = [subject for m in manifests for subject in m.get("subjects", [])]
    assert {subject["namespace"] for subject in subjects} == {"007"}


@pytest.mark.gitops("A20")
def test_an_old_kubernetes_is_refused(helm: Any) -> None:
    assert ">=1.30.0-0" in helm.refusal("--kube-version", "1.29.9")
    helm.text("--kube-version", "v1.30.4-gke.1")
