"""What should exist in the cluster for one GemmaServing. `desired()` is the only door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.cache import cache_claim
from gemma_operator.desired.deployment import deployment
from gemma_operator.desired.disruption import disruption_budget
from gemma_operator.desired.pod import Defaults, Engine, engine_of
from gemma_operator.desired.service import service
from gemma_operator.engine.findings import Finding, RefusedSpec

__all__ = ["CHILD_KINDS", "Defaults", "Desired", "Engine", "desired"]

CHILD_KINDS = ("Deployment", "Service", "PodDisruptionBudget", "PersistentVolumeClaim")


@dataclass(frozen=True, slots=True)
class Desired:
    """All children in the order in which they are applied, what is run in them, and what is to be said about it."""

    children: tuple[dict[str, Any], ...]
    engines: Mapping[str, Engine]
    warnings: tuple[Finding, ...]


def desired(serving: GemmaServing, defaults: Defaults) -> Desired:
    """What a serving becomes.

    Raises UnknownVersion or RefusedSpec, so that a wrong spec yields no half-made set.
    """
    engines: dict[str, Engine] = {}
    refused: list[Finding] = []
    for pool in serving.spec.pools:
        try:
            engines[pool] = engine_of(serving, pool, defaults)
        except RefusedSpec as error:
            refused += error.findings
    if refused:
        raise RefusedSpec(tuple(refused))
    claim = cache_claim(serving)
    children = [claim] if claim else []
    for pool, engine in engines.items():
        children += [
            deployment(serving, pool, engine, defaults),
            service(serving, pool),
            disruption_budget(serving, pool),
        ]
    warnings = dict.fromkeys(warning for engine in engines.values() for warning in engine.command.warnings)
    return Desired(tuple(children), engines, tuple(warnings))
