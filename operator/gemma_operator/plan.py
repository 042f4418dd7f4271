"""From what is wanted and what exists to what must be written. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gemma_operator.api.serving import KIND, GemmaServing
from gemma_operator.desired import ROUTE_KINDS
from gemma_operator.desired.names import APPLIED, MANAGER, POOL
from gemma_operator.rollout import Waiting, settle, with_room

Object = dict[str, Any]
Ref = tuple[str, str]
SCALER = f"{MANAGER}-scaler"
# What tells the entries of Kubernetes' lists apart. The name comes last: all mounts of one volume bear its name.
_KEYS = ("mountPath", "devicePath", "ip", "name")


@dataclass(frozen=True, slots=True)
class Scale:
    """Set `spec.replicas` of one Deployment, as the scaler."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in their order: scales before applies, so that a hand-over of `replicas` never passes through 1."""

    scale: tuple[Scale, ...] = ()
    apply: tuple[Object, ...] = ()
    delete: tuple[Ref, ...] = ()
    conflicts: tuple[str, ...] = ()
    leftovers: tuple[Ref, ...] = ()
    """Children of a deleted GemmaServing of the same name: garbage collection is about to remove them."""
    waiting: tuple[Waiting, ...] = ()
    """Pod templates that are not applied now."""


def plan(
    serving: GemmaServing,
    wanted: Iterable[Object],
    live: Iterable[Mapping[str, Any]],
    targets: Mapping[str, int],
    crowded: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """Compare the children wanted with those that exist.

    `live`: our labelled objects, and foreign ones that bear a wanted name. `targets`: pool -> replicas. `crowded`: pool -> Pods
    that have no room until an older engine goes.
    """
    existing = {ref_of(found): found for found in live}
    scale: list[Scale] = []
    apply: list[Object] = []
    conflicts: list[str] = []
    leftovers: list[Ref] = []
    waiting: list[Waiting] = []
    kept: set[Ref] = set()
    for child in wanted:
        ref = ref_of(child)
        found = existing.get(ref)
        kept.add(ref)
        if found is not None and _outlives(found, serving):
            leftovers.append(ref)
            continue
        if found is not None and not _owned(found, serving.uid):
            conflicts.append(
                f"{ref[0]} {ref[1]} exists and belongs to {_owner(found)}: delete or rename it, or rename this GemmaServing"
            )
            continue
        body = child
        if child["kind"] == "Deployment":
            body, waits = settle(serving, child, found)
            body = with_room(serving, body, found, crowded.get(_pool_of(child), 0))
            body, scaled = _with_replicas(serving, body, found, targets)
            scale += scaled
            waiting += waits
        body = stamp(body)
        if found is None or not in_place(body, found, merged=child["kind"] not in ROUTE_KINDS):
            apply.append(body)
    delete = tuple(ref for ref, found in existing.items() if ref not in kept and _owned(found, serving.uid))
    if conflicts or leftovers:
        return Plan(conflicts=tuple(conflicts), leftovers=tuple(leftovers))
    return Plan(tuple(scale), tuple(apply), delete, waiting=tuple(waiting))


def autoscaled(serving: GemmaServing, pool: str) -> bool:
    """True where spec.replicas is no part of the applied Deployment: the scaler, or another autoscaler, moves it."""
    spec = serving.spec.pools[pool]
    return spec.replicas.ceiling > spec.replicas.min or spec.scaling.mode != "Auto"


def _with_replicas(
    serving: GemmaServing, child: Object, found: Mapping[str, Any] | None, targets: Mapping[str, int]
) -> tuple[Object, list[Scale]]:
    """The Deployment with or without `spec.replicas`, and what the scaler must write before it is applied.

    A new one is made with its floor. Of an autoscaled one the scaler becomes co-owner first, and the applier
    leaves the field out only once that is so.
    """
    pool = _pool_of(child)
    target = targets[pool]
    with_target = {**child, "spec": {"replicas": target, **child["spec"]}}
    if found is None or not autoscaled(serving, pool):
        return with_target, []
    if serving.spec.pools[pool].scaling.mode != "Auto" and not _owns_replicas(found, MANAGER):
        return child, []  # Somebody else writes it, and may just now.
    live = int(found["spec"].get("replicas", 1))
    if live == target and _owns_replicas(found, SCALER):
        return child, []
    return child, [Scale(str(child["metadata"]["name"]), target)]


def _owns_replicas(found: Mapping[str, Any], manager: str) -> bool:
    return any(
        entry.get("manager") == manager and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in found["metadata"].get("managedFields", [])
    )


def stamp(child: Object) -> Object:
    """The child with the hash of its own content as an annotation: a removed field shows as a changed hash."""
    content = {**child, "spec": {k: v for k, v in child["spec"].items() if k != "replicas"}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    annotations = {**child["metadata"].get("annotations", {}), APPLIED: digest}
    return {**child, "metadata": {**child["metadata"], "annotations": annotations}}


def in_place(wanted: Any, live: Any, merged: bool = True) -> bool:
    """True where everything wanted is in the live object; what others or the API server added doesn't matter.

    `merged`: lists are merged by key, as Kubernetes does with its own kinds; else each is one value, as in a route.
    """
    if wanted == live:  # most of a child, at the speed of C
        return True
    if isinstance(wanted, dict):
        # The API server stores an empty value as an absent one.
        return isinstance(live, dict) and all(
            in_place(value, live[key], merged) if key in live else value in ("", [], {})
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return False
        key = next(
            (
                key
                for key in _KEYS
                if merged and wanted and all(isinstance(item, dict) and key in item for item in wanted)
            ),
            "",
        )
        if key and len({item[key] for item in wanted}) == len(wanted):
            found = {item.get(key): item for item in live if isinstance(item, dict)}
            return all(item[key] in found and in_place(item, found[item[key]]) for item in wanted)
        return len(wanted) == len(live) and all(in_place(a, b, merged) for a, b in zip(wanted, live, strict=True))
    return False


def ref_of(child: Mapping[str, Any]) -> Ref:
    """(kind, name) of an object."""
    return str(child["kind"]), str(child["metadata"]["name"])


def _pool_of(child: Mapping[str, Any]) -> str:
    return str(child["metadata"]["labels"][POOL])


def _owned(found: Mapping[str, Any], uid: str) -> bool:
    return any(ref.get("uid") == uid and ref.get("controller") for ref in found["metadata"].get("ownerReferences", []))


def _outlives(found: Mapping[str, Any], serving: GemmaServing) -> bool:
    return any(
        (ref.get("kind"), ref.get("name")) == (KIND, serving.name) and ref.get("uid") != serving.uid
        for ref in found["metadata"].get("ownerReferences", [])
    )


def _owner(found: Mapping[str, Any]) -> str:
    refs = found["metadata"].get("ownerReferences") or [{}]
    return f"{refs[0]['kind']} {refs[0]['name']}" if "kind" in refs[0] else "somebody else"
