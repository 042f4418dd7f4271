"""The operator against the real API server, with the rights that the chart gives it."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.desired.names import cache_name
from tests.apiserver.conftest import OPERATOR_USER, await_children, children
from tests.support.kube import Kube, audit, condition, eventually, writes
from tests.support.operator import Operator
from tools.cluster.control_plane import ControlPlane

# The garbage collector looks for new kinds only every 30 s (kube-controller-manager's resync of its graph builder).
COLLECTION_SECONDS = 90
EXAMPLE: dict[str, Any] = yaml.safe_load(Path("examples/quick-start/serving.yaml").read_text())


def serving(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """A serving with two pools, changed by `spec`."""
    return {**EXAMPLE, "metadata": {"name": name}, "spec": {**EXAMPLE["spec"], **spec}}


def engine_args(kube: Kube) -> list[str]:
    """Arguments of the interactive engine."""
    deployment = kube.get("deployment", "demo-interactive")
    assert deployment
    return list(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


def size(kube: Kube) -> int:
    """Engines asked for in the interactive pool."""
    deployment = kube.get("deployment", "demo-interactive")
    assert deployment
    return int(deployment["spec"]["replicas"])


def generations(kube: Kube) -> dict[str, str]:
    """resourceVersion of what the operator writes; its Pods and Deployments' status are the controllers'."""
    found = {f"deployment/{d['metadata']['name']}": str(d["metadata"]["generation"]) for d in kube.list("deployment")}
    return found | {f"service/{s['metadata']['name']}": s["metadata"]["resourceVersion"] for s in kube.list("service")}


def reconciles(operator: Operator) -> float:
    """Reconciles so far, by the operator's own metrics; none while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    return sum(float(value) for value in re.findall(r"^gemma_operator_reconciles_total\{.*\} (\S+)$", text, re.M))


def told_of(kube: Kube) -> list[str]:
    """What the status of the serving says, and its Events, a line each."""
    status = (kube.get("gsv", "demo") or {})["status"]
    pools = (f"{name}: {json.dumps(pool)}" for name, pool in status["pools"].items())
    events = (found["message"] for found in kube.list("events") if found["involvedObject"]["kind"] == "GemmaServing")
    return [*map(json.dumps, status["conditions"]), *pools, *events]


