"""The Pod of an engine: resources, environment, and every knob that a user may turn."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.desired import Defaults
from gemma_operator.engine.findings import RefusedSpec
from tests.unit.builders import body, serving, wanted


def pod(defaults: Defaults | None = None, pool: str = "interactive", spec: Any = None, **fields: Any) -> dict[str, Any]:
    of = serving({pool: fields}, **(spec or {}))
    found: dict[str, Any] = wanted(of, defaults or Defaults("vllm:v0.32.0"))[0]["spec"]["template"]["spec"]
    return found


def container(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(**fields)["containers"][0]
    return found


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({}, {"nvidia.com/gpu": "1"}),
        ({"tensorParallel": 4}, {"nvidia.com/gpu": "4"}),
        ({"tensorParallel": 2, "dataParallel": 2, "gpus": 4, "gpuResource": "amd.com/gpu"}, {"amd.com/gpu": "4"}),
        ({"gpus": 0}, None),
        ({"gpus": 0, "resources": {"limits": {"cpu": 0.5}}}, {"cpu": "500m"}),
        ({"tensorParallel": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}, {"nvidia.com/gpu": "2"}),
    ],
)
def test_gpus_are_limits(fields: dict[str, Any], limits: dict[str, str] | None) -> None:
    assert container(**fields).get("resources", {}).get("limits") == limits


def test_a_variable_of_the_user_takes_the_place_of_ours() -> None:
    variables = container(env=[{"name": "HOME", "value": "/data"}])["env"]
    assert [variable for variable in variables if variable["name"] == "HOME"] == [{"name": "HOME", "value": "/data"}]


def test_the_token_comes_from_the_secret_and_is_never_read() -> None:
    variables = container(spec={"model": {"id": "m", "tokenSecretRef": {"name": "hub", "key": "hf"}}})["env"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "hf"}}} in variables


@pytest.mark.parametrize(
    ("pool", "drain", "grace"), [("interactive", None, 50), ("batch", None, 140), ("batch", 0, 20)]
)
def test_a_stopped_engine_has_time_to_leave_the_endpoints_to_drain_and_to_exit(
    pool: str, drain: int | None, grace: int
) -> None:
    fields: dict[str, Any] = {} if drain is None else {"drainSeconds": drain}
    found = pod(pool=pool, **fields)
    assert found["terminationGracePeriodSeconds"] == grace
    assert found["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 10


def test_the_priority_class_is_the_users_else_that_of_the_class() -> None:
    defaults = Defaults("vllm:v0.32.0", priority_classes=(("batch", "low"),))
    assert pod(defaults, "batch")["priorityClassName"] == "low"
    assert pod(defaults, "batch", priorityClassName="own")["priorityClassName"] == "own"
    assert "priorityClassName" not in pod(defaults, "interactive")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodeSelector", {"accelerator": "h200"}),
        ("tolerations", [{"operator": "Exists"}]),
        (
            "affinity",
            {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]
                }
            },
        ),
        ("runtimeClassName", "nvidia"),
        ("schedulerName", "volcano"),
        ("serviceAccountName", "weights-reader"),
        ("initContainers", [{"name": "fetch", "image": "tools:1", "args": ["$(X)"]}]),
        ("resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": "h200"}]),
    ],
)
def test_pod_knobs_are_passed_on_as_they_are(field: str, value: Any) -> None:
    assert pod(**{field: value})[field] == value
    assert field not in pod()


@pytest.mark.parametrize("field", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_of_the_user_takes_the_place_of_ours(field: str) -> None:
    """G14: an image without /health."""
    own = {"httpGet": {"path": "/ready", "port": 9000}, "periodSeconds": 7}
    assert container(**{field: own})[field] == own
    assert container()[field]["httpGet"] == {"path": "/health", "port": "http"}


def test_a_probe_without_a_handler_changes_ours() -> None:
    found = container(startupProbe={"failureThreshold": 900})["startupProbe"]
    assert found == {**container()["startupProbe"], "failureThreshold": 900}


def test_sidecars_volumes_and_mounts_come_after_ours() -> None:
    proxy, disk, mount = (
        {"name": "proxy", "image": "envoy"},
        {"name": "disk", "emptyDir": {}},
        {"name": "disk", "mountPath": "/disk"},
    )
    found = pod(sidecars=[proxy], volumes=[disk], volumeMounts=[mount], envFrom=[{"secretRef": {"name": "more"}}])
    assert [c["name"] for c in found["containers"]] == ["engine", "proxy"]
    assert found["containers"][1] == proxy
    assert found["volumes"][-1] == disk
    assert found["containers"][0]["volumeMounts"][-1] == mount
    assert found["containers"][0]["envFrom"] == [{"secretRef": {"name": "more"}}]


def test_labels_and_annotations_of_the_user_are_on_the_pods_and_in_no_selector() -> None:
    deployment = wanted(
        serving({"interactive": {"podLabels": {"kueue.x-k8s.io/queue-name": "gpu"}, "podAnnotations": {"note": "ü"}}})
    )[0]
    meta = deployment["spec"]["template"]["metadata"]
    assert meta["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    assert meta["annotations"]["note"] == "ü"
    assert "kueue.x-k8s.io/queue-name" not in deployment["spec"]["selector"]["matchLabels"]
    assert "kueue.x-k8s.io/queue-name" not in deployment["metadata"]["labels"]


def test_pods_of_a_pool_keep_apart_unless_the_user_says_how() -> None:
    spread = pod()["topologySpreadConstraints"]
    assert [(one["topologyKey"], one["whenUnsatisfiable"]) for one in spread] == [
        ("topology.kubernetes.io/zone", "ScheduleAnyway"), ("kubernetes.io/hostname", "ScheduleAnyway"),
    ]  # fmt: skip
    assert all(one["labelSelector"]["matchLabels"]["gemmaserving.dev/pool"] == "interactive" for one in spread)
    own = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    assert pod(topologySpreadConstraints=own)["topologySpreadConstraints"] == own


def test_gpus_by_dynamic_resource_allocation_are_no_limits() -> None:
    claim = [{"name": "gpu", "resourceClaimName": "h200"}]
    assert container(resourceClaims=claim)["resources"] == {"claims": [{"name": "gpu"}]}
    chosen = container(resourceClaims=claim, resources={"claims": [{"name": "gpu", "request": "big"}]})
    assert chosen["resources"] == {"claims": [{"name": "gpu", "request": "big"}]}


@pytest.mark.parametrize("field", ["runtimeClassName", "priorityClassName", "serviceAccountName", "schedulerName"])
@pytest.mark.parametrize("absent", [{}, None], ids=["absent", "null"])
def test_what_is_absent_is_not_written(field: str, absent: Any) -> None:
    """A13: "" in a manifest is refused or means something else."""
    fields: dict[str, Any] = {} if absent == {} else {field: absent}
    assert field not in pod(**fields)
    with pytest.raises(InvalidServing, match=rf"{field}: .*at least 1 character"):
        parse(body({"pools": {"interactive": {field: ""}}}))


@pytest.mark.parametrize(("cache", "written"), [({"size": "1Gi"}, None), ({"size": "1Gi", "storageClassName": ""}, "")])
def test_an_empty_storage_class_means_none_and_an_absent_one_the_default(cache: Any, written: str | None) -> None:
    """A13: storageClassName "" must survive."""
    claim = wanted(serving(model={"id": "m", "cache": cache}))[0]
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["spec"].get("storageClassName") == written


def volume(found: dict[str, Any], name: str) -> dict[str, Any]:
    one: dict[str, Any] = next(v for v in found["volumes"] if v["name"] == name)
    return one


@pytest.mark.parametrize(
    ("model", "name", "source"),
    [
        ({}, "cache", {"emptyDir": {}}),
        ({"cache": {"claimName": "shared"}}, "cache", {"persistentVolumeClaim": {"claimName": "shared"}}),
        ({"source": {"pvc": {"claimName": "weights", "path": "gemma 4"}}}, "model",
         {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}),
        ({"source": {"image": {"reference": "r/m@sha256:0"}}}, "model", {"image": {"reference": "r/m@sha256:0"}}),
        ({"source": {"image": {"reference": "r/m", "pullPolicy": "Never"}}}, "model", {"image": {"reference": "r/m", "pullPolicy": "Never"}}),
        ({"chatTemplate": {"name": "t"}}, "chat-template",
         {"configMap": {"name": "t", "items": [{"key": "template.jinja", "path": "template.jinja"}]}}),
    ],
    ids=["no cache", "a claim", "weights on a claim", "weights in an image", "with a pull policy", "a chat template"],
)  # fmt: skip
def test_volumes_hold_weights_cache_and_template(model: Any, name: str, source: dict[str, Any]) -> None:
    found = pod(spec={"model": {"id": "m", **model}})
    assert volume(found, name) == {"name": name, **source}
    mounts = {mount["name"]: mount for mount in found["containers"][0]["volumeMounts"]}
    assert mounts.keys() == {v["name"] for v in found["volumes"]}
    assert mounts[name].get("readOnly", False) is (name != "cache")


def test_the_claim_of_the_operator_is_one_for_all_pools_and_used_by_them() -> None:
    children = wanted(serving(model={"id": "m", "cache": {"size": "0.5Ti"}}))
    claim, *others = children
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "512Gi"}}}
    assert "gemmaserving.dev/pool" not in claim["metadata"]["labels"]
    templates = [child["spec"]["template"]["spec"] for child in others if child["kind"] == "Deployment"]
    assert {volume(found, "cache")["persistentVolumeClaim"]["claimName"] for found in templates} == {
        claim["metadata"]["name"]
    }
    assert [child["kind"] for child in children].count("PersistentVolumeClaim") == 1


def compile_cache(found: dict[str, Any]) -> str:
    value: str = next(v["value"] for v in found["containers"][0]["env"] if v["name"] == "VLLM_CACHE_ROOT")
    return value


def test_pools_that_compile_the_same_share_what_they_compile() -> None:
    same = pod(drainSeconds=5, modalities={"video": {"frames": 8}})
    assert compile_cache(same) == compile_cache(pod())
    assert compile_cache(pod(maxNumSeqs=8)) != compile_cache(pod())
    assert compile_cache(pod(Defaults("other:v0.32.0"))) != compile_cache(pod())


def test_a_drained_node_takes_one_engine_of_a_pool_at_a_time() -> None:
    budget = next(child for child in wanted(serving()) if child["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["spec"]["selector"]["matchLabels"]["gemmaserving.dev/pool"] == "interactive"


def test_a_start_is_waited_for_as_long_as_the_weights_take() -> None:
    """G1: liveness begins after a start-up probe whose budget grows with the model; G2, G3: no single slow answer kills an engine."""
    found = container(spec={"model": {"id": "google/gemma-4-31B-it"}})
    startup = found["startupProbe"]
    seconds = startup["periodSeconds"] * startup["failureThreshold"]
    assert seconds >= 600
    small = container()["startupProbe"]
    assert seconds > small["periodSeconds"] * small["failureThreshold"] >= 600
    for probe in (found["readinessProbe"], found["livenessProbe"]):
        assert probe["failureThreshold"] >= 3
        assert probe["timeoutSeconds"] >= 10
    ready_timeout = next(v["value"] for v in found["env"] if v["name"] == "VLLM_ENGINE_READY_TIMEOUT_S")
    assert abs(int(ready_timeout) - seconds) <= startup["periodSeconds"]


def test_the_deployment_gives_up_after_the_start_and_the_pull_had_their_time() -> None:
    deployment = wanted(serving())[0]["spec"]
    startup = deployment["template"]["spec"]["containers"][0]["startupProbe"]
    assert deployment["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]


def test_an_overlay_that_would_break_the_operator_is_refused_with_its_path() -> None:
    overlay = {"spec": {"terminationGracePeriodSeconds": 5}}
    with pytest.raises(
        RefusedSpec,
        match=r"pools\.interactive\.podTemplate\.spec\.terminationGracePeriodSeconds: 5 is less than the 50 s",
    ):
        pod(podTemplate=overlay)


def test_an_overlay_is_laid_over_the_template() -> None:
    found = pod(podTemplate={"spec": {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}}})
    assert found["dnsPolicy"] == "None"
    assert found["containers"][0]["name"] == "engine"


def test_nothing_of_the_gemmaserving_is_inherited_but_its_name() -> None:
    source = body()
    source["metadata"] |= {"labels": {"argocd.argoproj.io/instance": "x"}, "annotations": {"note": "y"}}
    assert wanted(parse(source)) == wanted(parse(body()))


def test_every_engine_is_confined() -> None:
    found = pod()
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["runAsUser"] == 2000
    assert found["automountServiceAccountToken"] is False
    assert found["enableServiceLinks"] is False
    assert found["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_security_context_of_the_user_is_laid_over_ours() -> None:
    found = pod(podSecurityContext={"runAsUser": 1000}, securityContext={"readOnlyRootFilesystem": True})
    assert found["securityContext"]["runAsUser"] == 1000
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("mode", "surge"), [("ReadWriteMany", 1), ("ReadWriteOnce", 0)])
def test_an_update_never_needs_a_second_node_for_a_cache_of_one(mode: str, surge: int) -> None:
    of = serving(
        {"interactive": {}}, model={"id": "google/gemma-4-E4B-it", "cache": {"claimName": "c", "accessMode": mode}}
    )
    strategy = next(c for c in wanted(of) if c["kind"] == "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": surge, "maxUnavailable": 1 - surge}
