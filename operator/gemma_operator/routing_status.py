"""What the ways to a serving's pools are worth: condition RoutingReady. Pure: it is given the objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gemma_operator.api.conditions import ROUTING_READY, Condition
from gemma_operator.api.routing import GATEWAY_GROUP
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.inference_pool import INFERENCE_POOL
from gemma_operator.desired.route import HTTP_ROUTE

Object = Mapping[str, Any]
_MESSAGE_LENGTH = 400


class Reason(StrEnum):
    """Reasons of RoutingReady."""

    ACCEPTED = "Accepted"
    POOLS_MADE = "PoolsMade"
    NOT_ENABLED = "NotEnabled"
    NO_GATEWAY_API = "GatewayAPINotInstalled"
    NO_INFERENCE_EXTENSION = "InferenceExtensionNotInstalled"
    WAITING = "WaitingForGateway"
    NOT_ACCEPTED = "NotAccepted"
    NOT_RESOLVED = "NotResolved"
    POOL_NOT_ACCEPTED = "PoolNotAccepted"
    NAME_CONFLICT = "NameConflict"
    REFUSED = "RefusedByApiServer"


_NOT_INSTALLED = {
    HTTP_ROUTE: (
        Reason.NO_GATEWAY_API,
        f"the cluster has no HTTPRoutes ({GATEWAY_GROUP}/v1): install the Gateway API and a gateway",
    ),
    INFERENCE_POOL: (
        Reason.NO_INFERENCE_EXTENSION,
        "the cluster has no InferencePools (inference.networking.k8s.io/v1): install the Gateway API inference extension, "
        "or remove spec.routing.inferencePools",
    ),
}


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a way isn't open."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Ways:
    """A serving's routes and InferencePools as they stand, and what kept the operator from writing them."""

    live: tuple[Object, ...] = ()
    hindrance: Hindrance | None = None


NO_WAYS = Ways()
NOT_ENABLED = Hindrance(
    Reason.NOT_ENABLED,
    "this operator may not write routes: install its chart with routing.enabled=true (GEMMA_ROUTING)",
)


def not_installed(kind: str) -> Hindrance:
    """What to say of a wanted kind that the cluster doesn't have."""
    return Hindrance(*_NOT_INSTALLED[kind])


def routing_ready(serving: GemmaServing, ways: Ways) -> list[Condition]:
    """The condition; none where nothing was asked for and nothing is wrong."""
    asked = serving.spec.routing
    if asked is None and ways.hindrance is None:
        return []
    if wrong := ways.hindrance or next(_hindrances(ways.live), None):
        return [Condition(ROUTING_READY, "False", wrong.reason, wrong.message)]
    if asked and asked.gateway:
        hosts = ", ".join(asked.gateway.hostnames) or "all hosts"
        named = ", ".join(
            _parent(serving.namespace, ref.model_dump(by_alias=True)) for ref in asked.gateway.parent_refs
        )
        return [Condition(ROUTING_READY, "True", Reason.ACCEPTED, f"{named} takes requests for {hosts}")]
    return [Condition(ROUTING_READY, "True", Reason.POOLS_MADE, "The InferencePools are there for a route of your own")]


def _hindrances(live: Iterable[Object]) -> Iterator[Hindrance]:
    """What gateways say against the ways; refusals before answers that have not come."""
    found: list[Hindrance] = []
    for way in live:
        found += _of_route(way) if way["kind"] == HTTP_ROUTE else _of_pool(way)
    yield from sorted(found, key=lambda hindrance: hindrance.reason == Reason.WAITING)


def _of_route(route: Object) -> Iterator[Hindrance]:
    namespace, generation = route["metadata"]["namespace"], _generation(route)
    answers = route.get("status", {}).get("parents", [])
    for ref in route["spec"]["parentRefs"]:
        mine = [answer for answer in answers if _key(namespace, answer["parentRef"]) == _key(namespace, ref)]
        parent = _parent(namespace, ref)
        if not mine:
            said = (
                f"no gateway has answered for {parent}: see that it exists, that its class has a controller, "
                f"and that it allows routes from namespace {namespace}"
            )
            yield Hindrance(Reason.WAITING, said)
        for answer in mine:
            yield from _refusals(answer, parent, Reason.NOT_ACCEPTED, generation)
            judged = [_judgement(answer, kind, generation).get("status") for kind in ("Accepted", "ResolvedRefs")]
            if not {"True", "False"}.issuperset(judged):
                yield Hindrance(Reason.WAITING, f"{parent} has not judged the newest route yet")


def _of_pool(pool: Object) -> Iterator[Hindrance]:
    for answer in pool.get("status", {}).get("parents", []):
        yield from _refusals(
            answer, f"InferencePool {pool['metadata']['name']}", Reason.POOL_NOT_ACCEPTED, _generation(pool)
        )


def _refusals(answer: Object, who: str, not_accepted: Reason, generation: int) -> Iterator[Hindrance]:
    for kind, reason in (("Accepted", not_accepted), ("ResolvedRefs", Reason.NOT_RESOLVED)):
        condition = _judgement(answer, kind, generation)
        if condition.get("status") == "False":
            said = f"{who}: {condition.get('reason', '')}: {condition.get('message', '')}"
            yield Hindrance(reason, " ".join(said.split())[:_MESSAGE_LENGTH])


def _judgement(answer: Object, kind: str, generation: int) -> Object:
    """A condition that a gateway set; empty where that is missing, or was about an older generation."""
    for condition in answer.get("conditions", []):
        if condition["type"] == kind and condition.get("observedGeneration", generation) >= generation:
            return dict(condition)
    return {}


def _generation(way: Object) -> int:
    return int(way["metadata"].get("generation", 0))


def _key(namespace: str, ref: Object) -> tuple[Any, ...]:
    """What tells references to parents apart, with the API's defaults."""
    group, kind = ref.get("group") or GATEWAY_GROUP, ref.get("kind") or "Gateway"
    return group, kind, ref.get("namespace") or namespace, ref["name"], ref.get("sectionName"), ref.get("port")


def _parent(namespace: str, ref: Object) -> str:
    _, kind, where, name, section, _ = _key(namespace, ref)
    return f"{kind} {where}/{name}" + (f" ({section})" if section else "")
