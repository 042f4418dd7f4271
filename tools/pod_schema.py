"""Write gemma_operator/api/pod_schema.json: what a Pod template may hold, as a real API server tells it.

    python3 -m tools.pod_schema        (make generate doesn't run it: it starts a control plane)

Of each type the file keeps what the CRD and the checks of api/kubernetes.py need, in the words of OpenAPI. Three
types have no counterpart there: Quantity and IntOrString are leaves, TemplateMetadata is what ObjectMeta may hold in a template. Two words are ours:
`omitsZero` names the fields whose 0 or false the API server stores as absent (they are no pointers in Kubernetes' Go types,
which OpenAPI doesn't tell; one round trip through kubectl's own types does), and `union` names fields of which one may be set.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.cluster import binaries
from tools.cluster.control_plane import ControlPlane

Schema = dict[str, Any]
TARGET = Path("operator/gemma_operator/api/pod_schema.json")
_ROOT = "PodTemplateSpec"
_REFERENCE = "$ref"
_KEPT = ("type", "format", "enum", "required", "x-kubernetes-list-map-keys")
# Fields that a Deployment's template can't have, aliases that the API server rewrites, and fields behind gates that are
# off by default, which it stores as absent (tests/apiserver/test_pod_fields.py finds them).
_LEFT_OUT = {
    "Lifecycle": {"stopSignal"},
    "PodSpec": {"activeDeadlineSeconds", "ephemeralContainers", "restartPolicy", "schedulingGroup", "serviceAccount"},
}
# "Exactly one of", "one and only one of" and "may not be set together with" in the API reference of these types.
_UNIONS: dict[str, set[str]] = {
    "EnvFromSource": {"configMapRef", "secretRef"},
    "EnvVar": {"value", "valueFrom"},
    "Probe": {"exec", "grpc", "httpGet", "tcpSocket"},
    "LifecycleHandler": {"exec", "httpGet", "sleep", "tcpSocket"},
}
# Of these types every field but the name is such a member.
_UNIONS_BUT_NAME = ("EnvVarSource", "PodResourceClaim", "Volume", "VolumeProjection")
_OWN: dict[str, Schema] = {
    "TemplateMetadata": {
        "type": "object",
        "properties": {
            name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("annotations", "labels")
        },
    },
    "Quantity": {},
    "IntOrString": {},
}


def types(document: Schema) -> dict[str, Schema]:
    """Every type below PodTemplateSpec in an OpenAPI v3 document, trimmed, by its short name."""
    full = {name.rsplit(".", 1)[1]: schema for name, schema in document["components"]["schemas"].items()}
    found = dict(_OWN)
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _type(name, full[name])
            waiting += _references(found[name])
    return dict(sorted(found.items()))


def _type(name: str, schema: Schema) -> Schema:
    fields = {key: node for key, node in schema["properties"].items() if key not in _LEFT_OUT.get(name, set())}
    out = {**_node(schema), "properties": {key: _node(node) for key, node in sorted(fields.items())}}
    for field, node in out["properties"].items():
        # Go reads "" as absent, and charts write it.
        if "enum" in node and field not in schema.get("required", ()):
            node["enum"] = sorted({"", *node["enum"]})
    # A port without a protocol is another entry than the same port with UDP, and the same as with TCP.
    if name == "ContainerPort":
        out["properties"]["protocol"]["default"] = schema["properties"]["protocol"]["default"]
    # An overlay names only what it changes.
    if name == "PodSpec":
        del out["required"]
    union = _UNIONS.get(name, fields.keys() - {"name"} if name in _UNIONS_BUT_NAME else set())
    return {**out, "union": sorted(union)} if union else out


def _node(node: Schema) -> Schema:
    if reference := node.get(_REFERENCE) or node.get("allOf", [{}])[0].get(_REFERENCE):
        name = reference.rsplit(".", 1)[1]
        return {_REFERENCE: "TemplateMetadata" if name == "ObjectMeta" else name}
    out = {key: node[key] for key in _KEPT if key in node}
    for key in ("items", "additionalProperties"):
        if key in node:
            out[key] = _node(node[key])
    return out


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == _REFERENCE:
                yield value
            else:
                yield from _references(value)


def zeros(found: dict[str, Schema], node: Schema) -> Any:
    """A value with every field there, and each number and switch at zero."""
    match node.get(_REFERENCE):
        case "Quantity":
            return "0"
        case "IntOrString":
            return 0
        case str(name):
            return zeros(found, found[name])
    if "properties" in node:
        return {key: zeros(found, child) for key, child in node["properties"].items()}
    if "additionalProperties" in node:
        return {"key": zeros(found, node["additionalProperties"])}
    if "items" in node:
        return [zeros(found, node["items"])]
    return {"string": "text", "integer": 0, "boolean": False}[node["type"]]


def omitted(
    found: dict[str, Schema], node: Schema, sent: Any, stored: Any, name: str = ""
) -> Iterator[tuple[str, str]]:
    """(type, field) of every number and switch that was sent as zero and is not stored."""
    if reference := node.get(_REFERENCE):
        yield from omitted(found, found[reference], sent, stored, reference)
    elif "items" in node:
        yield from omitted(found, node["items"], sent[0], stored[0])
    for field, child in node.get("properties", {}).items():
        if field in stored:
            yield from omitted(found, child, sent[field], stored[field])
        elif child.get("type") in ("integer", "boolean"):
            yield name, field
        else:
            raise SystemExit(f"{name}.{field}: sent {sent[field]!r} and not stored; kubectl and the API server differ")


def round_trip(template: Schema) -> Schema:
    """The template as the Go types of the API server's own version write it; nothing is sent to a cluster."""
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"template": template},
    }
    kubectl = binaries.TOOLS["kubectl"]  # a kubectl on PATH may be older than the API server
    command = ["go", "run", kubectl.package, "set", "image", "--local", "-f", "-", "-o", "json", "*=other"]
    done = subprocess.run(
        command, cwd=kubectl.source, input=json.dumps(deployment), stdout=subprocess.PIPE, text=True, check=True
    )
    stored: Schema = json.loads(done.stdout)["spec"]["template"]
    return stored


def main() -> None:
    """Ask an API server of our own, and write the file: one line per type."""
    with ControlPlane.start("pod-schema") as plane:
        found = types(plane.api.get("/openapi/v3/api/v1"))
    root = {_REFERENCE: _ROOT}
    sent = zeros(found, root)
    for name, field in omitted(found, root, sent, round_trip(sent)):
        fields = found[name].setdefault("omitsZero", [])
        if field not in fields:
            fields.append(field)
    lines = [f"{json.dumps(name)}: {json.dumps(schema, separators=(',', ':'))}" for name, schema in found.items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
