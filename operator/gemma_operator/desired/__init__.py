"""What should exist in the cluster for one GemmaServing. `desired()` is the only door."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.deployment import Defaults, deployment
from gemma_operator.desired.service import service

__all__ = ["Defaults", "desired"]


def desired(serving: GemmaServing, defaults: Defaults) -> tuple[dict[str, Any], ...]:
    """All children, in the order in which they are applied.

    Raises UnknownVersion or RefusedArgs, so that a wrong spec yields no half-made set.
    """
    return tuple(
        child for pool in serving.spec.pools for child in (deployment(serving, pool, defaults), service(serving, pool))
    )
