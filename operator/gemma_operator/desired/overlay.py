"""A user's overlay on the Pod template that the operator renders: Kubernetes' strategic merge, with what we rely on kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_operator.api.kubernetes import PATCH, Node, canonical, checked, fields, key_of, keys_of, node_at, unions
from gemma_operator.api.serving import GROUP

_TEMPLATE = node_at("PodTemplateSpec")
_PORTS = node_at("Container.ports")
# Rendered from these fields of the pool, which the rest of the operator reads too.
_INSTEAD = {
    "args": "extraArgs",
    "command": "engine.command",
    "image": "engine.image",
    "resources": "resources and gpus",
}


def merge(template: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The template, whose first container is the engine's, with the overlay on top, as the API server will store it.

    Maps are merged field by field, and lists with keys (containers, volumes, env, ports ...) entry by entry; any other list is
    replaced. Of fields that exclude each other (value and valueFrom, sources of a volume, handlers of a probe) the overlay's
    stays. `$patch: delete` removes an entry or a map, `$patch: replace` merges nothing into it. Null means nothing: it
    doesn't come through kubectl apply.

    Raises ValueError that begins with the path below podTemplate where the overlay is no part of a Pod template, or changes
    what the operator relies on.
    """
    change = checked(_TEMPLATE, overlay, patches=True)
    _refuse_labels(template.get("metadata", {}), change.get("metadata", {}))
    _refuse_pod(template["spec"], change.get("spec", {}))
    merged: dict[str, Any] = canonical(_TEMPLATE, _merge(_TEMPLATE, template, change))
    return merged


def _merge(node: Node, base: Any, change: Any) -> Any:
    if known := fields(node):
        return _merge_fields(node, known, {} if change.get(PATCH) or base is None else base, change)
    if keys_of(node):
        return _merge_entries(node, base or [], change)
    return {**base, **change} if isinstance(change, Mapping) and base else change


def _merge_fields(
    node: Node, known: Mapping[str, Node], base: Mapping[str, Any], change: Mapping[str, Any]
) -> dict[str, Any]:
    rivals = unions(node)
    ousted = rivals - change.keys() if rivals & change.keys() else set()
    out = {field: value for field, value in base.items() if field not in ousted}
    for field, value in change.items():
        if _deletes(value):
            out.pop(field, None)
        elif field != PATCH:
            out[field] = _merge(known[field], out.get(field), value)
    return out


def _merge_entries(node: Node, base: list[Any], change: list[Any]) -> list[Any]:
    out = {key_of(node, item): item for item in base}
    for item in change:
        key = key_of(node, item)
        if _deletes(item):
            out.pop(key, None)
        else:
            out[key] = _merge(node["items"], out.get(key), item)
    return list(out.values())


def _deletes(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(PATCH) == "delete"


def _refuse_labels(ours: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    """Selectors, metrics and the network rules find an engine by its labels and annotations."""
    for kind, entries in change.items():
        for key, value in entries.items():
            if ours.get(kind, {}).get(key, value) != value or (
                key.startswith(f"{GROUP}/") and key not in ours.get(kind, {})
            ):
                raise ValueError(f".metadata.{kind}[{key!r}]: it is the operator's; remove it")


def _refuse_pod(ours: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    grace = ours.get("terminationGracePeriodSeconds", 0)
    if change.get("terminationGracePeriodSeconds", grace) < grace:
        raise ValueError(
            f".spec.terminationGracePeriodSeconds: {change['terminationGracePeriodSeconds']} is less than the {grace} s "
            "that running requests need; set drainSeconds of the pool"
        )
    engine = ours["containers"][0]
    for at, container in enumerate(change.get("containers", [])):
        if container["name"] == engine["name"]:
            _refuse_engine(engine, container, f".spec.containers[{at}]")


def _refuse_engine(ours: Mapping[str, Any], change: Mapping[str, Any], path: str) -> None:
    if PATCH in change:
        raise ValueError(
            f"{path}.{PATCH}: the container {ours['name']} can't be replaced or removed; name what to change in it"
        )
    for field, instead in _INSTEAD.items():
        if field in change:
            raise ValueError(
                f"{path}.{field}: it is rendered for the engine's version; set {instead} of the GemmaServing"
            )
    taken = {key_of(_PORTS, port): port for port in ours.get("ports", [])}
    named = {port["name"]: key for key, port in taken.items() if "name" in port}
    for at, port in enumerate(change.get("ports", [])):
        key = key_of(_PORTS, port)
        if key in taken and taken[key] != {**taken[key], **port}:
            raise ValueError(
                f"{path}.ports[{at}]: port {key[0]} is the engine's and can't be changed; remove this entry"
            )
        if named.get(port.get("name"), key) != key:
            raise ValueError(
                f"{path}.ports[{at}].name: {port['name']} is the name of the engine's own port; take another"
            )
