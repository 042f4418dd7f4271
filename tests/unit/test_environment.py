"""The engine's environment: what is set and why, what the user's word changes, and that no secret stands in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma_operator.api.parse import InvalidServing
from gemma_operator.engine.environment import (
    STARTUP_CEILING_SECONDS,
    STARTUP_FLOOR_SECONDS,
    STARTUP_UNKNOWN_SECONDS,
    environment,
    startup_budget_seconds,
)
from gemma_operator.engine.versions import Version
from gemma_operator.engine.view import PoolView
from tests.unit.builders import DEFAULTS, serving, wanted

HUB = {"name": "hub", "key": "hf"}


def view(version: Version = (0, 32, 0), pool: Any = None, **spec: Any) -> PoolView:
    return PoolView(serving({"interactive": pool or {}}, **spec).spec, "interactive", version)


def variables(*given: Any, **more: Any) -> dict[str, Any]:
    return {variable.name: variable for variable in environment(view(*given, **more), "k3y")}


def written(pool: Any = None, **spec: Any) -> dict[str, Any]:
    """Variables as they stand in the Pod."""
    container = wanted(serving({"interactive": pool or {}}, **spec), DEFAULTS)[0]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert len({variable["name"] for variable in container["env"]}) == len(container["env"])
    return {variable["name"]: variable for variable in container["env"]}


def model(**fields: Any) -> dict[str, Any]:
    return {"model": {"id": "google/gemma-4-E4B-it", **fields}}


def test_every_variable_has_a_reason() -> None:
    everything = variables(
        pool={"prefixCaching": {"enabled": True, "salt": 7}},
        engine={"apiKeySecretRef": HUB, "batchedEncoder": "Off"},
        **model(tokenSecretRef=HUB, cache={"size": "1Gi"}, source={"hub": {"endpoint": "https://hub.example"}}),
    )
    assert len(everything) > 15
    assert [name for name, variable in everything.items() if not variable.why] == []


def test_every_folder_that_the_engine_writes_to_is_on_the_cache() -> None:
    """The image's user may write nowhere else."""
    found = variables()
    folders = (
        "HOME",
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    )
    assert [name for name in folders if not found[name].value.startswith("/cache")] == []
    assert found["VLLM_CACHE_ROOT"].value == "/cache/compiled/k3y/vllm"
    assert "k3y" not in found["HF_HOME"].value


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({}, "HF_ENDPOINT", None),
        ({}, "HF_HUB_OFFLINE", None),
        ({}, "PYTHONHASHSEED", None),
        ({}, "GEMMA_ENGINE_ENCODER", None),
        ({}, "VLLM_ENABLE_STARTUP_PLAN", None),
        (model(source={"hub": {"endpoint": "https://hub.example"}}), "HF_ENDPOINT", "https://hub.example"),
        (model(source={"pvc": {"claimName": "a"}}), "HF_HUB_OFFLINE", "1"),
        (model(source={"image": {"reference": "a"}}), "HF_HUB_OFFLINE", "1"),
        (model(source={"objectStore": {"uri": "s3://a/b"}}), "HF_HUB_OFFLINE", None),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "http://minio:9000"}}),
            "AWS_ENDPOINT_URL",
            "http://minio:9000",
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "http://minio:9000"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            "0",
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "https://s3.eu-central-1.amazonaws.com"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            None,
        ),
        (
            model(
                source={"objectStore": {"uri": "s3://a/b", "endpoint": "https://S3.cn-north-1.amazonaws.com.cn:443/"}}
            ),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            None,
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "https://amazonaws.com.example"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            "0",
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "http://[amazonaws.com"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            "0",
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "https://s3.myamazonaws.com"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            "0",
        ),
        (
            model(source={"objectStore": {"uri": "s3://a/b", "endpoint": "https://s3.example/amazonaws.com"}}),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
            "0",
        ),
        (model(source={"objectStore": {"uri": "s3://a/b"}}), "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", None),
        (model(source={"objectStore": {"uri": "s3://a/b", "region": "eu-1"}}), "AWS_REGION", "eu-1"),
        (model(source={"objectStore": {"uri": "s3://a/b", "region": "eu-1"}}), "AWS_DEFAULT_REGION", "eu-1"),
        ({"engine": {"batchedEncoder": "Required"}}, "GEMMA_ENGINE_ENCODER", "on"),
        ({"engine": {"batchedEncoder": "Off"}}, "GEMMA_ENGINE_ENCODER", "off"),
        ({"engine": {"batchedEncoder": "Auto"}}, "GEMMA_ENGINE_ENCODER", None),
        ({"pool": {"prefixCaching": {"enabled": True, "salt": 0}}}, "PYTHONHASHSEED", "0"),
        (model(cache={"size": "1Gi"}), "VLLM_ENABLE_STARTUP_PLAN", "1"),
        (model(cache={"size": "1Gi"}) | {"version": (0, 25, 1)}, "VLLM_ENABLE_STARTUP_PLAN", None),
    ],
)
def test_a_variable_is_there_where_the_spec_asks_for_it(given: Any, name: str, value: str | None) -> None:
    found = variables(**given).get(name)
    assert (found.value if found else None) == value


