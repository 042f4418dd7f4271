"""Fields of a Pod: the schema they get in the CRD, what is refused and how, and the spelling that is stored."""

from __future__ import annotations

import contextlib
import json
import re
from functools import cache
from typing import Annotated, Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from gemma_operator.api import kubernetes
from gemma_operator.api.kubernetes import TYPES, Kubernetes, canonical, checked, node_at, structural
from gemma_operator.api.schema import openapi
from tests.support.pod_values import value

ALIASES = {
    name: found
    for name, found in vars(kubernetes).items()
    if any(isinstance(part, Kubernetes) for part in getattr(found, "__metadata__", ()))
}
# A list whose keys are not all required; no field of a pool has one.
ALIASES["ContainerPorts"] = Annotated[list[dict[str, Any]], Field(max_length=64), Kubernetes("Container.ports")]
FIELDS = [f"{owner}.{field}" for owner in ("PodSpec", "Container") for field in TYPES[owner]["properties"]]
KNOBS: type[BaseModel] = create_model(
    "Knobs", __config__=ConfigDict(extra="forbid"), **{name: (found | None, None) for name, found in ALIASES.items()}
)


def stored(path: str, given: Any) -> Any:
    """What becomes of a field's value on its way to the API server; None where it is left out."""
    owner, _, field = path.partition(".")
    whole = checked({"$ref": owner}, {"name": "engine", field: given} if owner == "Container" else {field: given})
    return canonical({"$ref": owner}, whole).get(field)


REFUSED = [
    ("Tolerations", [{"effct": "NoSchedule"}], "[0].effct: unknown field; did you mean effect?"),
    (
        "Tolerations",
        [{"key": "a"}, {"tolerationSeconds": "5"}],
        "[1].tolerationSeconds: must be a whole number, is a string",
    ),
    ("Tolerations", {"key": "a"}, ": must be a list, is a map"),
    ("Tolerations", [None], "[0]: must be a map, is nothing"),
    ("Tolerations", [{"value": True}], "[0].value: must be a string, is true or false: put it in quotes"),
    (
        "Tolerations",
        [{"effect": "NoScedule"}],
        "[0].effect: 'NoScedule' is not allowed; allowed are NoExecute, NoSchedule, PreferNoSchedule",
    ),
    (
        "Affinity",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
        ".nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: required",
    ),
    ("Affinity", {"zzz": {}}, ".zzz: unknown field; Affinity has nodeAffinity, podAffinity, podAntiAffinity"),
    ("TopologySpreadConstraints", [{"maxSkew": 1.5}], "[0].maxSkew: must be a whole number, is a fraction"),
    (
        "TopologySpreadConstraints",
        [{"maxSkew": 2**31, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
        "[0].maxSkew: 2147483648 is out of range; it must fit in 32 bits",
    ),
    (
        "Volumes",
        [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}],
        "[0]: emptyDir and hostPath are both set; keep one",
    ),
    (
        "Volumes",
        [{"name": "a", "emptyDir": {}}, {"name": "b"}, {"name": "a"}],
        "[2]: name a is there already, in [0]; remove one of the two",
    ),
    (
        "Volumes",
        [{"name": "a", "emptyDir": {"sizeLimit": "1 Gi"}}],
        "[0].emptyDir.sizeLimit: '1 Gi' is not a Kubernetes quantity such as 500m, 2, 16Gi or 1e3",
    ),
    ("Probe", {"httpGet": {"port": True}}, ".httpGet.port: must be a whole number, is true or false"),
    ("Probe", {"exec": {"command": ["a"]}, "httpGet": {"port": 1}}, ": exec and httpGet are both set; keep one"),
    ("EnvVarSource", {"secretKeyRef": {"name": "a"}}, ".secretKeyRef.key: required"),
    (
        "VolumeMounts",
        [{"name": "a", "mountPath": "/x"}, {"name": "b", "mountPath": "/x"}],
        "[1]: mountPath /x is there already",
    ),
    (
        "ContainerPorts",
        [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}],
        "[1]: containerPort 1, protocol TCP is there already, in [0]",
    ),
    ("SecurityContext", {"runAsUser": "0"}, ".runAsUser: must be a whole number, is a string"),
    ("PodTemplateOverlay", {"spec": {"$patch": "delete"}}, ".spec.$patch: unknown field"),
    (
        "PodTemplateOverlay",
        {"metadata": {"name": "a"}},
        ".metadata.name: unknown field; TemplateMetadata has annotations, labels",
    ),
    ("PodTemplateOverlay", {"spec": {"restartPolicy": "Never"}}, ".spec.restartPolicy: unknown field"),
    (
        "PodTemplateOverlay",
        {"spec": {"tolerations": [{"$patch": "delete"}]}},
        ".spec.tolerations[0].$patch: unknown field",
    ),
    (
        "PodTemplateOverlay",
        {"spec": {"securityContext": {"$patch": "remove"}}},
        ".spec.securityContext.$patch: 'remove' is not allowed; allowed are delete, replace",
    ),
]


