"""Routes on a real API server: the Gateway API comes, answers, refuses and goes while the operator runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.desired import ROUTE_KINDS, Defaults, desired
from tests.apiserver.conftest import SYSTEM, await_children, install, kubeconfig_of
from tests.apiserver.test_lifecycle import EXAMPLE, reconciles, serving
from tests.apiserver.test_settings import render, write
from tests.support.faulty_proxy import Fault, FaultyProxy, Request
from tests.support.kube import Kube, condition, eventually, writes
from tests.support.operator import Operator
from tests.support.specs import specs
from tools.cluster.control_plane import ControlPlane
from tools.cluster.crds import GATEWAY_API, INFERENCE_EXTENSION

PARENT = {"name": "public", "namespace": "gateways"}
GATEWAY = {"parentRefs": [PARENT], "hostnames": ["chat.example.com"]}
PICKER = {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}
ROUTING = {"gateway": GATEWAY, "inferencePools": {"interactive": PICKER}}
ACCOUNT = "routed-gemma-operator"
CRDS = ("httproutes.gateway.networking.k8s.io", "inferencepools.inference.networking.k8s.io")


@pytest.fixture(scope="module")
def routed(admin: Kube, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the rights that routing.enabled gives in the whole cluster."""
    install(admin, "routed", "--set", "routing.enabled=true,crds.enabled=false,priorityClasses.enabled=false")
    return kubeconfig_of(admin, ACCOUNT, tmp_path_factory.mktemp("routed"))


@pytest.fixture
def gateway_api(admin: Kube) -> Iterator[Callable[[], None]]:
    """A call installs the APIs; they are gone after the test."""
    files = [
        str(GATEWAY_API.crd("gateway.networking.k8s.io_gateways")),
        str(GATEWAY_API.crd("gateway.networking.k8s.io_httproutes")),
        str(INFERENCE_EXTENSION.crd("inference.networking.k8s.io_inferencepools")),
    ]

    def installed() -> None:
        for file in files:
            admin.run("apply", "--server-side", "-f", file)
        for crd in CRDS:
            admin.run("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=60s")

    yield installed
    for file in files:
        admin.run("delete", "--ignore-not-found", "-f", file)


@contextmanager
def running(kubeconfig: Path, folder: Path, resync: str = "1", **environment: str) -> Iterator[Operator]:
    """An operator with routing, started again where it ends, as the kubelet does: of a kind that kopf overlooked it ends."""
    log, is_over = folder / "log", Event()

    def keep() -> None:
        while not is_over.wait(0.2):
            if not operator.is_running():
                operator.start()

    with Operator(kubeconfig, log, GEMMA_RESYNC_SECONDS=resync, GEMMA_ROUTING="true", **environment) as operator:
        keeper = Thread(target=keep)
        keeper.start()
        try:
            yield operator
        finally:
            is_over.set()
            keeper.join()
    assert "Traceback" not in log.read_text()


def routing(kube: Kube) -> dict[str, Any]:
    return condition(kube.get("gsv", "demo"), "RoutingReady")


def await_routing(kube: Kube, reason: str, seconds: float = 60) -> str:
    """The message once the condition has that reason."""
    found = eventually(reason, lambda: (c := routing(kube)).get("reason") == reason and c, seconds)
    assert found["status"] == ("True" if reason == "Accepted" else "False")
    return str(found["message"])


def answer(kube: Kube, accepted: str, reason: str = "Accepted", message: str = "") -> None:
    """What a gateway writes into the status of the route."""
    route = kube.get("httproute", "demo")
    assert route
    said = {"observedGeneration": route["metadata"]["generation"], "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [
        {"type": "Accepted", "status": accepted, "reason": reason, "message": message, **said},
        {"type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs", "message": "", **said},
    ]
    parents = [{"parentRef": PARENT, "controllerName": "example.com/gateway", "conditions": conditions}]
    patch = json.dumps({"status": {"parents": parents}})
    kube.run("patch", "httproute", "demo", "--subresource=status", "--type=merge", "-p", patch)


def await_quiet(kube: Kube, operator: Operator, plane: ControlPlane, account: str = ACCOUNT) -> None:
    """Ten reconciles without a write."""
    user = f"system:serviceaccount:{SYSTEM}:{account}"

    def quiet() -> bool:
        before, start = writes(plane.audit_log, user), reconciles(operator)
        eventually("ten more reconciles", lambda: reconciles(operator) >= start + 10, 60)
        return writes(plane.audit_log, user) == before

    eventually("ten reconciles without a write", quiet, 60)