@pytest.mark.parametrize(
    ("spec", "name"),
    [(model(tokenSecretRef=HUB), "HF_TOKEN"), ({"engine": {"apiKeySecretRef": HUB}}, "VLLM_API_KEY")],
)
def test_secrets_are_references_and_never_values(spec: Any, name: str) -> None:
    assert written(**spec)[name] == {"name": name, "valueFrom": {"secretKeyRef": HUB}}
    assert variables(**spec)[name].value == ""


def test_a_missing_secret_keeps_the_engine_from_starting() -> None:
    """G7: an optional reference would let it start without a token, and fail later."""
    assert "optional" not in json.dumps(written(**model(tokenSecretRef=HUB)))


def test_keys_of_an_object_store_come_from_its_secret() -> None:
    of = serving({"interactive": {}}, **model(source={"objectStore": {"uri": "s3://a/b", "secretName": "keys"}}))
    container = wanted(of)[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY"])
def test_a_secret_can_not_be_written_into_the_spec(name: str) -> None:
    with pytest.raises(InvalidServing) as refused:
        written(pool={"env": [{"name": name, "value": "s3cret"}]})
    assert "s3cret" not in str(refused.value)


def test_variables_of_the_user_win_and_are_passed_on_as_they_are() -> None:
    tricky = "$(X) {\"a\": 'b'} ü\n"
    own: list[dict[str, Any]] = [
        {"name": "HOME", "value": "/data"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "T", "value": tricky},
    ]
    found = written(pool={"env": own})
    assert [found[one["name"]] for one in own] == own
    assert found["USER"]["value"] == "vllm"


def test_an_empty_value_of_the_user_is_an_empty_variable() -> None:
    assert written(pool={"env": [{"name": "A", "value": ""}]})["A"] == {"name": "A"}


@pytest.mark.parametrize(
    ("model_id", "least", "most"),
    [
        pytest.param("google/gemma-4-E2B-it", STARTUP_FLOOR_SECONDS, 1200, id="G1 the smallest"),
        pytest.param("google/gemma-4-31B-it", 2000, 2200, id="G1 the largest"),
        pytest.param("my/own", STARTUP_UNKNOWN_SECONDS, STARTUP_UNKNOWN_SECONDS, id="G1 an unknown size"),
    ],
)
def test_a_start_gets_the_time_that_its_weights_take(model_id: str, least: int, most: int) -> None:
    seconds = startup_budget_seconds(view(model={"id": model_id}))
    assert least <= seconds <= most <= STARTUP_CEILING_SECONDS
    assert seconds % 60 == 0


def test_a_smaller_precision_starts_sooner() -> None:
    sizes = [
        startup_budget_seconds(view(model={"id": "google/gemma-4-31B-it", "precision": p}))
        for p in ("bf16", "fp8", "w4a16")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
