"""Scaler and reconciler together on a cluster in memory: faults of the API server and of other writers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.prometheus import PrometheusSource
from gemma_operator.reconcile import Reconciler
from gemma_operator.scaler import Scaler
from gemma_operator.settings import read_settings
from tests.support.scripted_prometheus import Reply, ScriptedEngine, ScriptedPrometheus, refusal, scripted_prometheus
from tests.unit.builders import body
from tests.unit.fake_cluster import FakeCluster

KEY = ("ns", "chat")
NAME = "chat-interactive"
TICK = 15
START = 1_800_000_000.0


class Cluster(FakeCluster):
    """Writes of the status fail as often as `broken` says."""

    broken = 0

    async def put_status(self, namespace: str, name: str, status: Any) -> None:
        if self.broken:
            self.broken -= 1
            raise ConnectionError("the API server went away")
        await super().put_status(namespace, name, status)

    async def log(self, namespace: str, pod: str) -> str:
        return ""


class World:
    """An operator, its cluster and its Prometheus; time passes by ticks."""

    def __init__(self, prometheus: ScriptedPrometheus, minimum: int = 1, maximum: int = 6, **pool: Any) -> None:
        self.prometheus, self.now, self.rate = prometheus, START, 3.0
        pools = {"interactive": {"replicas": {"min": minimum, "max": maximum}, **pool}}
        self.cluster = Cluster(body({"pools": pools}))
        self.failures = 0
        self.restart()

    def restart(self) -> None:
        source = PrometheusSource(PrometheusClient(Access(self.prometheus.url)))
        self.scaler = Scaler(source, read_settings({}), clock=lambda: self.now)
        self.operator = Reconciler(self.cluster, self.scaler, read_settings({}))  # type: ignore[arg-type]

    async def reconcile(self) -> None:
        """Once, and again where it fails, as the queue does."""
        for _ in range(3):
            try:
                await self.operator.reconcile(KEY)
                return
            except ConnectionError:
                self.failures += 1
        raise AssertionError("it fails for ever")

    def follow(self) -> None:
        """The Deployment's controllers, and the engines: all Pods asked for are there and Ready."""
        found = self.cluster.deployment(NAME)
        size = found["spec"]["replicas"]
        counts = {"replicas": size, "updatedReplicas": size, "readyReplicas": size}
        found["status"] = {**counts, "observedGeneration": found["metadata"]["generation"]}
        for n in range(20):
            key = ("Pod", "ns", f"{NAME}-{n}")
            if n >= size:
                self.cluster.objects.pop(key, None)
            elif key not in self.cluster.objects:
                born = datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                labels = found["spec"]["template"]["metadata"]["labels"]
                meta = {"name": key[2], "namespace": "ns", "uid": key[2], "labels": labels, "creationTimestamp": born}
                status = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": born}]}
                self.cluster.objects[key] = {"kind": "Pod", "metadata": meta, "status": status}
        known = {engine.pod_uid: engine for engine in self.prometheus.engines}
        self.prometheus.engines = [known.get(f"{NAME}-{n}") or ScriptedEngine(f"{NAME}-{n}") for n in range(size)]

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += TICK
            self.prometheus.now = self.now
            each = self.rate * TICK / max(1, len(self.prometheus.engines))
            self.prometheus.engines = [
                replace(engine, good=engine.good + each, prompt_tokens=engine.prompt_tokens + 500 * each)
                for engine in self.prometheus.engines
            ]
            for key in await self.scaler.tick():
                assert key == KEY
                await self.reconcile()
            self.follow()
            await self.reconcile()  # the event of the Deployment, or of a Pod

    def edit(self, **pool: Any) -> None:
        found = self.cluster.objects["GemmaServing", *KEY]
        found["spec"]["pools"]["interactive"] |= pool
        found["metadata"]["generation"] += 1

    def set_by_hpa(self, replicas: int) -> None:
        """By an update, as an HPA does it: it becomes the only owner of the field."""
        found = self.cluster.deployment(NAME)
        found["spec"]["replicas"] = replicas
        owner = {"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        found["metadata"]["managedFields"] = [owner]
        self.follow()

    async def start(self, size: int) -> None:
        await self.reconcile()
        await self.cluster.scale("ns", NAME, size)
        self.follow()
        await self.reconcile()
        self.cluster.sizes.clear()

    @property
    def size(self) -> int:
        return int(self.cluster.deployment(NAME)["spec"]["replicas"])

    @property
    def pool(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects["GemmaServing", *KEY]["status"]["pools"]["interactive"]
        return found

    def condition(self, kind: str) -> str:
        conditions = self.cluster.objects["GemmaServing", *KEY]["status"]["conditions"]
        return next(f"{c['status']} {c['reason']}" for c in conditions if c["type"] == kind)


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


async def test_a_rise_in_load_is_followed_and_explained(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus)
    await world.start(1)
    await world.tick(10)
    world.rate = 60.0
    await world.tick(6)
    assert world.size > 3
    assert world.pool["lastDecision"]["record"]["terms"]["for_demand"] == world.size
    assert any(reason == "Scaled" and "a load of" in message for _, reason, message in world.cluster.events)
    assert world.condition("MetricsAvailable") == "True Fresh"
    assert world.condition("SLOMet") == "True Met"


async def test_a_status_that_can_not_be_written_once_stops_nothing(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus)
    await world.start(1)
    await world.tick(6)
    world.cluster.broken, world.rate = 1, 60.0
    await world.tick(6)
    assert world.failures == 1
    assert world.size > 3
    assert world.pool["desired"] == world.size


async def test_another_writer_of_replicas_is_answered_once_per_tick_and_told(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus, minimum=2)
    await world.start(5)
    world.rate = 60.0
    await world.tick(6)
    wanted = world.size
    for _ in range(4):
        world.cluster.sizes.clear()
        for _ in range(5):
            await world.cluster.scale("ns", NAME, 2)
            await world.reconcile()
        assert world.cluster.sizes == [2] * 5, "no fight at the speed of events"
        await world.tick(2)
        assert world.size == wanted
    assert world.condition("ScalingSound") == "False Contested"
    assert world.condition("Ready") == "True PoolsReady"


async def test_a_minimum_above_the_size_is_reached_without_metrics(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus)
    await world.start(1)
    prometheus.reply = Reply(503)
    world.edit(replicas={"min": 3, "max": 6})
    await world.reconcile()
    assert world.size == 3
    await world.tick(4)
    assert world.size == 3
    assert world.condition("MetricsAvailable") == "False QueryFailed"
    assert world.condition("Ready") == "True PoolsReady"


async def test_a_restart_in_mid_cooldown_lowers_nothing_and_forgets_nothing(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus)
    await world.start(4)
    await world.tick(45)
    learnt = world.pool["memory"]
    assert learnt["version"] == 3
    await world.cluster.scale("ns", NAME, 4)
    world.follow()
    world.restart()
    await world.reconcile()
    assert world.pool["memory"] == learnt
    world.cluster.sizes.clear()
    await world.tick(7)
    assert world.cluster.sizes == []
    assert world.size == 4


async def test_a_quiet_pool_writes_nothing(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus, minimum=2, maximum=2)
    world.rate = 0.0
    await world.start(2)
    await world.tick(40)
    world.cluster.writes.clear()
    await world.tick(20)
    assert world.cluster.writes == []


@pytest.mark.parametrize("mode", ["DryRun", "Off", "External"])
async def test_in_other_modes_nothing_is_written(prometheus: ScriptedPrometheus, mode: str) -> None:
    world = World(prometheus, minimum=2, scaling={"mode": mode})
    await world.start(2)
    world.rate = 90.0
    await world.tick(10)
    world.set_by_hpa(1)
    await world.tick(10)
    world.set_by_hpa(9)
    await world.tick(10)
    assert world.cluster.sizes == []
    assert world.size == 9
    assert world.condition("ScalingSound") == "True AsExpected"
    said = world.pool["lastDecision"]["message"]
    assert ("would be" in said) == (mode == "DryRun"), said
    told = [message for kind, reason, message in world.cluster.events if reason == "DryRun"]
    assert bool(told) == (mode == "DryRun")
    assert all(message.startswith("pool interactive: would be ") for message in told)
    assert len({message.split(":")[1] for message in told}) == len(told), "one for each other number"


@pytest.mark.parametrize(
    "before", [{"replicas": {"min": 4}}, {"replicas": {"min": 2, "max": 6}}], ids=["fixed", "ours"]
)
async def test_a_hand_over_to_another_autoscaler_never_passes_through_one(
    prometheus: ScriptedPrometheus, before: dict[str, Any]
) -> None:
    world = World(prometheus, 1, 6)
    world.edit(**before)
    await world.start(4)
    await world.tick(2)
    world.edit(replicas={"min": 2, "max": 6}, scaling={"mode": "External"})
    for _ in range(4):
        await world.reconcile()
        world.follow()
    assert set(world.cluster.sizes) <= {4}
    world.set_by_hpa(5)
    world.edit(maxNumSeqs=9)
    await world.tick(2)
    assert world.size == 5
    world.edit(scaling={"mode": "Auto"})
    world.rate = 45.0
    await world.tick(4)
    assert min(world.cluster.sizes) >= 4


async def test_one_budget_over_two_pools(prometheus: ScriptedPrometheus) -> None:
    """Six GPUs: the interactive pool gets what it needs, the batch pool what is left, and never more together."""
    world = World(prometheus, 1, 6)
    found = world.cluster.objects["GemmaServing", *KEY]["spec"]
    found["pools"]["batch"] = {"replicas": {"min": 1, "max": 6}}
    found["gpuBudget"] = 5
    await world.start(1)
    world.rate = 200.0
    for _ in range(12):
        await world.tick()
        sizes = [world.cluster.deployment(name)["spec"]["replicas"] for name in (NAME, "chat-batch")]
        assert sum(sizes) <= 5
    assert sizes == [4, 1]
    assert world.condition("CapacityAvailable") == "False BudgetSpent"


async def test_the_least_loaded_engine_is_marked_before_the_pool_shrinks(prometheus: ScriptedPrometheus) -> None:
    world = World(prometheus)
    await world.start(4)
    prometheus.distort = lambda engines: [replace(e, running=float("2013"[n])) for n, e in enumerate(engines)]
    await world.tick(5)
    world.cluster.writes.clear()
    while world.size == 4:
        await world.tick()
    writes = [write for write in world.cluster.writes if write[0] in ("go first", "scale")]
    assert writes == [("go first", "Pod", f"{NAME}-1"), ("scale", "Deployment", NAME)]


async def restarted(prometheus: ScriptedPrometheus, maximum: int = 6) -> World:
    """An operator that begins at a serving which is judged, and at rest."""
    world = World(prometheus, minimum=2, maximum=maximum)
    await world.start(2)
    await world.tick(50)
    world.restart()
    world.cluster.writes.clear()
    world.cluster.events.clear()
    await world.reconcile()
    return world


async def test_a_restart_of_the_operator_writes_nothing(prometheus: ScriptedPrometheus) -> None:
    """It would say "not read yet", then "too few samples", and then what stood there before: in a fleet of a thousand 2,000 writes."""
    world = await restarted(prometheus)
    await world.tick(40)
    assert world.cluster.writes == []
    assert world.cluster.events == []


@pytest.mark.parametrize("ticks", [0, 5])
async def test_what_happens_soon_after_a_restart_is_told_at_once(prometheus: ScriptedPrometheus, ticks: int) -> None:
    world = await restarted(prometheus)
    await world.tick(ticks)
    prometheus.reply = refusal("down", 503)
    await world.tick(3)
    assert world.condition("MetricsAvailable") == "False QueryFailed"
    prometheus.reply = None
    await world.tick(3)
    assert world.condition("MetricsAvailable") == "True Fresh"


async def test_an_outage_soon_after_a_restart_is_told(prometheus: ScriptedPrometheus) -> None:
    world = await restarted(prometheus, maximum=2)
    assert world.condition("SLOMet") == "True Met"
    world.rate = 0.01
    for _ in range(6):
        prometheus.engines = [replace(engine, bad=engine.bad + 400) for engine in prometheus.engines]
        await world.tick()
    assert world.condition("SLOMet") == "False Missed"


async def test_what_a_restart_mends_is_told_soon(prometheus: ScriptedPrometheus) -> None:
    """As an upgrade with the right URL of Prometheus does."""
    world = World(prometheus, minimum=2)
    await world.start(2)
    await world.tick(10)
    prometheus.reply = refusal("down", 503)
    await world.tick(3)
    assert world.condition("MetricsAvailable") == "False QueryFailed"
    world.restart()
    prometheus.reply = None
    await world.reconcile()
    await world.tick(4)
    assert world.condition("MetricsAvailable") == "True Fresh"


async def test_a_clock_set_back_after_a_restart_ends_the_silence(prometheus: ScriptedPrometheus) -> None:
    world = await restarted(prometheus, maximum=2)
    await world.tick(2)
    world.now -= 7200
    world.cluster.writes.clear()
    await world.tick(4)
    assert world.cluster.writes, "the verdict is renewed from what is seen now"


async def test_load_that_rises_soon_after_a_restart_is_answered(prometheus: ScriptedPrometheus) -> None:
    world = await restarted(prometheus)
    world.rate = 200
    await world.tick(6)
    assert world.size > 2
    assert world.pool["lastDecision"]["replicas"] == world.size


async def test_a_spec_that_changes_soon_after_a_restart_is_judged_anew(prometheus: ScriptedPrometheus) -> None:
    world = await restarted(prometheus)
    await world.tick(4)
    world.edit(slo={"ttft": {"percentile": 95, "target": "250ms"}})
    await world.reconcile()
    await world.tick(1)
    conditions = world.cluster.objects["GemmaServing", *KEY]["status"]["conditions"]
    assert "250 ms" in next(one["message"] for one in conditions if one["type"] == "SLOMet")


async def test_a_serving_that_is_deleted_and_made_anew_between_two_looks_inherits_nothing(
    prometheus: ScriptedPrometheus,
) -> None:
    world = World(prometheus, maximum=4)
    await world.start(1)
    world.rate = 200
    await world.tick(6)
    assert world.size == 4
    assert {"memory", "lastDecision"} <= world.pool.keys()
    found = world.cluster.objects["GemmaServing", *KEY]
    new = body({"pools": found["spec"]["pools"]})
    new["metadata"]["uid"] = "another"
    world.cluster.objects = {("GemmaServing", *KEY): new}
    await world.reconcile()
    assert world.size == 1
    assert not {"memory", "lastDecision"} & world.pool.keys()
