"""The ways to a serving's pools: which engine a request reaches, and what the condition RoutingReady says."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.api.conditions import Condition
from gemma_operator.api.parse import parse
from gemma_operator.desired import desired
from gemma_operator.plan import Plan, plan, stamp
from gemma_operator.routing_status import NOT_ENABLED, Ways, not_installed, routing_ready
from tests.unit.builders import DEFAULTS, body, serving

PARENT = {"name": "public", "namespace": "gateways", "sectionName": "https"}
GATEWAY = {"parentRefs": [PARENT], "hostnames": ["chat.example.com"]}
PICKER = {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}
BATCH = {"x-serving-class": "batch"}
CHAT = "/v1/chat/completions"


def ways(pools: Any = None, **routing: Any) -> dict[str, dict[str, Any]]:
    """The ways of a serving called chat, by kind."""
    of = serving(pools, **({"routing": routing} if routing else {}))
    return {way["kind"]: way for way in desired(of, DEFAULTS).ways}


def answers(route: dict[str, Any], path: str, headers: dict[str, str]) -> str:
    """`kind/name path` that a conformant gateway sends a request to.

    As HTTPRouteRule says: the longest path wins, then the most headers, then the first rule.
    """
    found = []
    for rule in route["spec"]["rules"]:
        for match in rule["matches"]:
            prefix = match["path"]["value"]
            wanted = {header["name"]: header["value"] for header in match.get("headers", [])}
            below = prefix == "/" or path == prefix or path.startswith(f"{prefix}/")
            if below and wanted.items() <= headers.items():
                found.append(((-len(prefix), -len(wanted), len(found)), prefix, rule))
    _, prefix, rule = min(found, key=lambda entry: entry[0])
    for rewrite in rule.get("filters", []):
        instead = rewrite["urlRewrite"]["path"]["replacePrefixMatch"]
        path = instead.rstrip("/") + path.removeprefix(prefix) or "/"
    (backend,) = rule["backendRefs"]
    return f"{backend['kind']}/{backend['name']} {path}"


@pytest.mark.parametrize(
    ("path", "headers", "plain", "with_interactive", "with_batch"),
    [
        (CHAT, {}, "Service/chat-interactive", "InferencePool/chat-interactive", "Service/chat-interactive"),
        (CHAT, {"x-serving-class": "interactive"}, "Service/chat-interactive", "InferencePool/chat-interactive", "Service/chat-interactive"),
        (CHAT, BATCH, "Service/chat-batch", "Service/chat-batch", "InferencePool/chat-batch"),
        ("/v1/completions", BATCH, "Service/chat-batch", "Service/chat-batch", "InferencePool/chat-batch"),
        ("/v1/models", BATCH, "Service/chat-batch", "Service/chat-batch", "Service/chat-batch"),
        ("/v1/models", {}, "Service/chat-interactive", "Service/chat-interactive", "Service/chat-interactive"),
        ("/", {}, "Service/chat-interactive", "Service/chat-interactive", "Service/chat-interactive"),
        ("/batches/v1", {}, "Service/chat-interactive", "Service/chat-interactive", "Service/chat-interactive"),
        ("/batch" + CHAT, {}, "Service/chat-batch", "Service/chat-batch", "InferencePool/chat-batch"),
        ("/batch/v1/models", {}, "Service/chat-batch", "Service/chat-batch", "Service/chat-batch"),
        ("/batch" + CHAT, {"x-serving-class": "interactive"}, "Service/chat-batch", "Service/chat-batch", "InferencePool/chat-batch"),
        ("/batch" + CHAT, BATCH, "Service/chat-batch", "Service/chat-batch", "InferencePool/chat-batch"),
        ("/batch", {}, "Service/chat-batch", "Service/chat-batch", "Service/chat-batch"),
    ],
)  # fmt: skip
def test_header_and_path_choose_the_class(
    path: str, headers: dict[str, str], plain: str, with_interactive: str, with_batch: str
) -> None:
    seen = path.removeprefix("/batch") if path.startswith("/batch/") or path == "/batch" else path
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, plain), ({"interactive": PICKER}, with_interactive), ({"batch": PICKER}, with_batch)
    )  # fmt: skip
    for pickers, expected in cases:
        route = ways(gateway=GATEWAY, inferencePools=pickers)["HTTPRoute"]
        assert answers(route, path, headers) == f"{expected} {seen or '/'}", pickers


@pytest.mark.parametrize(
    ("pools", "entry", "batch"),
    [
        ({"interactive": {}, "batch": {}}, "interactive", "batch"),
        ({"interactive": {}}, "interactive", "interactive"),
        ({"batch": {}}, "batch", "batch"),
        ({"z": {"class": "interactive"}, "b": {"class": "interactive"}, "c": {"class": "batch"}}, "b", "c"),
        ({"a": {"class": "interactive"}, "interactive": {}, "aa": {"class": "batch"}, "batch": {}}, "interactive", "batch"),
        ({"interactive": {"class": "batch"}, "batch": {"class": "interactive"}}, "batch", "interactive"),
    ],
)  # fmt: skip
def test_the_pool_of_a_class_is_the_one_called_so_or_its_first(pools: Any, entry: str, batch: str) -> None:
    made = ways(pools, gateway=GATEWAY)
    assert made["Service"]["spec"]["selector"]["gemmaserving.dev/pool"] == entry
    assert answers(made["HTTPRoute"], CHAT, {}) == f"Service/chat-{entry} {CHAT}"
    assert answers(made["HTTPRoute"], CHAT, BATCH) == f"Service/chat-{batch} {CHAT}"


@pytest.mark.parametrize(
    ("written", "rendered"),
    [
        ({}, {"request": "0s", "backendRequest": "0s"}),
        ({"timeouts": {}}, None),
        ({"timeouts": {"request": "10m"}}, {"request": "10m"}),
    ],
    ids=["streams are not cut", "left to the gateway", "as it is said"],
)
def test_every_rule_has_the_timeouts(written: Any, rendered: Any) -> None:
    route = ways(gateway={**GATEWAY, **written}, inferencePools={"batch": PICKER})["HTTPRoute"]
    assert {str(rule.get("timeouts")) for rule in route["spec"]["rules"]} == {str(rendered)}


def test_without_routing_there_is_the_entry_alone() -> None:
    assert list(ways()) == ["Service"]
    assert ways()["Service"]["metadata"]["name"] == "chat"


def test_without_a_batch_pool_a_route_has_one_rule() -> None:
    assert len(ways({"interactive": {}}, gateway=GATEWAY)["HTTPRoute"]["spec"]["rules"]) == 1


def stored(way: dict[str, Any]) -> dict[str, Any]:
    """A route as the API server keeps it, with the defaults of its kind."""
    way = stamp(way)
    spec: dict[str, Any] = {**way["spec"], "parentRefs": [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", **ref} for ref in way["spec"]["parentRefs"]
    ]}  # fmt: skip
    spec["rules"] = [
        {**rule, "backendRefs": [{"group": "", "weight": 1, **ref} for ref in rule["backendRefs"]]} for rule in spec["rules"]
    ]  # fmt: skip
    return {**way, "spec": spec, "metadata": {**way["metadata"], "generation": 3}}


def test_a_route_with_the_defaults_of_its_kind_is_not_written_again_and_one_that_somebody_changed_is() -> None:
    of = serving(routing={"gateway": GATEWAY})
    _, wanted = desired(of, DEFAULTS).ways
    assert plan(of, [wanted], [stored(wanted)], {}) == Plan()
    for change in (
        lambda spec: spec["rules"][0]["backendRefs"].append({"kind": "Service", "name": "evil", "port": 1}),
        lambda spec: spec["parentRefs"].append({"name": "other"}),
        lambda spec: spec["rules"].pop(),
    ):
        live = stored(wanted)
        change(live["spec"])  # type: ignore[no-untyped-call]
        assert len(plan(of, [wanted], [live], {}).apply) == 1


def said(
    kind: str = "Accepted", status: str = "True", reason: str = "", message: str = "", seen: int = 3
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason or kind, "message": message, "observedGeneration": seen}


def judged(*conditions: dict[str, Any], **ref: Any) -> dict[str, Any]:
    """The serving's route with one gateway's answer."""
    route = stored(ways(gateway=GATEWAY)["HTTPRoute"])
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", **PARENT, **ref}
    return {
        **route,
        "status": {"parents": [{"parentRef": parent, "controllerName": "c", "conditions": list(conditions)}]},
    }


OK = said("ResolvedRefs")
NONE = said("Accepted", "False", "NotAllowedByListeners", "namespace ns\n is not allowed")


@pytest.mark.parametrize(
    ("route", "condition", "words"),
    [
        (judged(said(), OK), "True Accepted", "Gateway gateways/public (https) takes requests for chat.example.com"),
        (judged(NONE, OK), "False NotAccepted",
         "Gateway gateways/public (https): NotAllowedByListeners: namespace ns is not allowed"),
        (judged(said(), said("ResolvedRefs", "False", "BackendNotFound", "chat-batch")), "False NotResolved", "BackendNotFound: chat-batch"),
        (judged(said(seen=2), OK), "False WaitingForGateway", "has not judged the newest route"),
        (judged({**NONE, "observedGeneration": 2}, OK), "False WaitingForGateway", "has not judged"),
        (judged(said("Accepted", "Unknown", "Pending"), OK), "False WaitingForGateway", "has not judged"),
        (judged(said()), "False WaitingForGateway", "has not judged"),
        (judged(), "False WaitingForGateway", "has not judged"),
        (judged(said(), OK, name="other"), "False WaitingForGateway", "no gateway has answered for Gateway gateways/public (https)"),
        (judged(said(), OK, sectionName="http"), "False WaitingForGateway", "allows routes from namespace ns"),
        (judged({**NONE, "message": "x" * 9999}, OK), "False NotAccepted", "xxx"),
    ],
)  # fmt: skip
def test_the_condition_says_what_the_gateway_says(route: dict[str, Any], condition: str, words: str) -> None:
    (found,) = routing_ready(serving(routing={"gateway": GATEWAY}), Ways((route,)))
    assert f"{found.status} {found.reason}" == condition
    assert words in found.message
    assert len(found.message) <= 400


def test_of_several_gateways_the_one_that_refuses_is_named() -> None:
    of = serving(routing={"gateway": {"parentRefs": [{"name": "a"}, PARENT]}})
    (route,) = (way for way in desired(of, DEFAULTS).ways if way["kind"] == "HTTPRoute")
    live = {**stored(route), "status": judged(NONE, OK)["status"]}
    (found,) = routing_ready(of, Ways((live,)))
    assert found.reason == "NotAccepted"
    assert found.message.startswith("Gateway gateways/public")


@pytest.mark.parametrize(
    ("status", "condition"),
    [
        ({}, "True PoolsMade"),
        ({"parents": [{"parentRef": PARENT, "conditions": [said()]}]}, "True PoolsMade"),
        ({"parents": [{"parentRef": PARENT, "conditions": [said("Accepted", "False", "NotSupportedByParent")]}]}, "False PoolNotAccepted"),
        ({"parents": [{"parentRef": PARENT, "conditions": [said(), said("ResolvedRefs", "False", "InvalidExtensionRef")]}]}, "False NotResolved"),
    ],
)  # fmt: skip
def test_a_pool_that_a_gateway_refuses_is_told(status: Any, condition: str) -> None:
    of = serving(routing={"inferencePools": {"batch": PICKER}})
    pool = {**ways(inferencePools={"batch": PICKER})["InferencePool"], "status": status}
    (found,) = routing_ready(of, Ways((pool,)))
    assert f"{found.status} {found.reason}" == condition


def test_nothing_is_said_where_nothing_was_asked_for() -> None:
    assert routing_ready(parse(body()), Ways()) == []


@pytest.mark.parametrize(
    ("hindrance", "reason", "remedy"),
    [
        (NOT_ENABLED, "NotEnabled", "routing.enabled=true"),
        (not_installed("HTTPRoute"), "GatewayAPINotInstalled", "install the Gateway API"),
        (not_installed("InferencePool"), "InferenceExtensionNotInstalled", "or remove spec.routing.inferencePools"),
    ],
)
def test_a_hindrance_says_what_to_do(hindrance: Any, reason: str, remedy: str) -> None:
    (found,) = routing_ready(serving(routing={"gateway": GATEWAY}), Ways(hindrance=hindrance))
    assert found == Condition("RoutingReady", "False", reason, hindrance.message)
    assert remedy in found.message
