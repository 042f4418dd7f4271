"""The Deployment of one pool."""

from __future__ import annotations

from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.desired.pod import Defaults, Engine, pod_template
from gemma_operator.engine.environment import startup_budget_seconds

# Time beside an engine's own start: scheduling, and the pull of an image of 10 GB and more.
PULL_BUDGET_SECONDS = 600
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
REPLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def strategy(serving: GemmaServing) -> dict[str, Any]:
    """A new engine before an old one goes; the other way round where the user says so, or the cache can't be mounted on a
    second node."""
    said, cache = serving.spec.rollout.strategy, serving.spec.model.cache
    alone = cache is not None and cache.access_mode == "ReadWriteOnce"
    return REPLACE if said == "Replace" or (said == "Auto" and alone) else SURGE


def deployment(serving: GemmaServing, pool: str, engine: Engine, defaults: Defaults) -> dict[str, Any]:
    """The Deployment of a pool, without `spec.replicas`: who owns that is decided in plan.py.

    Raises RefusedSpec where the pool's overlay would break the operator.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(serving, pool),
        "spec": {
            "selector": {"matchLabels": names.selector(serving.name, pool)},
            "strategy": strategy(serving),
            "progressDeadlineSeconds": startup_budget_seconds(engine.view) + PULL_BUDGET_SECONDS,
            "revisionHistoryLimit": 3,
            "template": pod_template(serving, pool, engine, defaults),
        },
    }
