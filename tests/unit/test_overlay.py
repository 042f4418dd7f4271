"""A pool's podTemplate over the Pod template that the operator renders."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.api.kubernetes import canonical, checked, node_at
from gemma_operator.desired.overlay import merge
from tests.support.pod_values import value

TEMPLATE: dict[str, Any] = {
    "metadata": {
        "labels": {"app.kubernetes.io/name": "gemma-engine", "gemmaserving.dev/serving": "a", "team": "x"},
        "annotations": {"prometheus.io/scrape": "true"},
    },
    "spec": {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 50,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 2000},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            {"name": "cache", "emptyDir": {}},
        ],
        "containers": [
            {
                "name": "engine",
                "image": "vllm/vllm-openai:v0.32.0",
                "args": ["--model", "m"],
                "env": [
                    {"name": "HOME", "value": "/cache"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
                "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": "/cache"}],
            },
            {"name": "proxy", "image": "envoy"},
        ],
    },
}


def engine(**fields: Any) -> dict[str, Any]:
    """An overlay on the engine's container."""
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def pod(**fields: Any) -> dict[str, Any]:
    """An overlay on the Pod."""
    return {"spec": fields}


def at(template: Any, path: str) -> Any:
    """The value at a path such as spec.volumes.1; None where nothing is there."""
    for part in path.split("."):
        entries = dict(enumerate(template)) if isinstance(template, list) else template or {}
        template = entries.get(int(part) if part.isdigit() else part)
    return template


