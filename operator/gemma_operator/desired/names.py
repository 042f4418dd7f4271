"""Names, labels and owner references. Nobody else spells a label."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from gemma_operator.api.serving import API_VERSION, GROUP, KIND, GemmaServing, Spec

MANAGER = "gemma-operator"
MANAGED_BY = "app.kubernetes.io/managed-by"
SERVING = f"{GROUP}/serving"
POOL = f"{GROUP}/pool"
CLASS = f"{GROUP}/class"
"""The class of requests that an engine Pod answers: its pool's, or that of the pool which it is lent to."""
LENT = f"{GROUP}/lent-since"
# kubernetes.io/docs/reference/labels-annotations-taints: the ReplicaSet removes the lowest first.
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
APPLIED = f"{GROUP}/applied"
ASKED = f"{GROUP}/asked"
TEMPLATE = f"{GROUP}/template"
SELECT_OURS = f"{MANAGED_BY}={MANAGER}"

_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
# A Pod's name adds "-<template hash>-<suffix>" (up to 17 characters) and must stay within 63 for its hostname.
_CHILD_LENGTH = 45
_SERVICE_LENGTH = 63
_DIGEST_LENGTH = 8


def child_name(serving: str, pool: str) -> str:
    """Name of a pool's Deployment and Service: `<serving>-<pool>`, with a hash where that is unsafe or ambiguous."""
    plain = f"{serving}-{pool}"
    if "-" not in pool and len(plain) <= _CHILD_LENGTH and _DNS_1035.match(plain):
        return plain
    room = _CHILD_LENGTH - _DIGEST_LENGTH - 2 - min(len(pool), 16)
    return _hashed(serving, room, f"-{pool[:16].rstrip('-')}", f"{serving}/{pool}")


def entry_name(serving: str) -> str:
    """Name of the Service for clients that choose no class, and of the route: the serving's own.

    It bears a hash where that is no name for a Service, where another serving's pool would be called so, and for `vllm`:
    Kubernetes would give other engines of the namespace a variable VLLM_PORT, on which vLLM exits (research/gitops.md 0).
    """
    is_safe = len(serving) <= _SERVICE_LENGTH and _DNS_1035.match(serving)
    if is_safe and serving != "vllm" and not serving.endswith(("-interactive", "-batch")):
        return serving
    return _hashed(serving, _SERVICE_LENGTH - _DIGEST_LENGTH - 1, "", serving)


def _hashed(serving: str, room: int, tail: str, content: str) -> str:
    """As much of the serving's name as there is room for, the tail, and a hash of the content."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_LENGTH]
    slug = re.sub(r"[^a-z0-9]+", "-", serving.lower()).strip("-")
    if not slug[:1].isalpha():
        slug = f"g-{slug}"
    return f"{slug[:room].rstrip('-')}{tail}-{digest}"


def label_value(name: str) -> str:
    """A name as a label value: itself up to 63 characters, else cut and hashed."""
    if len(name) <= 63:
        return name
    return f"{name[:54].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def selector(serving: str, pool: str) -> dict[str, str]:
    """Labels that pick the engine Pods of one pool; they never change."""
    return {SERVING: label_value(serving), POOL: pool}


def traffic(spec: Spec, serving: str, pool: str) -> dict[str, str]:
    """Labels that pick the engine Pods which answer a pool's requests.

    Where engines may be lent, the class in their label decides: it is no part of the Deployments' selectors, so that a Pod can
    change it and stay its ReplicaSet's. Every Pod has had that label from its start.
    """
    own = selector(serving, pool)
    if not spec.lends:
        return own
    if pool == spec.borrower:
        return {SERVING: own[SERVING], CLASS: "interactive"}
    return {**own, CLASS: spec.class_of(pool)}


def labels(serving: str, pool: str) -> dict[str, str]:
    """Labels of every child."""
    return {"app.kubernetes.io/name": "gemma-engine", MANAGED_BY: MANAGER, **selector(serving, pool)}


def cache_name(serving: str) -> str:
    """Name of the claim that the operator makes for a serving's cache; no pool's child can bear it."""
    return child_name(serving, "model-cache")


def metadata(serving: GemmaServing, pool: str) -> dict[str, Any]:
    """Metadata of a pool's child: nothing is inherited from the GemmaServing but its name and its ownership."""
    return _metadata(serving, child_name(serving.name, pool), labels(serving.name, pool))


def serving_metadata(serving: GemmaServing, name: str) -> dict[str, Any]:
    """Metadata of a child that belongs to all pools."""
    common = labels(serving.name, "")
    return _metadata(serving, name, {key: value for key, value in common.items() if key != POOL})


def _metadata(serving: GemmaServing, name: str, labelled: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": serving.namespace,
        "labels": labelled,
        "annotations": {SERVING: serving.name},
        **_owned_by(serving),
    }


def _owned_by(serving: GemmaServing) -> dict[str, Any]:
    """The controller reference; none for an object that is only rendered, which has no uid."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": serving.name, "uid": serving.uid}
    return {"ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}]} if serving.uid else {}


def pool_url(serving: str, namespace: str, pool: str, port: int) -> str:
    """Address of a pool's Service inside the cluster."""
    return f"http://{child_name(serving, pool)}.{namespace}.svc:{port}"


def entry_url(serving: str, namespace: str, port: int) -> str:
    """Address for clients that choose no class, inside the cluster."""
    return f"http://{entry_name(serving)}.{namespace}.svc:{port}"