def test_the_gateway_api_may_come_and_go_while_the_operator_runs(
    kube: Kube, routed: Path, gateway_api: Callable[[], None], plane: ControlPlane, tmp_path: Path
) -> None:
    with running(routed, tmp_path) as operator:
        kube.apply(serving(routing=ROUTING))
        await_children(kube, "demo-interactive", "demo-batch")
        assert "install the Gateway API" in await_routing(kube, "GatewayAPINotInstalled")
        endpoints = (kube.get("gsv", "demo") or {})["status"]["endpoints"]
        assert endpoints["entry"] == f"http://demo.{kube.namespace}.svc:8000"
        entry = kube.get("service", "demo")
        assert entry
        assert entry["spec"]["selector"]["gemmaserving.dev/pool"] == "interactive"

        gateway_api()
        assert "no gateway has answered for Gateway gateways/public" in await_routing(kube, "WaitingForGateway")
        pool = kube.get("inferencepool", "demo-interactive")
        assert pool
        assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
        answer(kube, "True")
        said = await_routing(kube, "Accepted")
        assert said == "Gateway gateways/public takes requests for chat.example.com"
        await_quiet(kube, operator, plane)
        same = render(plane, write(tmp_path, kube, serving(routing=ROUTING)), "--diff")
        assert "HTTPRoute" not in same.stdout

        answer(kube, "False", "NotAllowedByListeners", "namespace is not allowed")
        assert await_routing(kube, "NotAccepted").endswith("NotAllowedByListeners: namespace is not allowed")
        extra = [{"op": "add", "path": "/spec/rules/0/backendRefs/-", "value": {"name": "evil", "port": 1}}]
        kube.run("patch", "httproute", "demo", "--type=json", "-p", json.dumps(extra))
        eventually(
            "drift is put right", lambda: "evil" not in json.dumps((kube.get("httproute", "demo") or {})["spec"])
        )
        templates = [d["metadata"]["generation"] for d in kube.list("deployment")]

        kube.run("patch", "gsv", "demo", "--type=json", "-p", '[{"op": "remove", "path": "/spec/routing"}]')
        eventually("the routes go", lambda: not kube.list("httproute") and not kube.list("inferencepool"))
        eventually("the condition goes", lambda: not routing(kube))
        assert [d["metadata"]["generation"] for d in kube.list("deployment")] == templates

        kube.apply(serving(routing=ROUTING))
        await_routing(kube, "WaitingForGateway")
        for crd in CRDS:
            kube.run("delete", "crd", crd)
        await_routing(kube, "GatewayAPINotInstalled")
        eventually("it lives", operator.answers)


def test_an_api_that_came_late_is_watched(
    kube: Kube, routed: Path, gateway_api: Callable[[], None], tmp_path: Path
) -> None:
    with running(routed, tmp_path, resync="3600"):
        kube.apply(serving(routing=ROUTING))
        await_routing(kube, "GatewayAPINotInstalled")
        gateway_api()
        await_routing(kube, "WaitingForGateway")
        answer(kube, "True")
        await_routing(kube, "Accepted")
        answer(kube, "False", "NoMatchingListenerHostname")
        await_routing(kube, "NotAccepted", 40)


def await_last_event(admin: Kube, seconds: float = 5) -> None:
    """Until nothing happens to the CRDs any more: on a busy machine one more event may come, at which kopf looks again."""
    stood: tuple[list[str], float] = ([], 0.0)

    def is_over() -> bool:
        nonlocal stood
        now = [admin.get("crd", crd)["metadata"]["resourceVersion"] for crd in CRDS]  # type: ignore[index]
        if now != stood[0]:
            stood = now, time.monotonic()
        return time.monotonic() - stood[1] > seconds

    eventually("the CRDs are at rest", is_over, 60)


def test_an_api_that_is_listed_after_the_last_event_of_its_crd(
    admin: Kube, kube: Kube, routed: Path, gateway_api: Callable[[], None], tmp_path: Path
) -> None:
    """kopf looks for the kind at each event of the CRD, doesn't find it, and would not watch it."""
    asked = list[str]()

    def unlisted(request: Request) -> Fault | None:
        if request.path != "/apis/gateway.networking.k8s.io/v1":
            return None
        asked.append(request.path)
        return Fault(status=404)

    with FaultyProxy(routed, tmp_path) as proxy:
        proxy.fault = unlisted
        with running(proxy.kubeconfig, tmp_path, resync="3600") as operator:
            kube.apply(serving(routing=ROUTING))
            await_routing(kube, "GatewayAPINotInstalled")
            gateway_api()
            await_routing(kube, "WaitingForGateway")
            await_last_event(admin)
            heard = len(asked)
            eventually("it has asked again", lambda: len(asked) > heard + 1, 60)
            proxy.fault = lambda _: None
            said = "HTTPRoute came, and isn't watched yet: starting anew"
            eventually(said, lambda: said in operator.log.read_text(), 60)
            answer(kube, "True")
            await_routing(kube, "Accepted")
            answer(kube, "False", "NoMatchingListenerHostname")
            await_routing(kube, "NotAccepted", 40)


