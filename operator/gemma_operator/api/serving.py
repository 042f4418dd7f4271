"""GemmaServing v1alpha1: what a user may write, with its units, limits and messages.

Defaults that depend on the pool's class or on the engine's version live in `engine/`, not in the CRD,
so that a stored object never changes by itself. `None` always means "not set".
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, model_validator

from gemma_operator.api.base import ApiModel, EachPool, Rule
from gemma_operator.api.engine import Engine
from gemma_operator.api.heartbeat import Heartbeat
from gemma_operator.api.model import Model
from gemma_operator.api.pool import Pool, PoolClass
from gemma_operator.api.rollout import Rollout
from gemma_operator.api.routing import Routing
from gemma_operator.api.scaling import GpuBudget
from gemma_operator.api.values import Schema

GROUP = "gemmaserving.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GemmaServing"
PLURAL = "gemmaservings"

POOL_NAME = "^[a-z]([-a-z0-9]{0,29}[a-z0-9])?$"


class Spec(ApiModel):
    """What is wanted."""

    model: Model
    """The model to serve."""
    engine: Engine = Engine()
    """The vLLM build to serve it with."""
    pools: Annotated[
        dict[Annotated[str, Field(pattern=POOL_NAME)], Annotated[Pool, Schema({"nullable": True})]],
        Field(min_length=1, max_length=8),
        Schema({"minProperties": 1, "maxProperties": 8}),
    ] = {"interactive": Pool(), "batch": Pool()}
    """Pools by name; one `interactive` and one `batch` pool with defaults where absent."""

    gpu_budget: GpuBudget | None = None
    """GPUs that all pools together may use; no limit where absent."""
    rollout: Rollout = Rollout()
    """How changes reach the engines that run."""
    heartbeat: Heartbeat = Heartbeat()
    """When an engine counts as hung, and whether it is restarted."""
    routing: Routing | None = None
    """Ways to the pools besides their Services; none where absent."""

    RULES = (
        EachPool(
            "pool-name",
            "n.matches('^[a-z]([-a-z0-9]{0,29}[a-z0-9])?$')",
            lambda spec, name: re.fullmatch(POOL_NAME, name) is not None,
            "a pool's name has at most 31 lower-case letters, digits and hyphens, and starts with a letter",
        ),
        EachPool(
            "pool-class",
            "n in ['interactive', 'batch'] || (self.pools[n] != null && has(self.pools[n].class))",
            lambda spec, name: name in ("interactive", "batch") or spec.pools[name].class_ is not None,
            "a pool that is not called interactive or batch needs a class: interactive or batch",
        ),
        EachPool(
            "interactive-never-zero",
            "self.pools[n] == null || !has(self.pools[n].replicas) || !has(self.pools[n].replicas.min) || "
            "self.pools[n].replicas.min > 0 || (has(self.pools[n].class) ? self.pools[n].class == 'batch' : n == 'batch')",
            lambda spec, name: spec.pools[name].replicas.min > 0 or spec.class_of(name) == "batch",
            "replicas.min of an interactive pool must be at least 1: nothing would answer while an engine starts",
            source="research/practice.md F7, F8",
        ),
        EachPool(
            "zero-needs-a-signal",
            "self.pools[n] == null || !has(self.pools[n].replicas) || !has(self.pools[n].replicas.min) || "
            "self.pools[n].replicas.min > 0 || (has(self.pools[n].scaling) && (has(self.pools[n].scaling.backlogQuery) || "
            "(has(self.pools[n].scaling.mode) && self.pools[n].scaling.mode in ['Off', 'External'])))",
            lambda spec, name: (
                spec.pools[name].replicas.min > 0
                or spec.pools[name].scaling.backlog_query is not None
                or spec.pools[name].scaling.mode in ("Off", "External")
            ),
            "replicas.min is 0: only something that counts while no engine runs can wake the pool; set scaling.backlogQuery, "
            "or replicas.min to 1 (scaling.mode Off and External need neither)",
            source="research/practice.md F8",
        ),
        EachPool(
            "batch-scaling",
            "self.pools[n] == null || !has(self.pools[n].scaling) || "
            "(!has(self.pools[n].scaling.backlogQuery) && !has(self.pools[n].scaling.deadline)) || "
            "(has(self.pools[n].class) ? self.pools[n].class == 'batch' : n == 'batch')",
            lambda spec, name: (
                spec.class_of(name) == "batch"
                or (spec.pools[name].scaling.backlog_query is None and spec.pools[name].scaling.deadline is None)
            ),
            "scaling.backlogQuery and scaling.deadline are for batch pools: an interactive pool goes by its TTFT target",
        ),
        EachPool(
            "lending",
            "self.pools[n] == null || !has(self.pools[n].scaling) || !has(self.pools[n].scaling.lend) || "
            "((has(self.pools[n].class) ? self.pools[n].class == 'batch' : n == 'batch') && "
            "self.pools.filter(m, self.pools[m] != null && has(self.pools[m].class) ? "
            "self.pools[m].class == 'interactive' : m != 'batch').size() == 1)",
            lambda spec, name: (
                spec.pools[name].scaling.lend is None or (spec.class_of(name) == "batch" and spec.borrower is not None)
            ),
            "scaling.lend is for batch pools beside exactly one interactive pool, which borrows their engines: remove it",
        ),
        Rule(
            "floors-within-budget",
            "!has(self.gpuBudget) || !has(self.pools) || self.gpuBudget >= self.pools.map(n, self.pools[n] == null ? 1 : "
            "(has(self.pools[n].replicas) && has(self.pools[n].replicas.min) ? self.pools[n].replicas.min : 1) * "
            "(has(self.pools[n].gpus) ? self.pools[n].gpus : (has(self.pools[n].tensorParallel) ? self.pools[n].tensorParallel : 1) * "
            "(has(self.pools[n].pipelineParallel) ? self.pools[n].pipelineParallel : 1) * "
            "(has(self.pools[n].dataParallel) ? self.pools[n].dataParallel : 1))).sum()",
            lambda spec: (
                spec.gpu_budget is None
                or spec.gpu_budget >= sum(pool.replicas.min * pool.gpu_count for pool in spec.pools.values())
            ),
            "it must hold the floors of all pools (replicas.min x GPUs per engine, summed up)",
            shows=("gpuBudget",),
            source="research/practice.md F9",
        ),
        Rule(
            "one-node-cache-one-engine",
            "!has(self.model.cache) || !has(self.model.cache.accessMode) || self.model.cache.accessMode != 'ReadWriteOnce' || "
            "(has(self.pools) && self.pools.size() == 1 && self.pools.all(n, self.pools[n] == null || !has(self.pools[n].replicas) || "
            "((!has(self.pools[n].replicas.min) || self.pools[n].replicas.min < 2) && "
            "(!has(self.pools[n].replicas.max) || self.pools[n].replicas.max < 2))))",
            lambda spec: (
                not spec.model.cache or spec.model.cache.access_mode == "ReadWriteMany" or spec.most_engines == 1
            ),
            "a cache that only one node can mount needs a serving of one pool with one engine: use ReadWriteMany, or drop the cache",
            shows=("model.cache.accessMode",),
            source="research/gitops.md 6",
        ),
        Rule(
            "inference-pools-are-pools",
            "!has(self.routing) || !has(self.routing.inferencePools) || self.routing.inferencePools.all(n, "
            "has(self.pools) ? n in self.pools : n in ['interactive', 'batch'])",
            lambda spec: spec.routing is None or spec.routing.inference_pools.keys() <= spec.pools.keys(),
            "routing.inferencePools goes by the names of pools: remove what is none",
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_pools(cls, data: Any) -> Any:
        """`batch:` without a body means a batch pool with defaults."""
        if isinstance(data, dict) and isinstance(data.get("pools"), dict):
            return {**data, "pools": {name: {} if pool is None else pool for name, pool in data["pools"].items()}}
        return data

    def class_of(self, pool: str) -> PoolClass:
        """Class of the pool called `pool`."""
        explicit = self.pools[pool].class_
        return explicit or ("batch" if pool == "batch" else "interactive")

    def main_pool(self, of: PoolClass) -> str | None:
        """The pool that requests of a class go to: the one called as the class, else its first by name; None where it has none."""
        return next(
            (name for name in (of, *sorted(self.pools)) if name in self.pools and self.class_of(name) == of), None
        )

    @property
    def entry_pool(self) -> str:
        """The pool for clients that choose no class."""
        return self.main_pool("interactive") or self.main_pool("batch") or ""

    @property
    def borrower(self) -> str | None:
        """The pool that batch pools may lend engines to: the only interactive one."""
        interactive = [name for name in self.pools if self.class_of(name) == "interactive"]
        return interactive[0] if len(interactive) == 1 else None

    @property
    def lends(self) -> bool:
        """True where engines may serve another pool than their own."""
        return any(pool.scaling.lend for pool in self.pools.values())

    @property
    def most_engines(self) -> int:
        """Engines that may run at once over all pools, in pieces."""
        return sum(pool.replicas.ceiling for pool in self.pools.values())


class GemmaServing(ApiModel):
    """A parsed object: identity and spec; status is never read from here."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec
    written: dict[str, Any] = {}
    """The spec word for word, without nulls: it is the same for every build of the operator."""
