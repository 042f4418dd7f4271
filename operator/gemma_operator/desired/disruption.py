"""The PodDisruptionBudget of one pool."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names


def disruption_budget(serving: GemmaServing, pool: str) -> dict[str, Any]:
    """A drained node takes one engine of a pool at a time; one that isn't Ready never holds a drain up."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(serving, pool),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(serving.name, pool)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
