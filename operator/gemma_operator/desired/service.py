"""The Service of one pool."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.engine.settings import PORT


def service(serving: GemmaServing, pool: str) -> dict[str, Any]:
    """A ClusterIP Service in front of the pool's Ready engines."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(serving, pool),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(serving.name, pool),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
