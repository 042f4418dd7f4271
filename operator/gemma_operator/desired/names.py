"""Names, labels and owner references. Nobody else spells a label."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from gemma_operator.api.serving import API_VERSION, GROUP, KIND, GemmaServing

MANAGER = "gemma-operator"
MANAGED_BY = "app.kubernetes.io/managed-by"
SERVING = f"{GROUP}/serving"
POOL = f"{GROUP}/pool"
CLASS = f"{GROUP}/class"
APPLIED = f"{GROUP}/applied"
ASKED = f"{GROUP}/asked"
TEMPLATE = f"{GROUP}/template"
SELECT_OURS = f"{MANAGED_BY}={MANAGER}"

_DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
# A Pod's name adds "-<template hash>-<suffix>" (up to 17 characters) and must stay within 63 for its hostname.
_CHILD_LENGTH = 45


def child_name(serving: str, pool: str) -> str:
    """Name of a pool's Deployment and Service: `<serving>-<pool>`, with a hash where that is unsafe or ambiguous."""
    plain = f"{serving}-{pool}"
    if "-" not in pool and len(plain) <= _CHILD_LENGTH and _DNS_1035.match(plain):
        return plain
    digest = hashlib.sha256(f"{serving}/{pool}".encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", serving.lower()).strip("-")
    if not slug[:1].isalpha():
        slug = f"g-{slug}"
    room = _CHILD_LENGTH - len(digest) - 2 - min(len(pool), 16)
    return f"{slug[:room].rstrip('-')}-{pool[:16].rstrip('-')}-{digest}"


def label_value(name: str) -> str:
    """A name as a label value: itself up to 63 characters, else cut and hashed."""
    if len(name) <= 63:
        return name
    return f"{name[:54].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def selector(serving: str, pool: str) -> dict[str, str]:
    """Labels that pick the engine Pods of one pool; they never change."""
    return {SERVING: label_value(serving), POOL: pool}


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
