"""Ways to the pools as they come and go, against a cluster in memory: no engine ever waits for one."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from gemma_operator.cluster import Refused
from gemma_operator.reconcile import ROUTING_SECONDS, Reconciler
from gemma_operator.settings import read_settings
from tests.unit.test_reconcile import KEY, World
from tests.unit.test_routing import OK, PARENT, PICKER, said

ROUTING: dict[str, Any] = {"gateway": {"parentRefs": [PARENT]}, "inferencePools": {"interactive": PICKER}}
POOLS: dict[str, Any] = {"interactive": {}, "batch": {}}
MADE = [
    ("apply", "InferencePool", "chat-interactive"),
    ("apply", "HTTPRoute", "chat"),
    ("status", "GemmaServing", "chat"),
]


def world(enabled: bool = True, *others: dict[str, Any]) -> World:
    made = World(POOLS, None, *others)
    settings = read_settings({"GEMMA_ROUTING": str(enabled).lower()})
    made.operator = Reconciler(made.cluster, made.scaler, settings)  # type: ignore[arg-type]
    return made


def routing(of: World) -> str:
    return of.condition("RoutingReady")


def accept(of: World) -> None:
    """What a gateway does."""
    answer = {"parentRef": PARENT, "controllerName": "c", "conditions": [said(), OK]}
    of.cluster.objects["HTTPRoute", "ns", "chat"]["status"] = {"parents": [answer]}


async def test_routes_come_are_accepted_and_go_and_nothing_more_is_written() -> None:
    of = world()
    await of.settle()
    assert routing(of) == ""
    assert of.status["endpoints"] == {
        "entry": "http://chat.ns.svc:8000",
        "interactive": "http://chat-interactive.ns.svc:8000",
        "batch": "http://chat-batch.ns.svc:8000",
    }
    of.edit(routing=ROUTING)
    assert await of.reconcile() == MADE
    assert routing(of) == "False WaitingForGateway"
    assert of.condition("Ready") == "True PoolsReady"
    assert await of.operator.reconcile(KEY) == ROUTING_SECONDS
    accept(of)
    assert await of.reconcile() == [("status", "GemmaServing", "chat")]
    assert routing(of) == "True Accepted"
    assert await of.reconcile() == []
    assert (await of.operator.reconcile(KEY) or 0) > ROUTING_SECONDS
    of.edit(routing=None)
    assert sorted(await of.reconcile()) == [
        ("delete", "HTTPRoute", "chat"),
        ("delete", "InferencePool", "chat-interactive"),
        ("status", "GemmaServing", "chat"),
    ]
    assert routing(of) == ""
    assert await of.reconcile() == []


@pytest.mark.parametrize(
    ("absent", "reason"),
    [
        ({"HTTPRoute"}, "GatewayAPINotInstalled"),
        ({"InferencePool"}, "InferenceExtensionNotInstalled"),
        ({"HTTPRoute", "InferencePool"}, "GatewayAPINotInstalled"),
    ],
)
async def test_an_api_that_is_not_there_is_told_and_used_once_it_comes(absent: set[str], reason: str) -> None:
    of = world()
    of.cluster.absent = absent
    of.edit(routing=ROUTING)
    await of.settle()
    assert routing(of) == f"False {reason}"
    assert of.condition("Stalled") == "False AsExpected"
    of.cluster.absent = set()
    assert await of.reconcile() == MADE


async def test_a_route_stays_while_an_api_for_a_new_one_is_not_there() -> None:
    of = world()
    of.edit(routing={"gateway": ROUTING["gateway"]})
    await of.settle()
    accept(of)
    of.cluster.absent = {"InferencePool"}
    of.edit(routing=ROUTING)
    assert await of.reconcile() == [("status", "GemmaServing", "chat")]
    assert routing(of) == "False InferenceExtensionNotInstalled"
    assert ("HTTPRoute", "ns", "chat") in of.cluster.objects


async def test_without_the_right_to_routes_none_is_looked_for() -> None:
    of = world(enabled=False)

    async def no_right(*_: str) -> Any:
        raise AssertionError("it has no right to ask")

    of.cluster.list_served = no_right  # type: ignore[method-assign]
    of.edit(routing=ROUTING)
    await of.settle()
    assert routing(of) == "False NotEnabled"
    assert ("Service", "ns", "chat") in of.cluster.objects


async def test_what_is_refused_concerns_no_engine_and_no_entry() -> None:
    of = world()
    of.cluster.refuse = {"HTTPRoute": "failed calling webhook: no endpoints"}
    of.edit(routing=ROUTING)
    await of.settle()
    assert routing(of) == "False RefusedByApiServer"
    assert of.condition("Stalled") == "False AsExpected"
    assert {("Service", "ns", "chat"), ("Deployment", "ns", "chat-interactive")} <= of.cluster.objects.keys()
    assert ("InferencePool", "ns", "chat-interactive") not in of.cluster.objects, "half of the routes"


@pytest.mark.parametrize("kind", ["Service", "HTTPRoute"])
async def test_a_taken_name_is_left_alone_and_holds_no_engine_up(kind: str) -> None:
    foreign = {"kind": kind, "metadata": {"namespace": "ns", "name": "chat", "labels": {}}, "spec": {"ports": []}}
    of = world(True, foreign)
    of.edit(routing={"gateway": ROUTING["gateway"]} if kind == "HTTPRoute" else None)
    await of.settle()
    assert routing(of) == "False NameConflict"
    assert of.condition("Ready") == "True PoolsReady"
    assert of.cluster.objects[kind, "ns", "chat"] == foreign


async def test_a_refused_spec_keeps_the_routes_and_judges_none() -> None:
    of = world()
    of.edit(routing=ROUTING)
    await of.settle()
    accept(of)
    await of.reconcile()
    before = of.status["endpoints"]
    of.edit(modle=1)
    assert await of.reconcile() == [("status", "GemmaServing", "chat")]
    assert routing(of) == "Unknown InvalidSpec"
    assert of.status["endpoints"] == before


async def test_a_route_of_a_deleted_namesake_is_waited_for() -> None:
    of = world()
    of.edit(routing={"gateway": ROUTING["gateway"]})
    await of.settle()
    route = of.cluster.objects["HTTPRoute", "ns", "chat"]
    route["metadata"]["ownerReferences"][0]["uid"] = "older"
    with pytest.raises(Exception, match="garbage collection has removed HTTPRoute chat"):
        await of.reconcile()


async def test_a_turn_of_the_condition_is_an_event() -> None:
    of = world()
    of.edit(routing={"gateway": ROUTING["gateway"]})
    await of.settle()
    accept(of)
    await of.reconcile()
    assert ("Normal", "Accepted") in [(kind, reason) for kind, reason, _ in of.cluster.events]
    of.cluster.absent = {"HTTPRoute"}
    await of.reconcile()
    assert ("Warning", "GatewayAPINotInstalled") in [(kind, reason) for kind, reason, _ in of.cluster.events]


async def test_a_route_that_goes_is_judged_no_more() -> None:
    of = world()
    of.edit(routing=ROUTING)
    await of.settle()
    assert routing(of) == "False WaitingForGateway"
    of.edit(routing={"inferencePools": ROUTING["inferencePools"]})
    await of.reconcile()
    assert routing(of) == "True PoolsMade"


async def test_a_cache_is_no_way_that_could_be_closed() -> None:
    of = world()
    of.edit(model={"id": "m", "cache": {"size": "1Gi"}})
    await of.settle()
    assert [name for kind, _, name in of.cluster.objects if kind == "PersistentVolumeClaim"]
    assert await of.reconcile() == []


async def test_routes_that_may_not_be_read_are_told() -> None:
    of = world()

    async def forbidden(*_: str) -> Any:
        raise Refused("httproutes is forbidden")

    of.cluster.list_served = forbidden  # type: ignore[method-assign]
    of.edit(routing=ROUTING)
    await of.settle()
    assert routing(of) == "False RefusedByApiServer"
    assert ("Service", "ns", "chat") in of.cluster.objects


@pytest.mark.parametrize("http_status", [409, 429, 503])
async def test_a_busy_api_server_turns_no_condition(http_status: int) -> None:
    of = world()
    of.edit(routing=ROUTING)
    await of.settle()
    accept(of)
    await of.settle()

    async def busy(*_: str) -> Any:
        raise ApiException(status=http_status, reason="busy")

    of.cluster.list_served = busy  # type: ignore[method-assign]
    before = of.status
    with pytest.raises(ApiException):
        await of.reconcile()
    assert of.status == before
