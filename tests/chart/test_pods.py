"""The chart's Pods: restricted, replaced one by one, with the environment that the operator reads."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.settings import read_settings


@pytest.mark.gitops("A10")
def test_pods_are_restricted(helm: Any, values: str) -> None:
    specs = helm.pod_specs(values=values)
    assert len(specs) >= 2
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "configMap"} & volume.keys() for volume in spec.get("volumes", []))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}


def test_a_users_security_context_is_merged_over_the_restricted_one(helm: Any) -> None:
    spec = helm.operator(values="monitoring")
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_operator_is_there_before_its_predecessor_goes(helm: Any) -> None:
    (operator,) = helm.deployments()
    assert operator["spec"]["replicas"] == 1
    assert operator["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert not helm.names(helm.render(), "PodDisruptionBudget"), "it would block every drain"


def test_several_replicas_are_not_all_drained_at_once(helm: Any) -> None:
    budget = helm.one("PodDisruptionBudget", "r-gemma-operator", "--set", "replicaCount=2")["spec"]
    (operator,) = helm.deployments("--set", "replicaCount=2")
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == operator["spec"]["selector"]


@pytest.mark.gitops("A16")
def test_selectors_and_templates_do_not_depend_on_the_chart_version(helm: Any) -> None:
    """Selectors are immutable, and a Pod restarts when its template changes."""
    for manifest in helm.deployments(values="cluster"):
        selector = manifest["spec"]["selector"]["matchLabels"]
        assert selector == {
            "app.kubernetes.io/name": "gemma-operator",
            "app.kubernetes.io/instance": "r",
            "app.kubernetes.io/component": "prometheus" if "prometheus" in manifest["metadata"]["name"] else "operator",
        }
        assert manifest["spec"]["template"]["metadata"]["labels"] == selector


def test_services_select_declared_ports(helm: Any) -> None:
    services = [m for m in helm.render(values="cluster") if m["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        (template,) = [
            m["spec"]["template"]
            for m in helm.deployments(values="cluster")
            if m["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
        ]
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_tokens_are_mounted_only_where_the_api_is_called(helm: Any) -> None:
    manifests = helm.render(values="cluster")
    assert all(m["automountServiceAccountToken"] is False for m in manifests if m["kind"] == "ServiceAccount")
    specs = helm.pod_specs(values="cluster")
    mounted = {spec["containers"][0]["name"]: spec["automountServiceAccountToken"] for spec in specs}
    assert mounted == {"operator": True, "prometheus": True, "test": False}


def test_a_values_file_moves_all_pods_and_their_account_says_what_it_is_told(helm: Any) -> None:
    spread = [spec.get("topologySpreadConstraints") for spec in helm.pod_specs(values="restricted")]
    assert len(spread) == 3
    assert all(constraints and constraints[0]["maxSkew"] == 1 for constraints in spread)
    account = helm.one("ServiceAccount", "r-gemma-operator", values="restricted")
    assert account["automountServiceAccountToken"] is True
    placed = {m["metadata"]["namespace"] for m in helm.render(values="restricted") if "namespace" in m["metadata"]}
    assert placed == {"elsewhere"}


def test_the_operators_probes_ask_the_health_port(helm: Any) -> None:
    (container,) = helm.operator()["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"metrics": 8080, "health": 8081}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["args"] == ["run"]
    assert "command" not in container
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]


def test_default_environment(helm: Any) -> None:
    assert helm.operator_env() == {
        "GEMMA_WATCH_NAMESPACES": "",
        "GEMMA_PROMETHEUS_URL": "",
        "GEMMA_PROMETHEUS_TOKEN_FILE": "",
        "GEMMA_PROMETHEUS_CA_FILE": "",
        "GEMMA_PROMETHEUS_SKIP_TLS_VERIFY": "false",
        "GEMMA_METRICS_SOURCE": "",
        "GEMMA_SCALING_TICK_SECONDS": "15",
        "GEMMA_RESYNC_SECONDS": "300",
        "GEMMA_ENGINE_IMAGE": "vllm/vllm-openai:v0.32.0",
        "GEMMA_ENGINE_VERSION": "",
        "GEMMA_ENGINE_COMMAND": "",
        "GEMMA_ENGINE_PLUGIN": "false",
        "GEMMA_TENANTS_MAY": "Code,Placement,Priority,Queries",
        "GEMMA_PRIORITY_CLASS_INTERACTIVE": "r-gemma-operator-interactive",
        "GEMMA_PRIORITY_CLASS_BATCH": "r-gemma-operator-batch",
        "GEMMA_ROUTING": "false",
        "GEMMA_LOG_LEVEL": "info",
        "GEMMA_LOG_FORMAT": "json",
        "GEMMA_OPERATOR_NAME": "r-gemma-operator",
        "GEMMA_METRICS_PORT": "8080",
        "GEMMA_HEALTH_PORT": "8081",
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "POD_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
    }


def test_chart_and_operator_have_the_same_defaults(helm: Any) -> None:
    env = helm.operator_env("--set", "priorityClasses.enabled=false")
    plain = {name: value for name, value in env.items() if isinstance(value, str)}
    assert read_settings(plain) == read_settings({"GEMMA_OPERATOR_NAME": "r-gemma-operator"})


def test_the_operator_understands_the_environment(helm: Any) -> None:
    settings = read_settings(helm.operator_env(values="engine"))
    assert settings.defaults.engine_image == "registry.example.com/team/engine:main"
    assert settings.defaults.engine_version == "0.32.0"
    assert settings.defaults.engine_command == ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert dict(settings.defaults.priority_classes) == {
        "interactive": "r-gemma-operator-interactive",
        "batch": "r-gemma-operator-batch",
    }
    assert settings.log_level == "DEBUG"
    assert not settings.log_json
    assert settings.prometheus_token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_environment_follows_the_values(helm: Any) -> None:
    namespaced = helm.operator_env(values="namespaced")
    assert namespaced["GEMMA_WATCH_NAMESPACES"] == "team-a,team-b"
    assert namespaced["GEMMA_PROMETHEUS_URL"] == "http://r-gemma-operator-prometheus.system.svc:9090"
    assert not {"GEMMA_PRIORITY_CLASS_INTERACTIVE", "GEMMA_PRIORITY_CLASS_BATCH"} & namespaced.keys()
    monitored = helm.operator_env(values="monitoring")
    assert monitored["GEMMA_PROMETHEUS_URL"] == "http://prometheus-operated.monitoring.svc:9090"
    assert monitored["HTTPS_PROXY"] == "http://proxy.example.com:3128"
    assert helm.operator_env("--set", "resyncSeconds=86400")["GEMMA_RESYNC_SECONDS"] == "86400"


@pytest.mark.gitops("A12")
def test_the_registry_override_reaches_every_image(helm: Any) -> None:
    specs = helm.pod_specs(values="airgap")
    used = {container["image"] for spec in specs for container in spec["containers"]}
    assert used | {helm.operator_env(values="airgap")["GEMMA_ENGINE_IMAGE"]} == {
        "registry.example.com:5000/mirror/gemma-serving/operator@sha256:" + "1" * 64,
        "registry.example.com:5000/mirror/vllm/vllm-openai:v0.32.0@sha256:" + "2" * 64,
        "registry.example.com:5000/mirror/prometheus/prometheus:v3.5.0",
    }
    assert all(spec["imagePullSecrets"] == [{"name": "mirror"}] for spec in specs)


@pytest.mark.gitops("A12")
@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ("image.tag=", "gemma-serving/operator:0.2.0"),
        ("image.tag=1.2.3", "gemma-serving/operator:1.2.3"),
        ("image.registry=localhost", "localhost/gemma-serving/operator:0.2.0"),
        ("image.registry=r.example.com:5000/a/", "r.example.com:5000/a/gemma-serving/operator:0.2.0"),
        ("image.tag=1.2.3,image.digest=sha256:" + "0" * 64, "gemma-serving/operator:1.2.3@sha256:" + "0" * 64),
    ],
)
def test_image_references(helm: Any, settings: str, image: str) -> None:
    spec = helm.operator("--set-string", settings)
    assert spec["containers"][0]["image"] == image
