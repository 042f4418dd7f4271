"""A pydantic model as the structural OpenAPI v3 schema of a CRD.

The dialect is that of k8s.io/apiextensions-apiserver: no $ref, no null type, no const, no title,
boolean exclusive bounds, no `additionalProperties: false`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_VERBATIM = ("default", "enum", "x-kubernetes-validations")
_DROPPED = ("title", "examples", "default")


class _Generator(GenerateJsonSchema):
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        out = super().literal_schema(schema)
        return {**{k: v for k, v in out.items() if k != "const"}, "enum": [out["const"]]} if "const" in out else out


def openapi(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of `model`; defaults stay in code and are left out."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator, mode="validation")
    definitions = raw.pop("$defs", {})
    return dict(_inline(raw, definitions))


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if reference := node.get("$ref"):
        target = definitions[reference.rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: _inline(child, definitions) for name, child in value.items()}
        elif key in _DROPPED or (key == "additionalProperties" and isinstance(value, bool)):
            continue
        elif key in ("patternProperties", "propertyNames"):
            if key == "patternProperties":
                out["additionalProperties"] = _inline(next(iter(value.values())), definitions)
        elif key in _VERBATIM:
            out[key] = value
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            out[key.replace("exclusiveM", "m")], out[key] = value, True
        else:
            out[key] = _inline(value, definitions)
    if out.get("description"):
        out["description"] = " ".join(out["description"].split())
    return out
