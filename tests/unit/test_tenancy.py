"""What a hostile GemmaServing asks for, and what it gets: nothing that the administrator has not granted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.desired import Defaults, desired
from gemma_operator.desired.tenancy import GRANTS, USUAL, Grant
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.settings import BadSetting, read_settings
from tests.support.tenants import BEYOND_BASELINE, WITHIN_BASELINE
from tests.unit.builders import serving

CHART = Path(__file__).parents[2] / "charts/gemma-operator"
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
CERTIFICATE = {
    "name": "c",
    "projected": {
        "sources": [{"podCertificate": {"signerName": "a/b", "keyType": "ED25519", "credentialBundlePath": "c"}}]
    },
}
TRICKS: dict[str, tuple[Grant, dict[str, Any]]] = {
    **{name: ("Privileged", pool) for name, pool in BEYOND_BASELINE.items()},
    "all of /proc": ("Privileged", {"securityContext": {"procMount": "Unmasked"}}),
    "a token": ("ServiceAccountToken", {"podTemplate": {"spec": {"automountServiceAccountToken": True}}}),
    "a token by a volume": ("ServiceAccountToken", {"volumes": [TOKEN]}),
    "the operator's account": (
        "ServiceAccountToken",
        {"serviceAccountName": "gemma-operator", "podTemplate": {"spec": {"automountServiceAccountToken": True}}},
    ),
    "a system priority": ("Priority", {"priorityClassName": "system-node-critical"}),
    "a priority by the template": ("Priority", {"podTemplate": {"spec": {"priorityClassName": "system-node-critical"}}}),
    "a node": ("Placement", {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}),
    "a node by name": ("Placement", {"podTemplate": {"spec": {"nodeName": "master-0"}}}),
    "tolerations": ("Placement", {"tolerations": [{"operator": "Exists"}]}),
    "affinity": ("Placement", {"affinity": {"nodeAffinity": {}}}),
    "a runtime": ("Placement", {"runtimeClassName": "runc-without-sandbox"}),
    "a scheduler": ("Placement", {"schedulerName": "mine"}),
    "PromQL": ("Queries", {"scaling": {"offeredQuery": 'sum(secret_of{namespace="other"})'}}),
    "files of the engine": ("Code", {"extraArgs": ["--allowed-local-media-path=/"]}),
    "code of a checkpoint": ("Code", {"extraArgs": ["--trust-remote-code"]}),
    "a plugin by the environment": ("Code", {"env": [{"name": "PYTHONPATH", "value": "/x"}]}),
    "a sidecar": ("Code", {"sidecars": [{"name": "s", "image": "evil:1"}]}),
    "an init container": ("Code", {"initContainers": [{"name": "s", "image": "evil:1"}]}),
    "a command by a probe": ("Code", {"livenessProbe": {"exec": {"command": ["sh"]}}}),
    "any template": ("Code", {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}),
    "a Secret as a volume": ("Code", {"volumes": [{"name": "s", "secret": {"secretName": "other"}}]}),
    "a certificate by a volume": ("ServiceAccountToken", {"volumes": [CERTIFICATE]}),
    "an injector's image": ("Code", {"podAnnotations": {"sidecar.istio.io/proxyImage": "evil:1"}}),
    "a Secret as variables": ("Code", {"envFrom": [{"secretRef": {"name": "other"}}]}),
}  # fmt: skip


def refusal(pool: dict[str, Any], may: tuple[Grant, ...], **spec: Any) -> str:
    defaults = Defaults("vllm:v0.32.0", priority_classes=(("interactive", "ours"),), tenants_may=may)
    try:
        desired(serving({"interactive": pool}, **spec), defaults)
    except RefusedSpec as error:
        return str(error)
    return ""


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_needs_its_grant(trick: str) -> None:
    grant, pool = TRICKS[trick]
    others = tuple(one for one in GRANTS if one != grant)
    said = refusal(pool, others)
    assert said.startswith("pools.interactive: ")
    assert f"has not granted {grant} (tenants.may of the operator's chart)" in said
    assert refusal(pool, GRANTS) == ""


@pytest.mark.parametrize("trick", [name for name, (grant, _) in TRICKS.items() if grant not in USUAL])
def test_the_ways_out_of_a_namespace_are_closed_unless_they_are_opened(trick: str) -> None:
    assert refusal(TRICKS[trick][1], USUAL)


@pytest.mark.parametrize("pool", WITHIN_BASELINE.values(), ids=[*WITHIN_BASELINE])
def test_what_the_baseline_profile_allows_is_usual(pool: dict[str, Any]) -> None:
    assert refusal(pool, USUAL) == ""


def test_without_any_grant_a_plain_serving_serves() -> None:
    plain = {"replicas": {"min": 1, "max": 4}, "tensorParallel": 2, "resources": {"limits": {"memory": "64Gi"}}}
    token = {"model": {"id": "m", "tokenSecretRef": {"name": "hub"}}}
    assert refusal(plain, (), **token) == ""


@pytest.mark.parametrize("engine", [{"image": "evil:v0.32.0"}, {"command": ["sh", "-c", "x"]}])
def test_an_engine_of_ones_own_is_code(engine: dict[str, Any]) -> None:
    assert "has not granted Code" in refusal({}, (), engine=engine)
    assert refusal({}, ("Code",), engine=engine) == ""


@pytest.mark.parametrize(
    ("source", "field"),
    [
        # Any Secret's keys would be variables of the engine: LD_PRELOAD, PYTHONPATH.
        ({"source": {"objectStore": {"uri": "s3://a/b", "secretName": "any"}}}, "objectStore.secretName"),
        # Any Secret's value would be sent to an address of the tenant's.
        (
            {"tokenSecretRef": {"name": "any"}, "source": {"hub": {"endpoint": "https://evil.example"}}},
            "tokenSecretRef",
        ),
    ],
)
def test_a_secret_reaches_no_variable_and_no_stranger_without_code(source: dict[str, Any], field: str) -> None:
    said = refusal({}, (), model={"id": "m", **source})
    assert field in said
    assert "has not granted Code" in said
    assert refusal({}, ("Code",), model={"id": "m", **source}) == ""


@pytest.mark.parametrize("source", [{"hub": {"endpoint": "https://a.example"}}, {"objectStore": {"uri": "s3://a/b"}}])
def test_a_source_without_a_secret_needs_no_grant(source: dict[str, Any]) -> None:
    assert refusal({}, (), model={"id": "m", "source": source}) == ""


def test_the_installations_own_priority_is_no_ones_grant() -> None:
    assert refusal({"priorityClassName": "ours"}, ()) == ""


def test_the_chart_and_the_code_know_the_same_grants() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["tenants"]["properties"]["may"]
    assert tuple(schema["items"]["enum"]) == GRANTS
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert tuple(values["tenants"]["may"]) == USUAL
    security = (CHART.parents[1] / "docs/security.md").read_text()
    assert [grant for grant in GRANTS if f"| `{grant}` |" not in security] == []


@pytest.mark.parametrize(
    ("text", "grants"),
    [(None, USUAL), ("", ()), ("Code", ("Code",)), (" Privileged , Code ", ("Code", "Privileged"))],
)
def test_the_setting(text: str | None, grants: tuple[Grant, ...]) -> None:
    given = {} if text is None else {"GEMMA_TENANTS_MAY": text}
    assert read_settings(given).defaults.tenants_may == grants


def test_an_unknown_grant_is_named() -> None:
    with pytest.raises(BadSetting, match="GEMMA_TENANTS_MAY has code: allowed are Code, Placement"):
        read_settings({"GEMMA_TENANTS_MAY": "code"})
