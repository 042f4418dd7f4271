"""The CRD's schema: structural, documented, and of one mind with the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gemma_operator.api.conditions import TYPES
from gemma_operator.api.crd import crd, missing_fields
from gemma_operator.api.media import VIDEO_TOKENS
from gemma_operator.api.serving import POOL_NAME, Spec
from tests.support.specs import KUBERNETES

VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def nodes(node: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


NODES = dict(nodes(SPEC))
# Fields that a Pod has as well come with Kubernetes' own schema: without descriptions, which would be most of the CRD.
POD_FIELDS = tuple(".".join(["spec.pools[]", *path]).replace(".[]", "[]") for path in KUBERNETES)
OWN = {
    path: node
    for path, node in NODES.items()
    if not path.startswith(tuple(f"{field}{end}" for field in POD_FIELDS for end in ".["))
}


def test_the_schema_is_structural() -> None:
    for path, node in NODES.items():
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "const", "title", "patternProperties"} & node.keys(), path
        assert not isinstance(node.get("additionalProperties"), bool), path
        assert node.get("type") != "null", path


def test_no_default_is_stored_so_that_objects_never_change_by_themselves() -> None:
    assert not [path for path, node in NODES.items() if "default" in node]


def test_every_field_says_what_it_is() -> None:
    fields = {path: node for path, node in OWN.items() if not path.endswith("[]")}
    assert len(fields) > 100
    assert not [path for path, node in fields.items() if not node.get("description")]


def test_only_the_model_is_required() -> None:
    assert SPEC["required"] == ["model"]
    assert SPEC["properties"]["model"]["required"] == ["id"]
    assert "required" not in NODES["spec.pools[]"]


def test_every_field_of_the_models_is_in_the_schema() -> None:
    assert set(SPEC["properties"]) == {field.alias or name for name, field in Spec.model_fields.items()}


def test_every_list_and_map_is_bounded_so_that_rules_can_be_costed() -> None:
    for path, node in OWN.items():
        if node.get("type") == "array":
            assert node.get("maxItems"), path
        if "additionalProperties" in node:
            assert node.get("maxProperties"), path


@pytest.mark.parametrize("path", ["spec", "spec.pools[]", "spec.pools[].replicas"])
def test_rules_have_messages_for_people(path: str) -> None:
    for rule in NODES[path]["x-kubernetes-validations"]:
        assert rule["message"]
        assert "\n" not in rule["message"]


def test_pod_fields_are_typed_and_not_free_form() -> None:
    for path in POD_FIELDS:
        assert "x-kubernetes-preserve-unknown-fields" not in NODES[path], path
        assert NODES[path].get("properties") or NODES[path].get("items"), path


def test_the_schema_stays_small_enough_for_every_client() -> None:
    """Issue 4: under 200 KiB."""
    assert len(json.dumps(crd())) < 200 * 1024


def test_rules_and_models_speak_of_the_same_numbers() -> None:
    rules = " ".join(
        rule["rule"] for path in ("spec", "spec.pools[]") for rule in NODES[path]["x-kubernetes-validations"]
    )
    assert str(VIDEO_TOKENS) in rules
    assert POOL_NAME in rules


@pytest.mark.parametrize(
    ("text", "legal"),
    [("500m", True), ("1.5Gi", True), ("1e3", True), ("+1", True), ("-1", False), ("1 Gi", False), ("", False)],
)
def test_quantities_are_checked_at_apply(text: str, legal: bool) -> None:
    assert bool(re.search(NODES["spec.pools[].sharedMemory"]["pattern"], text)) is legal


def test_a_new_object_is_not_taken_for_reconciled() -> None:
    assert SCHEMA["properties"]["status"]["default"] == {"observedGeneration": -1}
    assert VERSION["subresources"] == {"status": {}}


def test_columns_show_conditions_that_exist() -> None:
    paths = " ".join(column["jsonPath"] for column in VERSION["additionalPrinterColumns"])
    assert set(re.findall(r'@\.type=="(\w+)"', paths)) <= set(TYPES)


def test_fields_that_an_older_crd_lacks_are_found_by_their_paths() -> None:
    older = crd()
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["routing"]
    del spec["properties"]["pools"]["additionalProperties"]["properties"]["maxNumSeqs"]
    assert missing_fields(older) == ["spec.pools{}.maxNumSeqs", "spec.routing"]
    assert missing_fields(crd()) == []


def test_no_field_has_a_name_that_a_strategic_merge_patch_takes_for_a_directive() -> None:
    """Helm 3 sends a CRD's upgrade as one: a map with the key $patch would be dropped from the schema."""

    def names(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from node
            for child in node.values():
                yield from names(child)
        elif isinstance(node, list):
            for child in node:
                yield from names(child)

    assert [name for name in names(crd()) if name.startswith("$")] == []
