"""The Services: one of each pool, and the entry of the serving."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.engine.settings import PORT


def service(serving: GemmaServing, pool: str) -> dict[str, Any]:
    """A ClusterIP Service in front of the pool's Ready engines."""
    return _service(names.metadata(serving, pool), names.traffic(serving.spec, serving.name, pool))


def entry_service(serving: GemmaServing) -> dict[str, Any]:
    """A Service called as the serving, for clients that choose no class.

    It selects one pool only: kube-proxy would spread requests over the classes.
    """
    metadata = names.serving_metadata(serving, names.entry_name(serving.name))
    return _service(metadata, names.traffic(serving.spec, serving.name, serving.spec.entry_pool))


def _service(metadata: dict[str, Any], selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