ENGINE = "spec.containers.0"
MERGED = [
    ("an empty overlay changes nothing", {}, "", TEMPLATE),
    ("a field of its own", pod(hostname="h"), "spec.hostname", "h"),
    ("a map is merged", pod(securityContext={"fsGroup": 5}),
     "spec.securityContext", {"runAsNonRoot": True, "runAsUser": 2000, "fsGroup": 5}),
    ("a map is replaced", pod(securityContext={"$patch": "replace", "runAsNonRoot": True}), "spec.securityContext", {"runAsNonRoot": True}),
    ("a map is removed", pod(securityContext={"$patch": "delete"}), "spec.securityContext", None),
    ("a map that isn't there is removed", pod(affinity={"$patch": "delete"}), "spec.affinity", None),
    ("what is new has no directives left", pod(affinity={"$patch": "replace", "nodeAffinity": {"$patch": "replace"}}),
     "spec.affinity", {"nodeAffinity": {}}),
    ("labels are added", {"metadata": {"labels": {"queue": "q"}}}, "metadata.labels.queue", "q"),
    ("an annotation that says the same", {"metadata": {"annotations": {"prometheus.io/scrape": "true"}}}, "metadata", TEMPLATE["metadata"]),
    ("a list without keys is replaced", pod(tolerations=[{"operator": "Exists"}]), "spec.tolerations", [{"operator": "Exists"}]),
    ("a list without keys is emptied", pod(tolerations=[]), "spec.tolerations", None),
    ("an entry is added at the end", pod(volumes=[{"name": "v", "emptyDir": {}}]), "spec.volumes.2", {"name": "v", "emptyDir": {}}),
    ("an entry is removed", pod(volumes=[{"name": "cache", "$patch": "delete"}]), "spec.volumes.1", None),
    ("an entry that isn't there is removed", pod(volumes=[{"name": "other", "$patch": "delete"}]),
     "spec.volumes", TEMPLATE["spec"]["volumes"]),
    ("another source of a volume", pod(volumes=[{"name": "cache", "hostPath": {"path": "/x"}}]),
     "spec.volumes.1", {"name": "cache", "hostPath": {"path": "/x"}}),
    ("the same source is merged", pod(volumes=[{"name": "shm", "emptyDir": {"sizeLimit": "4096Mi"}}]),
     "spec.volumes.0.emptyDir", {"medium": "Memory", "sizeLimit": "4Gi"}),
    ("a value instead of a reference", engine(env=[{"name": "TOKEN", "value": "x"}]),
     f"{ENGINE}.env.1", {"name": "TOKEN", "value": "x"}),
    ("a reference instead of a value", engine(env=[{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
     f"{ENGINE}.env.0", {"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    ("an empty value", engine(env=[{"name": "HOME", "value": ""}]), f"{ENGINE}.env.0", {"name": "HOME"}),
    ("another handler of a probe", engine(readinessProbe={"exec": {"command": ["true"]}}), f"{ENGINE}.readinessProbe",
     {"exec": {"command": ["true"]}, "periodSeconds": 5}),
    ("the same handler is merged", engine(readinessProbe={"httpGet": {"port": "http", "scheme": "HTTPS"}}),
     f"{ENGINE}.readinessProbe.httpGet",
     {"path": "/health", "port": "http", "scheme": "HTTPS"}),
    ("another handler of a hook", engine(lifecycle={"preStop": {"exec": {"command": ["sleep", "5"]}}}),
     f"{ENGINE}.lifecycle.preStop", {"exec": {"command": ["sleep", "5"]}}),
    ("a hook is removed", engine(lifecycle={"preStop": {"$patch": "delete"}}), f"{ENGINE}.lifecycle", {}),
    ("a mount is found by its path", engine(volumeMounts=[{"name": "cache", "mountPath": "/cache", "subPath": "a"}]),
     f"{ENGINE}.volumeMounts.1", {"name": "cache", "mountPath": "/cache", "subPath": "a"}),
    ("a second mount of a volume", engine(volumeMounts=[{"name": "cache", "mountPath": "/b"}]),
     f"{ENGINE}.volumeMounts.2", {"name": "cache", "mountPath": "/b"}),
    ("a port is added", engine(ports=[{"containerPort": 9, "name": "m"}]), f"{ENGINE}.ports.1", {"containerPort": 9, "name": "m"}),
    ("the engine's port as it is", engine(ports=[{"containerPort": 8000}]), f"{ENGINE}.ports", TEMPLATE["spec"]["containers"][0]["ports"]),
    ("the same number for another protocol", engine(ports=[{"containerPort": 8000, "protocol": "UDP"}]),
     f"{ENGINE}.ports.1", {"containerPort": 8000, "protocol": "UDP"}),
    ("a sidecar is added", pod(containers=[{"name": "log", "image": "i"}]), "spec.containers.2", {"name": "log", "image": "i"}),
    ("a sidecar is changed", pod(containers=[{"name": "proxy", "image": "j"}]), "spec.containers.1", {"name": "proxy", "image": "j"}),
    ("a sidecar is removed", pod(containers=[{"name": "proxy", "$patch": "delete"}]), "spec.containers.1", None),
    ("more time to stop", pod(terminationGracePeriodSeconds=51), "spec.terminationGracePeriodSeconds", 51),
    # Engines then share the node's port 8000, and the scheduler keeps them apart; Service and probes work by the Pod's address.
    ("the node's network", pod(hostNetwork=True), "spec.hostNetwork", True),
    # practice.md A13
    ("empty strings mean nothing", pod(runtimeClassName="", priorityClassName=""), "", TEMPLATE),
    ("null means nothing", pod(runtimeClassName=None, securityContext=None), "", TEMPLATE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("overlay", "path", "expected"), [case[1:] for case in MERGED], ids=[case[0] for case in MERGED]
)
def test_the_overlay_is_merged_as_kubernetes_merges(overlay: dict[str, Any], path: str, expected: Any) -> None:
    merged = merge(TEMPLATE, overlay)
    assert (at(merged, path) if path else merged) == expected


REFUSED = [
    (engine(env=[{"name": "HF_TOKEN", "value": "x"}]), ".spec.containers[0].env[0].value: HF_TOKEN is a secret"),
    ({"spec": {"tolerations": [{"effct": "x"}]}}, ".spec.tolerations[0].effct: unknown field; did you mean effect?"),
    ({"metadata": {"labels": {"gemmaserving.dev/serving": "b"}}}, ".metadata.labels['gemmaserving.dev/serving']: it is the operator's"),
    ({"metadata": {"labels": {"gemmaserving.dev/pool": "b"}}}, ".metadata.labels['gemmaserving.dev/pool']: it is the operator's"),
    ({"metadata": {"labels": {"app.kubernetes.io/name": "b"}}}, ".metadata.labels['app.kubernetes.io/name']: it is the operator's"),
    ({"metadata": {"annotations": {"prometheus.io/scrape": "no"}}}, ".metadata.annotations['prometheus.io/scrape']: it is the operator's"),
    ({"metadata": {"labels": {"$patch": "replace"}}}, ".metadata.labels.$patch: not possible here"),
    ({"metadata": {"$patch": "delete"}}, ".metadata.$patch: unknown field"),
    ({"$patch": "replace"}, ".$patch: unknown field"),
    (pod(**{"$patch": "replace"}), ".spec.$patch: unknown field"),
    (pod(restartPolicy="Never"), ".spec.restartPolicy: unknown field"),
    (pod(terminationGracePeriodSeconds=49), ".spec.terminationGracePeriodSeconds: 49 is less than the 50 s"),
    (engine(**{"$patch": "delete"}), ".spec.containers[0].$patch: the container engine can't be replaced or removed"),
    (engine(**{"$patch": "replace"}), ".spec.containers[0].$patch: the container engine can't be replaced or removed"),
    (engine(args=["--port", "1"]), ".spec.containers[0].args: it is rendered for the engine's version; set extraArgs"),
    (engine(command=["sh"]), ".spec.containers[0].command: it is rendered for the engine's version; set engine.command"),
    (engine(image="x"), ".spec.containers[0].image: it is rendered for the engine's version; set engine.image"),
    (engine(resources={"limits": {"nvidia.com/gpu": 8}}), ".spec.containers[0].resources: it is rendered"),
    (engine(ports=[{"containerPort": 8000, "name": "x"}]), ".spec.containers[0].ports[0]: port 8000 is the engine's"),
    (engine(ports=[{"containerPort": 8000, "$patch": "delete"}]), ".spec.containers[0].ports[0]: port 8000 is the engine's"),
    (engine(ports=[{"containerPort": 1, "name": "http"}]), ".spec.containers[0].ports[0].name: http is the name of the engine's own port"),
    (pod(containers=[{"name": "x"}, {"name": "engine", "image": "x"}]), ".spec.containers[1].image: it is rendered"),
    (pod(containers=[{"image": "x"}]), ".spec.containers[0].name: required"),
]  # fmt: skip


@pytest.mark.parametrize(("overlay", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_an_overlay_that_would_break_the_operator_is_refused_by_path(overlay: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^\.") as caught:
        merge(TEMPLATE, overlay)
    assert str(caught.value).startswith(text)


@settings(max_examples=50)
@given(spec=st.data())
def test_merging_keeps_what_we_rely_on_and_leaves_its_input_alone(spec: st.DataObject) -> None:
    before = copy.deepcopy(TEMPLATE)
    overlay = spec.draw(value(node_at("PodTemplateSpec.spec"), "PodTemplateSpec", "spec"))
    overlay.pop("terminationGracePeriodSeconds", None)
    try:
        merged = merge(TEMPLATE, {"spec": overlay})
    except ValueError:
        return
    finally:
        assert before == TEMPLATE
    ours = merged["spec"]["containers"][0]
    assert {key: ours[key] for key in ("name", "image", "args", "ports")} == {
        key: before["spec"]["containers"][0][key] for key in ("name", "image", "args", "ports")
    }
    template = node_at("PodTemplateSpec")
    assert canonical(template, checked(template, merged)) == merged
    assert merge(merged, {"spec": overlay}) == merged
