"""The CustomResourceDefinition, generated from the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemma_operator.api.schema import openapi
from gemma_operator.api.serving import GROUP, KIND, PLURAL, VERSION, Spec

CRD_NAME = f"{PLURAL}.{GROUP}"
_INT = {"type": "integer", "format": "int64"}
_STRING = {"type": "string"}
_NUMBER = {"type": "number"}
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_CONDITIONS: dict[str, Any] = {
    "type": "array",
    "description": "Ready, Reconciling and Stalled follow kstatus.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": _STRING,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": _STRING,
            "message": _STRING,
            "observedGeneration": _INT,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    },
}

_POOL_STATUS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "class": _STRING,
        "desired": {**_INT, "description": "Engines asked for."},
        "ready": {**_INT, "description": "Engines that answer."},
        "pending": {**_INT, "description": "Engines on their way."},
        "lent": {**_INT, "description": "Engines of this pool that answer another pool's requests now."},
        "borrowed": {**_INT, "description": "Engines of other pools that answer this pool's requests now."},
        "url": {**_STRING, "description": "Address of the pool's Service inside the cluster."},
        "p95Milliseconds": {**_INT, "description": "p95 TTFT over the window, milliseconds."},
        "attainment": {**_STRING, "description": "Share of requests within the SLO over the window, with its bounds."},
        "samples": {**_INT, "description": "Requests in the window."},
        "message": {**_STRING, "description": "What is wrong with the pool's engines, if anything."},
        "revision": {**_INT, "description": "Revision of its Deployment."},
        "revisionSince": {"type": "string", "format": "date-time", "description": "When that revision was first seen."},
        "lastGoodRevision": {**_INT, "description": "The last revision that all engines ran and were Ready on."},
        "lastRestart": {
            "type": "string",
            "format": "date-time",
            "description": "When one of its engines was last evicted because it hung.",
        },
        "startup": {
            "type": "object",
            "description": "How far the newest engine is in its start.",
            "properties": {
                "pod": {**_STRING, "description": "Name of its Pod."},
                "phase": {**_STRING, "description": "Scheduling, Pulling, Downloading, Loading, Compiling or Ready."},
                "seconds": {
                    "type": "object",
                    "additionalProperties": _INT,
                    "description": "Seconds that each phase before took.",
                },
            },
        },
        "lastDecision": {
            "type": "object",
            "description": "What the autoscaler last decided, and why.",
            "properties": {
                "replicas": _INT,
                "reason": _STRING,
                "message": _STRING,
                "record": {**_FREE, "description": "The whole sum, for `gemma-operator explain`."},
            },
        },
        "memory": {**_FREE, "description": "What the autoscaler has learnt, kept for a restart of the operator."},
    },
}

_STATUS: dict[str, Any] = {
    "type": "object",
    "default": {"observedGeneration": -1},
    "properties": {
        "observedGeneration": {**_INT, "description": "Generation that this status speaks of; -1 before the first."},
        "conditions": _CONDITIONS,
        "endpoints": {
            "type": "object",
            "description": "Addresses inside the cluster.",
            "properties": {
                "entry": {**_STRING, "description": "For clients that choose no class."},
                "interactive": {**_STRING, "description": "For requests that a person waits for."},
                "batch": {**_STRING, "description": "For requests that can wait."},
            },
        },
        "pools": {"type": "object", "additionalProperties": _POOL_STATUS},
    },
}


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})


_COLUMNS = [
    _column("Model", ".spec.model.id"),
    _column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
    _column("SLO", '.status.conditions[?(@.type=="SLOMet")].status'),
    _column("Interactive", ".status.pools.interactive.ready", "integer"),
    _column("p95 TTFT ms", ".status.pools.interactive.p95Milliseconds", "integer"),
    _column("Batch", ".status.pools.batch.ready", "integer"),
    _column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    _column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
    _column("Age", ".metadata.creationTimestamp", "date"),
]


def crd() -> dict[str, Any]:
    """The CRD as the API server takes it."""
    schema = {
        "type": "object",
        "description": "Gemma 4 served by vLLM in SLO-separated pools.",
        "required": ["spec"],
        "properties": {
            "apiVersion": _STRING,
            "kind": _STRING,
            "metadata": {"type": "object"},
            "spec": openapi(Spec),
            "status": _STATUS,
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": _COLUMNS,
    }
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower(), "shortNames": ["gsv"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def missing_fields(installed: Mapping[str, Any]) -> list[str]:
    """Paths of the fields that this build knows and a CRD in the cluster does not: the API server drops them from objects."""
    schemas = [v["schema"]["openAPIV3Schema"] for v in installed["spec"]["versions"] if v["name"] == VERSION]
    expected = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return sorted(_missing(schemas[0], expected, "")) if schemas else [VERSION]


def _missing(have: Mapping[str, Any], want: Mapping[str, Any], path: str) -> Iterator[str]:
    if have.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, schema in want.get("properties", {}).items():
        there = have.get("properties", {}).get(name)
        here = f"{path}.{name}".lstrip(".")
        if there is None:
            yield here
        else:
            yield from _missing(there, schema, here)
    for inside, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(want.get(inside), Mapping) and isinstance(have.get(inside), Mapping):
            yield from _missing(have[inside], want[inside], path + mark)
