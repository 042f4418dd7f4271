"""Fields of a Pod typed by Kubernetes' own schema: inlined in the CRD, and checked again on stored objects.

pod_schema.json is written by tools/pod_schema.py from a real API server; a node of it is an OpenAPI schema, or `$ref` to a type.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gemma_operator.api.values import Quantity, canonical_quantity

Node = Mapping[str, Any]
TYPES: dict[str, Node] = json.loads(resources.files(__package__).joinpath("pod_schema.json").read_text())
KEYS = "x-kubernetes-list-map-keys"
PATCH = "$patch"
_DIRECTIVE: Node = {"type": "string", "enum": ["delete", "replace"]}
# These hold what an overlay may add to and not remove.
_WITHOUT_DIRECTIVE = ("PodTemplateSpec", "PodSpec", "TemplateMetadata")
_LEAVES: dict[str, dict[str, Any]] = {
    "Quantity": TypeAdapter(Quantity).json_schema(),
    "IntOrString": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
}
# "" means "no class" in a claim, which is not what an absent field means. Elsewhere it means nothing, or is refused.
_EMPTY_IS_A_VALUE = ("storageClassName", "volumeAttributesClassName")
# Variables that hold a secret: their value comes from one.
SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_BITS = {"int32": 31, "int64": 63}
_SAID = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "object": "a map",
    "array": "a list",
}
_KINDS = ((bool, "boolean"), (int, "integer"), (str, "string"), (Mapping, "object"), (list, "array"))


def node_at(path: str) -> Node:
    """A type ("Container"), or a field of one ("Container.env")."""
    name, _, field = path.partition(".")
    return TYPES[name]["properties"][field] if field else {"$ref": name}


def fields(node: Node, patches: bool = False) -> Mapping[str, Node]:
    """Fields of a type by name, {} for anything else; with `patches`, the directive of an overlay is one of them."""
    name = node.get("$ref", "")
    known: Mapping[str, Node] = TYPES.get(name, {}).get("properties", {})
    return {**known, PATCH: _DIRECTIVE} if patches and known and name not in _WITHOUT_DIRECTIVE else known


def keys_of(node: Node) -> tuple[str, ...]:
    """Fields that tell the entries of a list apart; none where a list is one value."""
    return tuple(node.get(KEYS, ()))


def key_of(node: Node, item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells `item` from the other entries of the list `node`."""
    known = fields(node["items"])
    return tuple(item.get(key) or known[key].get("default", "") for key in keys_of(node))


def unions(node: Node) -> set[str]:
    """Fields of a type of which one may be set."""
    return set(TYPES.get(node.get("$ref", ""), {}).get("union", ()))


def structural(node: Node, patches: bool = False) -> dict[str, Any]:
    """The node as structural schema of a CRD: no references, no defaults, no descriptions (they would be most of its size).

    An overlay's `$patch` is no property: Helm upgrades a CRD by a strategic merge patch, which takes a map with a key of that
    name for a directive and drops the whole map. It passes as an unknown field, and `checked` looks at it.
    """
    if (name := node.get("$ref", "")) in _LEAVES:
        return _LEAVES[name]
    if name:
        known = {field: structural(child, patches) for field, child in fields(node).items()}
        required = {"required": TYPES[name]["required"]} if "required" in TYPES[name] else {}
        directive = {"x-kubernetes-preserve-unknown-fields": True} if PATCH in fields(node, patches) else {}
        return {"type": "object", "properties": known, **required, **directive}
    out = {key: node[key] for key in ("type", "format", "enum") if key in node}
    if "additionalProperties" in node:
        out["additionalProperties"] = structural(node["additionalProperties"])
    if "items" in node:
        keys = keys_of(node)
        out["items"] = structural(node["items"], patches and bool(keys))
        # The API server takes only keys that every entry has.
        if keys and set(keys) <= set(out["items"].get("required", ())):
            out |= {"x-kubernetes-list-type": "map", KEYS: list(keys)}
    return out


def checked(node: Node, value: Any, path: str = "", patches: bool = False) -> Any:
    """The value without nulls, its quantities spelled as they are stored.

    Raises ValueError that begins with the path of the fault, below `path`. It never repeats a value that may be secret.
    """
    match node.get("$ref"):
        case "Quantity":
            return _quantity(value, path)
        case "IntOrString":
            return value if isinstance(value, str) else _scalar({"type": "integer", "format": "int32"}, value, path)
        case str(name):
            return _struct(node, name, _typed("object", value, path), path, patches)
    if "additionalProperties" in node:
        return _map(node["additionalProperties"], _typed("object", value, path), path)
    if "items" in node:
        return _list(node, _typed("array", value, path), path, patches)
    return _scalar(node, value, path)


def canonical(node: Node, value: Any) -> Any:
    """A checked value without what the API server stores as absent, so that comparing finds nothing to write.

    That is "", [] and maps without entries, and 0 and false of fields that are no pointers in Kubernetes' Go types.
    A type without fields set stays (emptyDir: {}), and so do entries of maps and lists.
    """
    if name := node.get("$ref"):
        if name in _LEAVES:
            return value
        kept = {*TYPES[name].get("required", ()), *_EMPTY_IS_A_VALUE}
        known, omitted = fields(node), TYPES[name].get("omitsZero", ())
        found = {field: canonical(known[field], item) for field, item in value.items()}
        return {
            field: item
            for field, item in found.items()
            if item or field in kept or not _empty(known[field], item, field in omitted)
        }
    return [canonical(node["items"], item) for item in value] if "items" in node else value


