"""Fields of a Pod against the real API server: what it refuses at apply, and that it stores them as we spell them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from kubernetes import config

from gemma_operator.api.kubernetes import TYPES, canonical, checked, node_at
from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.cluster import Cluster, Refused
from gemma_operator.desired import Defaults, desired
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.plan import in_place
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tests.support.pod_values import samples, value
from tools.cluster.control_plane import ControlPlane

FIELDS = [
    (owner, field)
    for owner in ("PodSpec", "Container")
    for field in TYPES[owner]["properties"]
    if (owner, field) not in (("PodSpec", "containers"), ("Container", "name"))
]
MODEL = {"id": "google/gemma-4-E4B-it"}
_NAMES = ("alpha", "beta-2", "c3")


def deployment(template: dict[str, Any]) -> dict[str, Any]:
    """A Deployment around a Pod template."""
    labels = {"app": "x"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, **template}},
    }


def pod_with(owner: str, field: str, given: Any) -> dict[str, Any] | None:
    """A Deployment with one field of its Pod or container set; None where we refuse the value."""
    container = {"name": "engine", "image": "i"}
    whole = {field: given} if owner == "PodSpec" else {**container, field: given}
    try:
        spelled = canonical({"$ref": owner}, checked({"$ref": owner}, whole))
    except ValueError:
        return None
    spec: dict[str, Any] = {"containers": [container], **spelled} if owner == "PodSpec" else {"containers": [spelled]}
    # What the field speaks of must exist in the Pod.
    if field == "volumeMounts":
        spec["volumes"] = [{"name": name, "emptyDir": {}} for name in _NAMES]
    if field == "volumeDevices":
        spec["volumes"] = [{"name": name, "persistentVolumeClaim": {"claimName": "x"}} for name in _NAMES]
    if field == "restartPolicyRules":
        spec["containers"][0]["restartPolicy"] = "Never"
    return deployment({"spec": spec})


async def _dry_run(cluster: Cluster, body: dict[str, Any]) -> tuple[str, str]:
    try:
        stored = await cluster.apply(body, dry_run=True)
    except Refused as error:
        return "refused", str(error)
    return ("stored as it is", "") if in_place(body, stored) else ("stored otherwise", f"{body}\n  stored: {stored}")


def dry_run(plane: ControlPlane, bodies: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What becomes of each body when it is applied as the operator does it: the outcome, and its detail."""

    async def run() -> list[tuple[str, str]]:
        cluster = Cluster(config.new_client_from_config(str(plane.kubeconfig)))
        return await asyncio.gather(*(_dry_run(cluster, body) for body in bodies))

    return asyncio.run(run())


def test_every_field_of_a_pod_is_stored_as_we_spell_it(plane: ControlPlane) -> None:
    """Else a Deployment would be written on every pass (practice.md A18)."""
    cases = [
        (f"{owner}.{field}", body)
        for owner, field in FIELDS
        for given in samples(value(node_at(f"{owner}.{field}"), owner, field), 15)
        if (body := pod_with(owner, field, given))
    ]
    found = dry_run(plane, [body for _, body in cases])
    otherwise = [
        f"{kind}: {detail}"
        for (kind, _), (outcome, detail) in zip(cases, found, strict=True)
        if outcome == "stored otherwise"
    ]
    assert not otherwise, "\n".join(otherwise[:10])
    stored = Counter(kind for (kind, _), (outcome, _) in zip(cases, found, strict=True) if outcome == "stored as it is")
    print(f"{stored.total()} of {len(cases)} values stored, by field: {dict(stored)}")
    assert stored.total() >= 200
    assert not [
        kind
        for kind in (f"{owner}.{field}" for owner, field in FIELDS)
        if not stored[kind] and kind != "PodSpec.overhead"
    ]


def overlaid(overlay: Any) -> dict[str, Any] | None:
    """The Deployment of a pool with an overlay on its Pod template; None where we refuse it."""
    spec = {"model": MODEL, "pools": {"batch": {"podTemplate": {"spec": overlay}}}}
    try:
        children = desired(
            parse({"metadata": {"name": "chat"}, "spec": spec}), Defaults("vllm/vllm-openai:v0.32.0")
        ).children
    except (InvalidServing, RefusedSpec):
        return None
    return next(child for child in children if child["kind"] == "Deployment")