def test_a_serving_becomes_a_deployment_and_a_service_per_pool(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    deployment = kube.get("deployment", "demo-interactive")
    assert deployment
    owner = deployment["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("GemmaServing", "demo", True)
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert '{"audio":0,"image":4,"video":1}' in args
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "gemma-operator-interactive"
    body = eventually(
        "status of generation 1",
        lambda: (
            (o := kube.get("gsv", "demo"))
            and o["status"]["observedGeneration"] == 1
            and condition(o, "Reconciling")
            and o
        ),
    )
    assert condition(body, "Ready")["status"] == "False"
    assert condition(body, "Reconciling")["status"] == "True"
    assert condition(body, "Stalled")["status"] == "False"
    assert body["status"]["pools"]["interactive"]["url"] == f"http://demo-interactive.{kube.namespace}.svc:8000"
    assert "finalizers" not in body["metadata"]
    assert "annotations" not in body["metadata"] or not any("kopf" in a for a in body["metadata"]["annotations"])


def test_drift_is_repaired(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    kube.run("set", "image", "deployment/demo-batch", "engine=evil:1")
    kube.run("scale", "deployment/demo-batch", "--replicas=5")
    kube.run(
        "patch",
        "service",
        "demo-batch",
        "--type=merge",
        "-p",
        '{"spec":{"selector":{"gemmaserving.dev/pool":"other"}}}',
    )

    def repaired() -> bool:
        deployment, service = kube.get("deployment", "demo-batch"), kube.get("service", "demo-batch")
        assert deployment
        assert service
        image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        found = (image, deployment["spec"]["replicas"], service["spec"]["selector"]["gemmaserving.dev/pool"])
        return found == ("vllm/vllm-openai:v0.32.0", 1, "batch")

    eventually("image, fixed size and selector are back", repaired)


def test_a_deleted_child_comes_back(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    kube.run("delete", "deployment/demo-interactive", "service/demo-batch")
    await_children(kube, "demo-interactive", "demo-batch")


def test_a_removed_pool_is_pruned_and_a_removed_field_goes(kube: Kube, operator: Operator) -> None:
    kube.apply(serving(pools={"interactive": {"nodeSelector": {"zone": "a"}}, "batch": {}}))
    await_children(kube, "demo-interactive", "demo-batch")
    kube.apply(serving(pools={"interactive": {}}))
    await_children(kube, "demo-interactive")

    def selector() -> Any:
        deployment = kube.get("deployment", "demo-interactive")
        assert deployment
        return deployment["spec"]["template"]["spec"].get("nodeSelector")

    eventually("nodeSelector is gone", lambda: selector() is None)
    body = eventually(
        "status without the pool", lambda: (o := kube.get("gsv", "demo")) and "batch" not in o["status"]["pools"] and o
    )
    assert set(body["status"]["pools"]) == {"interactive"}


def test_deletion_leaves_nothing(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    kube.run("delete", "gsv", "demo", "--timeout=20s")
    eventually("no child is left", lambda: children(kube) == [], COLLECTION_SECONDS)
    assert kube.get("gsv", "demo") is None


def test_a_second_reconcile_writes_nothing(kube: Kube, operator: Operator, plane: ControlPlane) -> None:
    odd = {"cpu": "0.5", "memory": "1.50Gi"}
    pools = {
        "interactive": {
            "replicas": {"min": 2, "max": 4},
            "resources": {"limits": odd},
            "env": [{"name": "A", "value": ""}],
            "extraArgs": ["--tokenizer", "$(X)"],
        },
        "batch": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "kvCacheDtype": "fp8"},
    }
    kube.apply(serving(pools=pools))
    await_children(kube, "demo-interactive", "demo-batch")

    def is_at_rest() -> bool:
        """All Pods are counted, and what the scaler saw of them is shown: measured values are renewed each 30 s alone."""
        body = kube.get("gsv", "demo") or {}
        pools = body.get("status", {}).get("pools", {}).values()
        decisions = [pool.get("lastDecision", {}).get("record", {}) for pool in pools]
        return (
            condition(body, "MetricsAvailable").get("reason") == "NoEngines"
            and sum(pool.get("pending", 0) for pool in pools) == 3
            and [(decision.get("reason"), decision.get("desired")) for decision in decisions]
            == [("MetricsMissing", pool["desired"]) for pool in pools]
        )

    eventually("the scaler has looked at all there is", is_at_rest, 180)

    moved = []

    def ten_looks_write_nothing() -> bool:
        before, start, shown = writes(plane.audit_log, OPERATOR_USER), reconciles(operator), told_of(kube)
        eventually("ten more reconciles", lambda: reconciles(operator) >= start + 10, 60)
        written = writes(plane.audit_log, OPERATOR_USER)[len(before) :]
        news = set(told_of(kube)) - set(shown)
        assert news or not written, f"written, and nothing is new: {written}"
        moved.extend([*written, *news])
        return not written

    try:
        eventually("ten looks without a write", ten_looks_write_nothing, 60)
    finally:
        print("written before that:", *moved, sep="\n")  # a slow machine is not at rest at once
    assert size(kube) == 2


def test_the_scaler_owns_replicas_of_an_autoscaled_pool(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")

    def managers() -> set[str]:
        deployment = kube.get("deployment", "demo-interactive")
        assert deployment
        fields = deployment["metadata"]["managedFields"]
        return {f["manager"] for f in fields if "f:replicas" in f["fieldsV1"].get("f:spec", {})}

    eventually("the scaler owns spec.replicas", lambda: "gemma-operator-scaler" in managers())
    # A change of the template lets the first writer go of it; the size stays.
    kube.run("scale", "deployment/demo-interactive", "--replicas=3")
    kube.run("patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"pools":{"interactive":{"maxNumSeqs":8}}}}')
    eventually("the new flag is there", lambda: "8" in engine_args(kube))
    eventually("only scalers own spec.replicas", lambda: "gemma-operator" not in managers())
    assert size(kube) == 3
    # A raised floor acts at once, without metrics.
    kube.run(
        "patch",
        "gsv",
        "demo",
        "--type=merge",
        "-p",
        '{"spec":{"pools":{"interactive":{"replicas":{"min":4,"max":6}}}}}',
    )
    eventually("four engines", lambda: size(kube) == 4)


@pytest.mark.parametrize(
    ("kind", "name", "spec"),
    [
        ("Service", "demo-batch", {"ports": [{"port": 1}]}),
        (
            "PersistentVolumeClaim",
            cache_name("demo"),
            {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        ),
    ],
)
def test_a_name_that_is_taken_is_left_alone(
    kube: Kube, operator: Operator, kind: str, name: str, spec: dict[str, Any]
) -> None:
    kube.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    cached = {"id": "google/gemma-4-E4B-it", "cache": {"size": "1Gi", "accessMode": "ReadWriteMany"}}
    kube.apply(serving(model=cached))
    stalled = eventually(
        "it is stalled", lambda: (c := condition(kube.get("gsv", "demo"), "Stalled")).get("status") == "True" and c
    )
    assert stalled["reason"] == "NameConflict"
    assert f"{kind} {name} exists and belongs to somebody else" in stalled["message"]
    assert [*children(kube), *(f"PersistentVolumeClaim/{c['metadata']['name']}" for c in kube.list("pvc"))] == [
        f"{kind}/{name}"
    ]


def test_a_bad_update_leaves_the_last_good_state(kube: Kube, operator: Operator) -> None:
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    before = generations(kube)
    kube.run(
        "patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"engine":{"image":"registry.example/vllm:nightly"}}}'
    )
    stalled = eventually(
        "it is stalled", lambda: (c := condition(kube.get("gsv", "demo"), "Stalled")).get("status") == "True" and c
    )
    assert stalled["reason"] == "UnknownEngineVersion"
    assert "set engine.version" in stalled["message"]
    assert generations(kube) == before
    kube.run("patch", "gsv", "demo", "--type=merge", "-p", '{"spec":{"engine":{"version":"0.32.0"}}}')
    eventually("it goes on", lambda: condition(kube.get("gsv", "demo"), "Stalled").get("status") == "False")


def test_what_the_api_server_refuses_becomes_a_condition(kube: Kube, operator: Operator) -> None:
    bad = {
        "interactive": {
            "topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "DoNotSchedule"}]
        },
        "batch": {},
    }
    kube.apply(serving(pools=bad))
    stalled = eventually(
        "it is stalled", lambda: (c := condition(kube.get("gsv", "demo"), "Stalled")).get("status") == "True" and c
    )
    assert stalled["reason"] == "RefusedByApiServer"
    assert "topologySpreadConstraints" in stalled["message"]
    assert children(kube) == []


@pytest.mark.parametrize(
    "name",
    ["gemma-4.1", "4gemma", "a" * 63, "x." * 100 + "y"],
    ids=["dots", "digit first", "63 characters", "201 characters"],
)
def test_every_legal_name_works(kube: Kube, operator: Operator, name: str) -> None:
    kube.apply(serving(name))
    eventually("two Deployments, two Services and the entry", lambda: len(children(kube)) == 5)
    eventually("status", lambda: condition(kube.get("gsv", name), "Stalled").get("status") == "False")
    kube.run("delete", "deployment", "--all")
    eventually("children come back by their annotation", lambda: len(children(kube)) == 5)


REFUSED = {
    "unknown field": ({"foo": 1}, 'unknown field "spec.foo"'),
    "min above max": (
        {"pools": {"batch": {"replicas": {"min": 3, "max": 2}}}},
        "max is 2, min is 3: replicas.max must be at least replicas.min",
    ),
    "interactive at zero": (
        {"pools": {"interactive": {"replicas": {"min": 0, "max": 2}}}},
        "interactive pool must be at least 1",
    ),
    "pool without a class": (
        {"pools": {"vision": {}}},
        'pools ["vision"]: a pool that is not called interactive or batch needs a class',
    ),
    "capital in a pool's name": ({"pools": {"Batch": {"class": "batch"}}}, "lower-case letters"),
    "no pools": ({"pools": {}}, "at least 1 properties"),
    "empty model id": ({"model": {"id": ""}}, "spec.model.id"),
    "token budget below one video": (
        {"pools": {"interactive": {"maxNumBatchedTokens": 2495}}},
        "at least 2496 while video is on",
    ),
    "33 frames": (
        {"pools": {"batch": {"modalities": {"video": {"count": 1, "frames": 33}}}}},
        "less than or equal to 32",
    ),
    "no quantity": (
        {"pools": {"batch": {"resources": {"limits": {"memory": "lots"}}}}},
        "spec.pools.batch.resources.limits.memory",
    ),
    "no duration": ({"pools": {"batch": {"slo": {"ttft": {"target": "fast"}}}}}, "spec.pools.batch.slo.ttft.target"),
    "a target out of reach": (
        {"pools": {"interactive": {"slo": {"ttft": {"target": "5ms"}}}}},
        "target is 5ms: a latency target is from 10ms to 10m",
    ),
    "fewer GPUs than shards": (
        {"pools": {"batch": {"tensorParallel": 4, "gpus": 2}}},
        "gpus is 2, tensorParallel is 4: it must be tensorParallel x pipelineParallel x dataParallel",
    ),
    "a list for a map": ({"pools": [{"name": "batch"}]}, "spec.pools"),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_wrong_object_is_refused_at_apply_with_the_reason(admin: Kube, case: str) -> None:
    spec, expected = REFUSED[case]
    assert expected in admin.refusal(serving(**spec))


def test_a_pool_without_a_body_has_the_defaults(kube: Kube, operator: Operator) -> None:
    """As Argo CD and Flux send it; kubectl itself drops nulls or refuses them."""
    kube.run("create", "-f", "-", stdin=json.dumps(serving(pools={"interactive": None, "batch": None})))
    await_children(kube, "demo-interactive", "demo-batch")


@pytest.mark.gitops("A14")
def test_the_operator_was_never_forbidden_anything(operator: Operator, plane: ControlPlane) -> None:
    """With only the chart's rights. A namespace that is being deleted takes no Events, which is no matter of rights."""
    denied = [e for e in audit(plane.audit_log, OPERATOR_USER) if e["responseStatus"]["code"] == 403]
    assert [e["requestURI"] for e in denied if "being terminated" not in e["responseStatus"].get("message", "")] == []


def test_a_replace_of_the_object_in_git_makes_nothing_anew(kube: Kube, operator: Operator) -> None:
    """Its annotations and whatever a tool had added are gone then."""
    kube.apply(serving())
    await_children(kube, "demo-interactive", "demo-batch")
    kube.run("annotate", "gsv", "demo", "tool.example.com/added=1")
    kinds = ("deployment", "service", "poddisruptionbudget")

    def made() -> dict[str, tuple[str, int]]:
        found = [child for kind in kinds for child in kube.list(kind)]
        return {
            f"{c['kind']}/{c['metadata']['name']}": (c["metadata"]["uid"], c["metadata"].get("generation", 0))
            for c in found
        }

    eventually("the scaler has taken over", lambda: len(made()) >= 6)
    found = kube.get("gsv", "demo")
    assert found
    ours = [f for f in found["metadata"]["managedFields"] if f["manager"].startswith("gemma-operator")]
    assert [set(f["fieldsV1"]) for f in ours] == [{"f:status"}], "the operator writes no spec, no label, no annotation"
    before, seen = made(), reconciles(operator)
    kube.run("replace", "-f", "-", stdin=json.dumps(serving()))
    eventually("it was looked at again", lambda: reconciles(operator) > seen + 3)
    assert made() == before
