"""The InferencePool of one pool."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.routing import POOL_GROUP, InferencePoolRouting
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.engine.settings import PORT

INFERENCE_POOL = "InferencePool"


def inference_pool(serving: GemmaServing, pool: str, asked: InferencePoolRouting) -> dict[str, Any]:
    """The pool's engines for a gateway that asks the user's endpoint picker which of them takes a request."""
    return {
        "apiVersion": f"{POOL_GROUP}/v1",
        "kind": INFERENCE_POOL,
        "metadata": names.metadata(serving, pool),
        "spec": {
            "selector": {"matchLabels": names.traffic(serving.spec, serving.name, pool)},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": asked.endpoint_picker_ref.model_dump(by_alias=True, exclude_none=True),
        },
    }