def test_a_template_with_an_overlay_is_stored_as_we_spell_it(plane: ControlPlane) -> None:
    bodies = [body for overlay in samples(value({"$ref": "PodSpec"}), 200) if (body := overlaid(overlay))]
    found = dry_run(plane, bodies)
    assert not [detail for outcome, detail in found if outcome == "stored otherwise"]
    assert sum(outcome == "stored as it is" for outcome, _ in found) >= 20


def serving(**pool: Any) -> dict[str, Any]:
    """A GemmaServing with one pool."""
    return {
        "apiVersion": "gemmaserving.dev/v1alpha1",
        "kind": "GemmaServing",
        "metadata": {"name": "chat"},
        "spec": {"model": MODEL, "pools": {"batch": pool}},
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tolerations": [{"effct": "NoSchedule"}]}, 'unknown field "spec.pools.batch.tolerations[0].effct"'),
    (
        {"tolerations": [{"tolerationSeconds": "5"}]},
        "spec.pools.batch.tolerations[0].tolerationSeconds in body must be of type integer",
    ),
    (
        {"tolerations": [{"effect": "NoScedule"}]},
        'spec.pools.batch.tolerations[0].effect: Unsupported value: "NoScedule"',
    ),
    (
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
        "spec.pools.batch.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value",
    ),
    ({"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1 Gi"}}]}, "spec.pools.batch.volumes[0].emptyDir.sizeLimit"),
    ({"volumes": [{"name": "a"}, {"name": "a"}]}, "volumes[1]: Duplicate value"),
    ({"startupProbe": {"httpGet": {"prt": 1, "port": 1}}}, 'unknown field "spec.pools.batch.startupProbe.httpGet.prt"'),
    ({"sidecars": [{"name": "a", "imag": "b"}]}, 'unknown field "spec.pools.batch.sidecars[0].imag"'),
    (
        {"podTemplate": {"spec": {"restartPolicy": "Never"}}},
        'unknown field "spec.pools.batch.podTemplate.spec.restartPolicy"',
    ),
]


@pytest.mark.parametrize(("pool", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_kubectl_apply_refuses_a_fault_by_its_path(kube: Kube, pool: dict[str, Any], text: str) -> None:
    assert text in kube.refusal(serving(**pool))


TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h200", "b200"]}], "matchFields": []}
POOL: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": TERM}],
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {}}}
            ]
        },
    },
    "tolerations": [{"operator": "Exists", "effect": ""}, {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    "volumes": [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1024Mi"}}}}}},
        {"name": "empty", "emptyDir": {}},
    ],
    "volumeMounts": [{"name": "empty", "mountPath": "/a"}, {"name": "empty", "mountPath": "/b", "readOnly": False}],
    "startupProbe": {"httpGet": {"path": "/health", "port": "http"}},
    "podTemplate": {
        "metadata": {"labels": {"queue": ""}},
        "spec": {
            "securityContext": {"$patch": "replace", "runAsNonRoot": True},
            "containers": [{"name": "engine", "lifecycle": {"preStop": {"$patch": "delete"}}}],
        },
    },
}  # fmt: skip


def test_what_is_right_is_kept_as_it_is_written(kube: Kube) -> None:
    kube.apply(serving(**POOL))
    stored = kube.get("gsv", "chat")
    assert stored is not None
    assert stored["spec"]["pools"]["batch"] == POOL


def test_kubectl_explains_every_level(kube: Kube) -> None:
    text = kube.run("explain", "gsv.spec.pools", "--recursive").stdout
    for field in (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "volumeClaimTemplate",
        "secretKeyRef",
        "podTemplate",
    ):
        assert field in text


def test_a_misspelt_field_of_a_map_that_takes_directives_is_told_in_the_status(kube: Kube, operator: Operator) -> None:
    """The CRD can't know these maps' fields: it must not have one that is called `$patch` (decision 0005)."""
    kube.apply(serving(podTemplate={"spec": {"containers": [{"name": "engine", "env": [{"nme": "A", "name": "B"}]}]}}))
    refused = eventually(
        "the status tells it",
        lambda: (c := condition(kube.get("gsv", "chat"), "Valid")).get("status") == "False" and c,
    )
    assert "pools.batch.podTemplate.spec.containers[0].env[0].nme" in refused["message"]