def test_with_rights_in_one_namespace_only(
    admin: Kube, kube: Kube, gateway_api: Callable[[], None], plane: ControlPlane, tmp_path: Path
) -> None:
    values = (
        f"routing.enabled=true,crds.enabled=false,priorityClasses.enabled=false,watchNamespaces={{{kube.namespace}}}"
    )
    install(admin, "spaced", "--set", values)
    account = "spaced-gemma-operator"
    kubeconfig = kubeconfig_of(admin, account, tmp_path)
    with running(kubeconfig, tmp_path, GEMMA_WATCH_NAMESPACES=kube.namespace) as operator:
        kube.apply(serving(routing=ROUTING))
        await_routing(kube, "GatewayAPINotInstalled")
        gateway_api()
        await_routing(kube, "WaitingForGateway")
        answer(kube, "True")
        await_routing(kube, "Accepted")
        await_quiet(kube, operator, plane, account)
        for crd in CRDS:
            kube.run("delete", "crd", crd)
        await_routing(kube, "GatewayAPINotInstalled")
        start = reconciles(operator)
        eventually("it goes on", lambda: operator.answers() and reconciles(operator) > start + 10, 60)
        assert operator.starts == 1


def test_routes_without_the_right_to_them_are_told_what_to_set(kube: Kube, operator: Operator) -> None:
    kube.apply(serving(routing=ROUTING))
    await_children(kube, "demo-interactive", "demo-batch")
    assert "routing.enabled=true" in await_routing(kube, "NotEnabled")


def test_a_service_called_as_the_serving_holds_no_engine_up(kube: Kube, operator: Operator) -> None:
    kube.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo"}, "spec": {"ports": [{"port": 1}]}})
    kube.apply(serving())
    assert "Service demo exists and belongs to somebody else" in await_routing(kube, "NameConflict")
    await_children(kube, "demo-interactive", "demo-batch")
    kube.run("delete", "service", "demo")
    eventually("the entry is made", lambda: not routing(kube) and kube.get("service", "demo"), 60)


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nothing": ({}, ("spec.routing", "it asks for nothing")),
    "no parents": ({"gateway": {}}, ("spec.routing.gateway.parentRefs", "Required value")),
    "no parent": ({"gateway": {"parentRefs": []}}, ("spec.routing.gateway.parentRefs", "at least 1 items")),
    "a parent without a name": ({"gateway": {"parentRefs": [{}]}}, ("parentRefs[0].name", "Required value")),
    "one parent twice": ({"gateway": {"parentRefs": [PARENT, PARENT]}}, ("give each a sectionName of its own",)),
    "a URL for a host": ({"gateway": {**GATEWAY, "hostnames": ["https://a"]}}, ("hostnames[0]", "https://a")),
    "a duration of ours": ({"gateway": {**GATEWAY, "timeouts": {"request": "1.5s"}}}, ("timeouts.request", "1.5s")),
    "a part longer than the whole": (
        {"gateway": {**GATEWAY, "timeouts": {"request": "1s", "backendRequest": "2s"}}},
        ("spec.routing.gateway.timeouts", "backendRequest is 2s, request is 1s: backendRequest is a part of request"),
    ),
    "an unknown field": ({"gateway": {**GATEWAY, "host": "a"}}, ('unknown field "spec.routing.gateway.host"',)),
    "a pool that isn't one": (
        {"inferencePools": {"chat": PICKER}},
        ("routing.inferencePools goes by the names of pools",),
    ),
    "no picker": ({"inferencePools": {"batch": {}}}, ("endpointPickerRef", "Required value")),
    "a picker without a port": (
        {"inferencePools": {"batch": {"endpointPickerRef": {"name": "epp"}}}},
        ("endpointPickerRef", "port.number is needed"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_refused_at_apply(kube: Kube, case: str) -> None:
    spec, words = WRONG[case]
    said = kube.refusal(serving(routing=spec))
    assert [word for word in words if word not in said] == [], said


def test_what_is_rendered_and_the_examples_are_taken_by_the_apis(
    admin: Kube, gateway_api: Callable[[], None], plane: ControlPlane
) -> None:
    gateway_api()
    admin.run("create", "namespace", "gateways", check=False)  # the examples made it, where they ran before
    examples = sorted(Path("examples/gateway").glob("*.yaml"))
    rendered = [render(plane, file).stdout for file in examples if "GemmaServing" in file.read_text()]
    assert len(rendered) == 2
    files = [*(file.read_text() for file in examples), *rendered]
    for found in (document for file in files for document in yaml.safe_load_all(file) if document):
        where = found["metadata"].get("namespace", "default")
        admin.run("-n", where, "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=json.dumps(found))


def test_what_we_take_the_apis_take(admin: Kube, gateway_api: Callable[[], None]) -> None:
    gateway_api()
    routes: list[dict[str, Any]] = []

    @settings(max_examples=300, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(specs())
    def draw(spec: Any) -> None:
        # The rest of the spec may well be refused.
        routing = spec.get("routing") if isinstance(spec, dict) else None
        try:
            of = parse({**EXAMPLE, "metadata": {"name": "fuzz"}, "spec": {**EXAMPLE["spec"], "routing": routing}})
        except InvalidServing:
            return
        routes.extend(way for way in desired(of, Defaults("vllm:v0.32.0")).ways if way["kind"] in ROUTE_KINDS)

    draw()
    assert {route["kind"] for route in routes} == set(ROUTE_KINDS)
    assert len(routes) > 30
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": routes})
    admin.run("apply", *flags, "-f", "-", stdin=everything)
