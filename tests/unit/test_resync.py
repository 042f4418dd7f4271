"""The resync: what rests isn't looked at, and whatever a lost event would have told is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gemma_operator.cluster import Refused
from gemma_operator.resync import Resync
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import Key
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


async def _unreadable(*_: Any) -> Any:
    raise ValueError("Expecting value: line 1 column 1 (char 0)")
    yield {}


@pytest.mark.parametrize("rests", [True, False])
async def test_where_versions_cannot_be_had_everything_is_looked_at(
    rests: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = await at_rest() if rests else World()
    await world.reconcile()
    world.cluster.refuse["Pod"] = "pods is forbidden"
    assert await resync(world).due() == [KEY]
    assert "every serving is looked at: pods is forbidden" in caplog.text
    monkeypatch.setattr(world.cluster, "metadata", _unreadable)
    assert await resync(world).due() == [KEY], "a proxy's page in place of an answer"


async def test_a_namespace_that_cannot_be_read_is_looked_at_whole_and_the_others_go_on() -> None:
    world = await at_rest()
    other = resync(world, GEMMA_WATCH_NAMESPACES="away,ns")
    listed = world.cluster.metadata

    async def metadata(kind: str, namespace: str, selector: str) -> AsyncIterator[dict[str, Any]]:
        if namespace == "away":
            raise Refused("no right in away")
        async for meta in listed(kind, namespace, selector):
            yield meta

    world.cluster.metadata = metadata  # type: ignore[method-assign]
    world.operator.seen.drop(("away", "chat"))
    assert await other.due() == [("away", "chat")]


async def test_a_serving_beyond_its_floor_whose_engine_is_missing_is_looked_at_each_time() -> None:
    """Why it doesn't get Ready may stand in a log, which has no version."""
    world = await at_rest({"interactive": {"replicas": {"min": 1, "max": 3}}})
    pod = world.cluster.objects["Deployment", "ns", "chat-interactive"]
    pod["spec"]["replicas"] = 2
    await world.reconcile()
    assert world.cluster.objects["GemmaServing", *KEY]["status"]["pools"]["interactive"]["pending"] == 1
    assert await resync(world).due() == [KEY]


async def test_it_asks_for_the_looks_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in 100 s, and spread over the last fifth of them: a fleet that differs must not hold up what is new."""
    world, asked, slept = World(), list[tuple[Key, float]](), list[float]()
    world.cluster.objects.clear()
    keys = [("ns", f"chat-{number}") for number in range(5)]
    for key in keys:
        world.operator.seen.drop(key)

    class Queue:
        async def add(self, key: Key, delay: float) -> None:
            asked.append((key, delay))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1:
            raise asyncio.CancelledError

    monkeypatch.setattr("gemma_operator.resync.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await resync(world, GEMMA_RESYNC_SECONDS="100").run(Queue())  # type: ignore[arg-type]
    assert slept == [80, 80]
    assert asked == [(key, pytest.approx(4 * number)) for number, key in enumerate(keys)]
