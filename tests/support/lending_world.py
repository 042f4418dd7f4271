"""A serving whose batch pool may lend: scaler and reconciler on a cluster in memory, engines with counters. No clock runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gemma_operator.desired.names import CLASS, DELETION_COST, POOL
from gemma_operator.metrics.queries import Queries
from gemma_operator.reconcile import Reconciler
from gemma_operator.scaler import Scaler
from gemma_operator.scaling.counters import EngineCounters, Missing, Reading, Scrape
from gemma_operator.settings import read_settings
from tests.unit.builders import body
from tests.unit.fake_cluster import FakeCluster

KEY = ("ns", "chat")
TICK = 15
START = 1_800_000_000.0
POOLS = {
    "interactive": {"replicas": {"min": 1, "max": 6}},
    "batch": {"replicas": {"min": 1, "max": 6}, "scaling": {"lend": 2}},
}


class World:
    """`rate` requests per second go to the Pods whose label says so; an engine answers `most` of them in time."""

    def __init__(self, pools: Mapping[str, Any] = POOLS, **spec: Any) -> None:
        self.now, self.rate, self.most, self.cold_start = START, 10.0, 30.0, 60.0
        self.cluster = FakeCluster(body({"pools": dict(pools), **spec}))
        self.counts: dict[str, list[float]] = {}
        self.queued: dict[str, float] = {}
        """What batch clients have waiting in an engine."""
        self.fault: Missing | None = None
        self.born = 0
        self.restart()

    def restart(self) -> None:
        """The operator starts anew: what is in the cluster is all that survives."""
        self.scaler = Scaler(self, read_settings({}), clock=lambda: self.now)
        self.operator = Reconciler(self.cluster, self.scaler, read_settings({}))  # type: ignore[arg-type]

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        found = {}
        for pod in self.pods():
            good, late = self.counts.setdefault(pod["metadata"]["uid"], [0.0, 0.0])
            waiting = self.queued.get(pod["metadata"]["name"], 0.0)
            found[pod["metadata"]["uid"]] = EngineCounters(
                pod["metadata"]["uid"], self.now, ((0.3, good), (math.inf, good + late)), 1.0, waiting,
                finished={"stop": good + late}, prompt_tokens=500 * (good + late), generated_tokens=10 * (good + late),
                media_items=0.0,
            )  # fmt: skip
        return self.fault or Scrape(found)

    def pods(self, pool: str = "", serves: str = "") -> list[dict[str, Any]]:
        """Living Pods, by their pool and by the class that they serve."""
        found = [o for (kind, _, _), o in self.cluster.objects.items() if kind == "Pod"]
        wanted = {key: value for key, value in ((POOL, pool), (CLASS, serves)) if value}
        return [pod for pod in found if wanted.items() <= pod["metadata"]["labels"].items()]

    @property
    def lent(self) -> list[str]:
        """Names of the batch Pods that serve interactive requests."""
        return [pod["metadata"]["name"] for pod in self.pods("batch", "interactive")]

    def follow(self) -> None:
        """What the controllers and the kubelet do; a new Pod is Ready after a cold start."""
        for (kind, _, name), found in list(self.cluster.objects.items()):
            if kind == "Deployment":
                pool = found["metadata"]["labels"][POOL]
                self._size(name, pool, found)
        for pod in self.pods():
            born = pod["born"]
            if self.now >= born + self.cold_start:
                pod["status"] = _ready(max(born + self.cold_start, START))

    def _size(self, name: str, pool: str, found: dict[str, Any]) -> None:
        size, own = found["spec"]["replicas"], self.pods(pool)
        for _ in range(size - len(own)):
            self.born += 1
            pod = f"{name}-{self.born}"
            labels = dict(found["spec"]["template"]["metadata"]["labels"])
            meta = {"name": pod, "namespace": "ns", "uid": pod, "labels": labels, "creationTimestamp": _text(self.now)}
            self.cluster.objects["Pod", "ns", pod] = {
                "kind": "Pod", "metadata": meta, "status": {}, "born": self.now,
            }  # fmt: skip
        for pod in sorted(own, key=_cost)[: max(0, len(own) - size)]:
            del self.cluster.objects["Pod", "ns", pod["metadata"]["name"]]
        ready = sum(bool(pod["status"]) for pod in self.pods(pool))
        counts = {"replicas": size, "updatedReplicas": size, "readyReplicas": ready}
        found["status"] = {**counts, "observedGeneration": found["metadata"]["generation"]}

    async def start(self, interactive: int = 1, batch: int = 3) -> None:
        """All engines are there and have been for long."""
        await self.operator.reconcile(KEY)
        for pool, size in (("interactive", interactive), ("batch", batch)):
            await self.cluster.scale("ns", f"chat-{pool}", size)
        self.now -= 3600
        self.follow()
        self.now += 3600
        self.follow()
        await self.operator.reconcile(KEY)
        await self.tick(4)

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += TICK
            serving = [pod for pod in self.pods(serves="interactive") if pod["status"]]
            for pod in serving:
                share = self.rate / len(serving)
                counts = self.counts.setdefault(pod["metadata"]["uid"], [0.0, 0.0])
                counts[0] += min(share, self.most) * TICK
                counts[1] += max(0.0, share - self.most) * TICK
            if await self.scaler.tick():
                await self.operator.reconcile(KEY)
            self.follow()
            await self.operator.reconcile(KEY)  # the event of a Pod

    def edit(self, pool: str, **changed: Any) -> None:
        found = self.cluster.objects["GemmaServing", *KEY]
        found["spec"]["pools"][pool] = {**found["spec"]["pools"][pool], **changed}
        found["metadata"]["generation"] += 1

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects["GemmaServing", *KEY]["status"]
        return found

    def condition(self, kind: str) -> str:
        return next(f"{c['status']} {c['reason']}" for c in self.status["conditions"] if c["type"] == kind)


def _cost(pod: dict[str, Any]) -> int:
    """A ReplicaSet removes what isn't Ready first, then what costs less."""
    cost = pod["metadata"].get("annotations", {}).get(DELETION_COST, "0")
    return int(cost) if pod["status"] else -(10**12)


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready(at: float) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _text(at)}]}
