"""What should exist in the cluster for one GemmaServing. `desired()` is the only door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.cache import cache_claim
from gemma_operator.desired.deployment import deployment
from gemma_operator.desired.disruption import disruption_budget
from gemma_operator.desired.inference_pool import INFERENCE_POOL, inference_pool
from gemma_operator.desired.names import POOL
from gemma_operator.desired.pod import Defaults, Engine, engine_of
from gemma_operator.desired.route import HTTP_ROUTE, http_route
from gemma_operator.desired.service import entry_service, service
from gemma_operator.desired.tenancy import no_longer_granted, not_granted
from gemma_operator.engine.findings import Finding, RefusedSpec
from gemma_operator.engine.lending import lending_findings

__all__ = ["CHILD_KINDS", "ROUTE_KINDS", "Defaults", "Desired", "Engine", "desired", "is_entry", "refuse_kept"]

CHILD_KINDS = ("Deployment", "Service", "PodDisruptionBudget", "PersistentVolumeClaim")
# Kinds that a cluster needn't have.
ROUTE_KINDS = (HTTP_ROUTE, INFERENCE_POOL)


@dataclass(frozen=True, slots=True)
class Desired:
    """All objects in the order in which they are applied, what is run in them, and what is to be said about it."""

    children: tuple[dict[str, Any], ...]
    """The pools."""
    ways: tuple[dict[str, Any], ...]
    """The ways to them beside the pools' own Services: no engine depends on one."""
    engines: Mapping[str, Engine]
    warnings: tuple[Finding, ...]
    lenders: frozenset[str] = frozenset()
    """Pools whose engines can answer the interactive pool's requests, and may."""

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """Children and ways."""
        return (*self.children, *self.ways)


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
        workload = deployment(serving, pool, engine, defaults)
        refused += not_granted(
            engine.view, workload["spec"]["template"], defaults.tenants_may, _own_priorities(defaults)
        )
        children += [workload, service(serving, pool), disruption_budget(serving, pool)]
    if refused:
        raise RefusedSpec(tuple(refused))
    unfit = _unfit(serving, engines)
    said = [*(warning for engine in engines.values() for warning in engine.command.warnings), *chain(*unfit.values())]
    lenders = frozenset(pool for pool, findings in unfit.items() if not findings)
    return Desired(tuple(children), tuple(_ways(serving)), engines, tuple(dict.fromkeys(said)), lenders)


def refuse_kept(templates: Mapping[str, Mapping[str, Any]], defaults: Defaults) -> None:
    """Raise RefusedSpec where Pod templates of an older spec (pool -> template) hold what is no longer granted."""
    own = _own_priorities(defaults)
    refused = [
        finding
        for pool, kept in templates.items()
        for finding in no_longer_granted(pool, kept, defaults.tenants_may, own)
    ]
    if refused:
        raise RefusedSpec(tuple(refused))


def _own_priorities(defaults: Defaults) -> tuple[str, ...]:
    return tuple(name for _, name in defaults.priority_classes)


def _unfit(serving: GemmaServing, engines: Mapping[str, Engine]) -> dict[str, tuple[Finding, ...]]:
    """Pools that may lend engines, each with what speaks against it."""
    if (borrower := serving.spec.borrower) is None:
        return {}
    lending = [name for name, pool in serving.spec.pools.items() if pool.scaling.lend]
    return {name: lending_findings(engines[name].view, engines[borrower].view) for name in lending}


def is_entry(child: Mapping[str, Any]) -> bool:
    """True for a Service of a serving that is no pool's."""
    return child["kind"] == "Service" and POOL not in child["metadata"].get("labels", {})


def _ways(serving: GemmaServing) -> list[dict[str, Any]]:
    ways, routing = [entry_service(serving)], serving.spec.routing
    if routing:
        ways += [inference_pool(serving, pool, asked) for pool, asked in routing.inference_pools.items()]
        ways += [http_route(serving, routing.gateway)] if routing.gateway else []
    return ways
