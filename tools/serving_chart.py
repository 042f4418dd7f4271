"""Writes values.schema.json of the chart gemma-serving: its `spec` has the schema that the CRD gives GemmaServings.

So Helm refuses a wrong spec with the field's path before anything is sent. Rules in CEL have no JSON Schema; they stay the
API server's. Usage: python -m tools.serving_chart
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemma_operator.api.schema import openapi
from gemma_operator.api.serving import Spec

CHART = Path(__file__).resolve().parent.parent / "charts" / "gemma-serving"
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
# The label of a serving's children holds a longer name only by its hash, which a chart can't know.
_NAME = {
    "type": "string",
    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$",
    "maxLength": 63,
}
_PEER = {"type": "object", "additionalProperties": False, "minProperties": 1,
         "properties": {name: {"type": "object"} for name in ("podSelector", "namespaceSelector", "ipBlock")}}  # fmt: skip
_NETWORK = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "enabled": {"type": "boolean"},
        "from": {"type": "array", "items": _PEER},
        "operatorNamespace": {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "maxLength": 63},
    },
}


def closed(node: Any) -> Any:
    """An OpenAPI v3 schema as JSON Schema: no field beside those it names, no Kubernetes extensions, numeric exclusive bounds."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-") and key != "default"}
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if kept.pop(exclusive, False):
            kept[exclusive] = kept.pop(bound)
    kept.pop("format", None)
    if node.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    elif kept.pop("nullable", False) and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    if "properties" in kept:
        kept["properties"] = {name: closed(child) for name, child in kept["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            kept.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties", "anyOf", "allOf", "oneOf", "not"):
        if name in kept:
            kept[name] = closed(kept[name])
    return kept


def schema() -> dict[str, Any]:
    """The whole values.schema.json."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "required": ["labels", "networkPolicy", "spec"],
        "properties": {
            "global": {"type": "object"},
            "name": _NAME,
            "labels": _STRINGS,
            "annotations": _STRINGS,
            "networkPolicy": _NETWORK,
            "spec": closed(openapi(Spec)),
        },
    }


def text() -> str:
    """One line for each value of the chart, as the spec's schema is long and nobody's to read."""
    whole = schema()
    lines = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in whole.pop("properties").items()]
    head = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in whole.items())
    return "{\n" + head + '  "properties": {\n' + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    (CHART / "values.schema.json").write_text(text(), encoding="utf-8")
