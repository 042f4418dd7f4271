"""The resync: what rests isn't looked at, and whatever a lost event would have told is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gemma_operator.resync import Resync
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import Key, WorkQueue
from tests.unit.test_reconcile import KEY, World

INTERACTIVE = ("Deployment", "ns", "chat-interactive")


def resync(world: World, **environment: str) -> Resync:
    return Resync(world.cluster, world.operator.seen, read_settings(environment))  # type: ignore[arg-type]


async def at_rest(pools: Any = None) -> World:
    world = World(pools)
    await world.settle()
    await world.reconcile()
    return world


async def test_what_rests_is_not_looked_at_and_each_kind_is_listed_once() -> None:
    world = await at_rest()
    world.cluster.asked.clear()
    assert await resync(world).due() == []
    kinds = ["GemmaServing", "Deployment", "Service", "PodDisruptionBudget", "PersistentVolumeClaim", "Pod"]
    assert sorted(world.cluster.asked) == sorted(f"metadata {kind}" for kind in kinds)


def _label(world: World) -> None:
    world.cluster.objects[INTERACTIVE]["metadata"]["labels"].pop("app.kubernetes.io/managed-by")


def _annotation(world: World) -> None:
    world.cluster.objects[INTERACTIVE]["metadata"]["annotations"].pop("gemmaserving.dev/serving")


def _image(world: World) -> None:
    world.cluster.objects[INTERACTIVE]["spec"]["template"]["spec"]["containers"][0]["image"] = "another"


def _child_deleted(world: World) -> None:
    del world.cluster.objects["Service", "ns", "chat"]


def _pod_deleted(world: World) -> None:
    del world.cluster.objects["Pod", "ns", "chat-interactive-0"]


def _status(world: World) -> None:
    world.cluster.objects["GemmaServing", *KEY]["status"]["pools"] = {}


def _spec(world: World) -> None:
    world.edit(gpuBudget=3)


def _deleted(world: World) -> None:
    world.cluster.objects.clear()  # garbage collection has ended too


def _created(world: World) -> None:
    world.operator.seen.drop(KEY)


@pytest.mark.parametrize(
    "change",
    [_label, _annotation, _image, _child_deleted, _pod_deleted, _status, _spec, _deleted, _created],
    ids=lambda change: change.__name__.strip("_"),
)
async def test_a_change_that_no_event_told_of_is_found_and_made_good_once(change: Callable[[World], None]) -> None:
    world = await at_rest()
    change(world)
    assert await resync(world).due() == [KEY]
    for _ in range(3):
        await world.reconcile()
        world.cluster.all_up()
    await world.reconcile()
    assert await resync(world).due() == []


async def test_what_is_under_way_refused_or_read_from_elsewhere_is_looked_at_each_time() -> None:
    starting = World()
    await starting.reconcile()
    assert await resync(starting).due() == [KEY]
    refused = await at_rest()
    refused.edit(engine={"image": "no-version"})
    await refused.reconcile()
    assert await resync(refused).due() == [KEY]
    profile = {"scaling": {"profileFrom": {"name": "measured"}}, "replicas": {"min": 1, "max": 5}}
    measured = World({"interactive": profile})
    for _ in range(4):
        await measured.reconcile()
        measured.cluster.all_up()
    assert await resync(measured).due() == [KEY], "a ConfigMap may change, and nothing tells of it"


async def test_where_versions_cannot_be_had_everything_is_looked_at() -> None:
    world = await at_rest()
    world.cluster.refuse["Pod"] = "pods is forbidden"
    assert await resync(world).due() == [KEY]


async def test_it_asks_for_the_looks_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await at_rest()
    _image(world)
    asked: list[Key] = []
    looked = asyncio.Event()

    async def look(key: Key) -> None:
        asked.append(key)
        looked.set()

    queue = WorkQueue(look)
    tasks = [
        asyncio.create_task(queue.work()),
        asyncio.create_task(resync(world, GEMMA_RESYNC_SECONDS="0.1").run(queue)),
    ]
    await asyncio.wait_for(looked.wait(), 30)
    for task in tasks:
        task.cancel()
    assert asked[0] == KEY
