"""The Pod of an engine: resources, environment, and every knob that a user may turn."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.api.parse import parse
from gemma_operator.desired import Defaults
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
        ({"tensorParallel": 2, "gpus": 4, "gpuResource": "amd.com/gpu"}, {"amd.com/gpu": "4"}),
        ({"gpus": 0}, None),
        ({"gpus": 0, "resources": {"limits": {"cpu": 0.5}}}, {"cpu": "500m"}),
        ({"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"nvidia.com/gpu": "2"}),
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
        ("affinity", {"nodeAffinity": {"preferred": [{"weight": 1}]}}),
        ("topologySpreadConstraints", [{"maxSkew": 1}]),
        ("runtimeClassName", "nvidia"),
    ],
)
def test_pod_knobs_are_passed_on_as_they_are(field: str, value: Any) -> None:
    assert pod(**{field: value})[field] == value
    assert field not in pod()


def test_nothing_of_the_gemmaserving_is_inherited_but_its_name() -> None:
    source = body()
    source["metadata"] |= {"labels": {"argocd.argoproj.io/instance": "x"}, "annotations": {"note": "y"}}
    assert wanted(parse(source)) == wanted(parse(body()))


def test_every_engine_is_confined() -> None:
    found = pod()
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["automountServiceAccountToken"] is False
    assert found["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