@pytest.mark.parametrize(("name", "given", "text"), REFUSED, ids=[text[:50] for _, _, text in REFUSED])
def test_a_fault_is_named_with_its_path_and_a_remedy(name: str, given: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        KNOBS.model_validate({name: given})
    (problem,) = caught.value.errors()
    assert problem["loc"][0] == name
    assert str(problem["msg"]).removeprefix("Value error, ").startswith(text)


def test_a_value_that_may_be_secret_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="must be a string") as caught:
        stored("Container.env", [{"name": "TOKEN", "value": 8675309}])
    assert "8675309" not in str(caught.value)


# (field, written, stored)
STORED: list[tuple[str, Any, Any]] = [
    # practice.md A13: "" and null are absent ...
    *((f"PodSpec.{name}", empty, None) for name in (
        "runtimeClassName", "priorityClassName", "serviceAccountName", "schedulerName", "nodeName", "hostname",
    ) for empty in ("", None)),
    # ... but for a claim, where "" turns dynamic provisioning off
    *(
        (
            "PodSpec.volumes",
            [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": name, "volumeName": ""}}}}],
            [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": kept}}}],
        )
        for name, kept in (("", {"storageClassName": ""}), (None, {}), ("fast", {"storageClassName": "fast"}))
    ),
    # practice.md A18: what the API server stores otherwise than it is written
    ("PodSpec.tolerations", [], None),
    ("PodSpec.tolerations", [{"key": "", "operator": "Exists", "value": ""}], [{"operator": "Exists"}]),
    ("PodSpec.tolerations", [{"operator": "Exists", "tolerationSeconds": 0}], [{"operator": "Exists", "tolerationSeconds": 0}]),
    ("PodSpec.nodeSelector", {}, None),
    ("PodSpec.nodeSelector", {"gpu": ""}, {"gpu": ""}),
    ("PodSpec.affinity", {}, {}),
    ("PodSpec.affinity", {"nodeAffinity": None, "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, {"podAffinity": {}}),
    ("PodSpec.hostNetwork", False, None),
    ("PodSpec.hostUsers", False, False),
    ("PodSpec.automountServiceAccountToken", False, False),
    ("PodSpec.terminationGracePeriodSeconds", 0, 0),
    ("PodSpec.terminationGracePeriodSeconds", 30.0, 30),
    ("PodSpec.securityContext", {"runAsUser": 0, "runAsNonRoot": False, "sysctls": []}, {"runAsUser": 0, "runAsNonRoot": False}),
    ("PodSpec.volumes", [{"name": "a", "emptyDir": {"medium": "", "sizeLimit": "1024Mi"}}], [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]),
    ("PodSpec.volumes", [{"name": "a", "emptyDir": {}}], [{"name": "a", "emptyDir": {}}]),
    ("PodSpec.volumes", [{"name": "a", "emptyDir": {"sizeLimit": 1}}], [{"name": "a", "emptyDir": {"sizeLimit": "1"}}]),
    ("PodSpec.topologySpreadConstraints",
     [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
     [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]),
    ("Container.env", [{"name": "A", "value": ""}], [{"name": "A"}]),
    ("Container.env", [{"name": "A", "value": "", "valueFrom": {"fieldRef": {"apiVersion": "", "fieldPath": "metadata.name"}}}],
     [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    ("Container.args", ["", "a"], ["", "a"]),
    ("Container.resources", {"limits": {"cpu": "1000m", "memory": 1e9}, "requests": {}}, {"limits": {"cpu": "1", "memory": "1G"}}),
    ("Container.volumeMounts", [{"name": "a", "mountPath": "/a", "readOnly": False, "subPath": ""}], [{"name": "a", "mountPath": "/a"}]),
    ("Container.readinessProbe", {"httpGet": {"port": "http", "path": ""}, "timeoutSeconds": 0}, {"httpGet": {"port": "http"}}),
    ("Container.securityContext", {"capabilities": {"drop": [], "add": None}, "privileged": False}, {"capabilities": {}, "privileged": False}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "written", "kept"), STORED)
def test_a_value_is_spelled_as_the_api_server_stores_it(field: str, written: Any, kept: Any) -> None:
    assert stored(field, written) == kept


@cache
def validator(field: str) -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator(structural(node_at(field)))


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=25)
@given(data=st.data())
def test_the_stored_spelling_stays_as_it_is_and_fits_the_crd(field: str, data: st.DataObject) -> None:
    owner, _, name = field.partition(".")
    try:
        once = stored(field, data.draw(value(node_at(field), owner, name)))
    except ValueError as error:
        assert "required" in str(error) or "is there already" in str(error)  # noqa: PT017
        return
    assert stored(field, once) == once
    if once is not None:
        validator(field).validate(once)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
)


@pytest.mark.parametrize("name", ALIASES)
@settings(max_examples=50)
@given(given=JSON)
def test_nonsense_is_refused_and_never_ends_in_a_traceback(name: str, given: Any) -> None:
    with contextlib.suppress(ValidationError):
        KNOBS.model_validate({name: given})


def blocks(whole: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every entry of every map within a value."""
    if isinstance(whole, list):
        return [found for at, item in enumerate(whole) for found in blocks(item, (*path, at))]
    if not isinstance(whole, dict):
        return []
    return [found for key, item in whole.items() for found in [(*path, key), *blocks(item, (*path, key))]]


FULL: dict[str, Any] = {
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, "topologyKey": "z"}]}},
    "containers": [{"name": "engine", "image": "i", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "readinessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a", "value": "b"}]}},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}, "resources": {"limits": {"cpu": "1"}}}],
    "volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}]}}],
}  # fmt: skip


@pytest.mark.parametrize("path", blocks(FULL), ids=str)
def test_any_block_may_be_missing(path: tuple[Any, ...]) -> None:
    """practice.md A15."""
    pod = json.loads(json.dumps(FULL))
    inner = pod
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    try:
        canonical({"$ref": "PodSpec"}, checked({"$ref": "PodSpec"}, pod))
    except ValueError as error:
        assert re.fullmatch(rf"\..*\.{path[-1]}: required", str(error))  # noqa: PT017


@pytest.mark.parametrize("name", ALIASES)
def test_the_crd_carries_the_schema_of_kubernetes_itself(name: str) -> None:
    schema = openapi(KNOBS)["properties"][name]
    text = json.dumps(schema)
    assert not {'"$ref"', '"default"', '"description"', '"omitsZero"', '"union"'} & set(
        re.findall(r'"[^"]*"(?=:)', text)
    )
    assert ("x-kubernetes-preserve-unknown-fields" in text) == (name == "PodTemplateOverlay"), (
        "of which $patch is no field"
    )
    assert schema["type"] == ("array" if "maxItems" in schema else "object")


def test_a_list_with_keys_is_a_map_to_the_api_server_where_every_entry_must_have_them() -> None:
    lists = openapi(KNOBS)["properties"]
    assert lists["Volumes"]["x-kubernetes-list-map-keys"] == ["name"]
    assert "x-kubernetes-list-map-keys" not in lists["ContainerPorts"]  # the protocol may be left out


def test_all_fields_together_leave_room_in_the_crd() -> None:
    assert len(json.dumps(openapi(KNOBS))) < 125 * 1024