def _empty(node: Node, value: Any, omits_zero: bool) -> bool:
    return omits_zero if isinstance(value, (bool, int)) else "$ref" not in node


def _struct(node: Node, name: str, value: Mapping[str, Any], path: str, patches: bool) -> dict[str, Any]:
    known = fields(node, patches)
    out = {}
    for field, item in value.items():
        if field not in known:
            close = difflib.get_close_matches(str(field), known, 1)
            meant = f"did you mean {close[0]}?" if close else f"{name} has {', '.join(list(known)[:40])}"
            raise ValueError(f"{path}.{field}: unknown field; {meant}")
        if item is not None:
            out[field] = checked(known[field], item, f"{path}.{field}", patches)
    if missing := [field for field in TYPES[name].get("required", ()) if field not in out]:
        raise ValueError(f"{path}.{missing[0]}: required")
    if name == "EnvVar" and out.get("value") and out["name"] in SECRET_VARIABLES:
        raise ValueError(
            f"{path}.value: {out['name']} is a secret, which must not stand in the spec; use valueFrom.secretKeyRef"
        )
    chosen = [field for field in sorted(unions(node)) if out.get(field, "") != ""]
    if len(chosen) > 1:
        raise ValueError(f"{path}: {' and '.join(chosen)} are both set; keep one")
    return out


def _map(node: Node, value: Mapping[str, Any], path: str) -> dict[str, Any]:
    if PATCH in value:
        raise ValueError(f"{path}.{PATCH}: not possible here; the entries of this map are changed one by one")
    return {key: checked(node, item, f"{path}[{key!r}]") for key, item in value.items() if item is not None}


def _list(node: Node, value: list[Any], path: str, patches: bool) -> list[Any]:
    keys = keys_of(node)
    out = [checked(node["items"], item, f"{path}[{at}]", patches and bool(keys)) for at, item in enumerate(value)]
    found = [key_of(node, item) for item in out] if keys else []
    for at, key in enumerate(found):
        if key in found[:at]:
            same = ", ".join(f"{name} {part}" for name, part in zip(keys, key, strict=True))
            raise ValueError(f"{path}[{at}]: {same} is there already, in [{found.index(key)}]; remove one of the two")
    return out


def _scalar(node: Node, value: Any, path: str) -> Any:
    # A whole number may arrive as 1.0: JSON has one kind of number.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    _typed(node["type"], value, path)
    if "enum" in node and value not in node["enum"]:
        raise ValueError(f"{path}: {value!r:.80} is not allowed; allowed are {', '.join(filter(None, node['enum']))}")
    if (bits := _BITS.get(node.get("format", ""))) and not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"{path}: {value} is out of range; it must fit in {bits + 1} bits")
    return value


def _quantity(value: Any, path: str) -> str:
    try:
        return canonical_quantity(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _typed(wanted: str, value: Any, path: str) -> Any:
    found = next((kind for python, kind in _KINDS if isinstance(value, python)), "")
    if found == wanted:
        return value
    remedy = ": put it in quotes" if wanted == "string" and found in ("boolean", "integer") else ""
    is_ = "nothing" if value is None else _SAID.get(found, "a fraction")
    raise ValueError(f"{path}: must be {_SAID[wanted]}, is {is_}{remedy}")


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """`Annotated[dict[str, Any], Kubernetes("PodSpec.affinity")]`: a field with the schema and the checks that a Pod has for it.

    With `overlay`, the value changes a Pod rather than being part of one: it may hold `$patch` directives, and empty values are kept.
    """

    path: str
    overlay: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._take, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = handler(core)
        bounds = {key: own[key] for key in ("maxItems",) if key in own}
        return {**structural(node_at(self.path), self.overlay), **bounds}

    def _take(self, value: Any) -> Any:
        node = node_at(self.path)
        found = checked(node, value, patches=self.overlay)
        return found if self.overlay else canonical(node, found)


_Map = dict[str, Any]
_List = Annotated[list[dict[str, Any]], Field(max_length=64)]

Affinity = Annotated[_Map, Kubernetes("PodSpec.affinity")]
Containers = Annotated[_List, Kubernetes("PodSpec.containers")]
InitContainers = Annotated[_List, Kubernetes("PodSpec.initContainers")]
PodResourceClaims = Annotated[_List, Kubernetes("PodSpec.resourceClaims")]
PodSecurityContext = Annotated[_Map, Kubernetes("PodSpec.securityContext")]
Tolerations = Annotated[_List, Kubernetes("PodSpec.tolerations")]
TopologySpreadConstraints = Annotated[_List, Kubernetes("PodSpec.topologySpreadConstraints")]
Volumes = Annotated[_List, Kubernetes("PodSpec.volumes")]

EnvFrom = Annotated[_List, Kubernetes("Container.envFrom")]
EnvVarSource = Annotated[_Map, Kubernetes("EnvVar.valueFrom")]
Probe = Annotated[_Map, Kubernetes("Probe")]
ResourceClaims = Annotated[_List, Kubernetes("ResourceRequirements.claims")]
SecurityContext = Annotated[_Map, Kubernetes("Container.securityContext")]
VolumeMounts = Annotated[_List, Kubernetes("Container.volumeMounts")]

PodTemplateOverlay = Annotated[_Map, Kubernetes("PodTemplateSpec", overlay=True)]
