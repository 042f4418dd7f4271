"""The claim for weights and compile cache, which all pools of a serving share."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names


def cache_claim(serving: GemmaServing) -> dict[str, Any] | None:
    """The PersistentVolumeClaim that the spec asks for; None where it names an existing one, or none."""
    cache = serving.spec.model.cache
    if cache is None or cache.size is None:
        return None
    spec: dict[str, Any] = {"accessModes": [cache.access_mode], "resources": {"requests": {"storage": cache.size}}}
    # An empty class means "no class", which is another thing than an absent one.
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": names.serving_metadata(serving, names.cache_name(serving.name)),
        "spec": spec,
    }
