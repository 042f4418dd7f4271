"""The embedded Prometheus and the PodMonitors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml


def prometheus_config(helm: Any, *arguments: str, **options: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(
        helm.one("ConfigMap", "r-gemma-operator-prometheus", *arguments, **options)["data"]["prometheus.yml"]
    )
    return config


@pytest.mark.parametrize("values", ["cluster", "namespaced"])
def test_promtool_accepts_the_prometheus_configuration(helm: Any, promtool: str, values: str, tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(prometheus_config(helm, values=values)))
    shipped = helm.one("ConfigMap", "r-gemma-operator-prometheus", values=values)["data"]["rules.yaml"]
    (tmp_path / "rules.yaml").write_text(shipped)
    done = subprocess.run([promtool, "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_targets_carry_the_labels_that_the_autoscaler_reads(helm: Any) -> None:
    engines = prometheus_config(helm, values="cluster")["scrape_configs"][0]
    targets = {rule["target_label"] for rule in engines["relabel_configs"] if "target_label" in rule}
    assert targets >= {"namespace", "pod", "pod_uid", "serving", "pool", "class", "__address__", "__metrics_path__"}
    assert "metric_relabel_configs" not in engines
    monitor = helm.one("PodMonitor", "r-gemma-operator-engines", values="monitoring")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    # the Prometheus Operator adds namespace and pod
    assert {rule["targetLabel"] for rule in endpoint["relabelings"]} >= {"pod_uid", "serving", "pool", "class"}


def test_discovery_is_limited_to_the_watched_namespaces(helm: Any) -> None:
    (everywhere,) = prometheus_config(helm, values="cluster")["scrape_configs"][0]["kubernetes_sd_configs"]
    (limited,) = prometheus_config(helm, values="namespaced")["scrape_configs"][0]["kubernetes_sd_configs"]
    assert everywhere == {
        "role": "pod",
        "selectors": [{"role": "pod", "label": "app.kubernetes.io/managed-by=gemma-operator"}],
    }
    assert limited == {**everywhere, "namespaces": {"names": ["team-a", "team-b"]}}


@pytest.mark.parametrize(("interval", "timeout"), [("1s", "800ms"), ("5s", "4000ms"), ("60s", "48000ms")])
def test_a_scrape_ends_before_the_next_begins_and_alerts_are_judged_as_often(
    helm: Any, interval: str, timeout: str
) -> None:
    config = prometheus_config(helm, "--set", f"prometheus.scrapeInterval={interval}", values="cluster")
    assert config["global"] == {
        "scrape_interval": interval,
        "scrape_timeout": timeout,
        "evaluation_interval": interval,
    }


@pytest.mark.gitops("A16")
def test_prometheus_restarts_when_its_configuration_changes(helm: Any) -> None:
    def checksum(*arguments: str) -> str:
        template = helm.one("Deployment", "r-gemma-operator-prometheus", *arguments, values="cluster")["spec"][
            "template"
        ]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum("--set", "prometheus.scrapeInterval=7s")
    assert checksum() == checksum("--set", "prometheus.retention=2d")


@pytest.mark.gitops("A17")
def test_monitoring_is_off_by_default(helm: Any) -> None:
    manifests = helm.render()
    assert helm.names(manifests, "Deployment") == {"r-gemma-operator"}
    assert not helm.names(manifests, "ConfigMap", "PodMonitor", "PrometheusRule")


@pytest.mark.gitops("A17")
def test_monitors_carry_the_labels_they_are_selected_by(helm: Any) -> None:
    monitors = [m for m in helm.render(values="monitoring") if m["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    assert all(m["metadata"]["labels"]["release"] == "kube-prometheus-stack" for m in monitors)
    limited = helm.one(
        "PodMonitor", "r-gemma-operator-engines", "--set", "podMonitor.enabled=true", values="namespaced"
    )
    assert limited["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


SERVED = ("--api-versions", "monitoring.coreos.com/v1")


@pytest.mark.gitops("A17")
@pytest.mark.parametrize(
    ("mode", "served", "rendered"),
    [
        ("alwaysRender", False, True),
        ("alwaysRender", True, True),
        ("skipIfMissing", False, False),
        ("skipIfMissing", True, True),
        ("failIfMissing", True, True),
    ],
)
def test_monitors_wait_for_their_api_as_told(helm: Any, mode: str, served: bool, rendered: bool) -> None:
    enabled = f"podMonitor.enabled=true,prometheusRule.enabled=true,monitoring.renderMode={mode}"
    arguments = (*(SERVED if served else ()), "--set", enabled)
    assert bool(helm.names(helm.render(*arguments), "PodMonitor")) == rendered
    assert bool(helm.names(helm.render(*arguments), "PrometheusRule")) == rendered
    assert not helm.names(helm.render(*SERVED, "--set", f"monitoring.renderMode={mode}"), "PodMonitor")


def test_a_missing_api_is_told_if_that_is_wanted(helm: Any) -> None:
    said = helm.refusal("--set", "podMonitor.enabled=true,monitoring.renderMode=failIfMissing")
    assert "podMonitor is enabled" in said
    assert "install the Prometheus Operator's CRDs first" in said


def test_the_rules_of_the_prometheusrule_are_those_of_the_embedded_prometheus(helm: Any) -> None:
    rule = helm.one("PrometheusRule", "r-gemma-operator", values="monitoring")
    assert rule["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    embedded = yaml.safe_load(
        helm.one("ConfigMap", "r-gemma-operator-prometheus", values="cluster")["data"]["rules.yaml"]
    )
    assert rule["spec"]["groups"][0] == embedded["groups"][0]
    for ours, theirs in zip(rule["spec"]["groups"][1]["rules"], embedded["groups"][1]["rules"], strict=True):
        assert ours["expr"] == theirs["expr"]
        assert ours["annotations"]["runbook_url"] == f"https://docs.example.com/runbooks/{ours['alert']}.md"
        assert theirs["annotations"]["runbook_url"] == f"docs/runbooks/{ours['alert']}.md"


def test_the_dashboard_is_found_by_grafanas_sidecar(helm: Any) -> None:
    found = helm.one("ConfigMap", "r-gemma-operator-dashboard", values="monitoring")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Serving"}
    shipped = (Path(__file__).parents[2] / "charts/gemma-operator/files/dashboard.json").read_text()
    assert json.loads(found["data"]["gemma-serving.json"]) == json.loads(shipped)


def test_a_runbook_url_that_is_none_is_refused(helm: Any) -> None:
    said = helm.refusal("--set", "prometheusRule.runbookUrl=runbooks")
    assert "runbookUrl" in said


def test_each_replica_of_the_operator_is_scraped_by_itself(helm: Any) -> None:
    """Only the one that leads knows the pools; through the Service it would be found by chance."""
    job = prometheus_config(helm, values="namespaced")["scrape_configs"][1]
    assert job["honor_labels"] is True
    (discovery,) = job["kubernetes_sd_configs"]
    assert discovery["namespaces"] == {"names": ["system"]}
    (selector,) = discovery["selectors"]
    pod = helm.one("Deployment", "r-gemma-operator", values="namespaced")["spec"]["template"]
    wanted = dict(pair.split("=") for pair in selector["label"].split(","))
    assert wanted.items() <= pod["metadata"]["labels"].items()
    assert wanted["app.kubernetes.io/component"] == "operator"
    (container,) = pod["spec"]["containers"]
    assert "metrics" in {port["name"] for port in container["ports"]}


def test_the_operators_own_labels_win_over_its_targets(helm: Any) -> None:
    """`namespace` is that of the GemmaServing there; as `exported_namespace` it would meet no engine's."""
    monitor = helm.one("PodMonitor", "r-gemma-operator", values="monitoring")
    assert monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True
