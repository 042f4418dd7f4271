"""The simulator's HPA and Kubernetes' own, side by side: one script of metric values, the same replicas step by step."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gemma_operator.simulation.peers import Hpa
from tests.support.hpa import Sync, model_of
from tests.support.kube import Kube, condition, eventually
from tools.cluster.api import Api
from tools.cluster.control_plane import ControlPlane

API = "external.metrics.k8s.io"
WINDOW = 32
"""Seconds of stabilisation on the way down: 300 in the field, where a sync takes 15 s instead of 3. No multiple of 3: no sync falls on its end."""
COLD_START = 2
"""Syncs until a new Pod is Ready."""
MOST = 20
Values = list[float | None]
WAITING: Values = [*[4.0] * 3, *[40.0] * 3, None, None, *[38.0] * 2, *[300.0] * 3, None, *[0.0] * 14, *[7.0] * 3]
"""Waiting requests, 5 for each engine: under the target too short, far over it, no answer, nearly right, then nothing."""
P95: Values = [*[0.31] * 2, *[0.9] * 5, None, *[0.28] * 2, *[0.15] * 13, *[0.02] * 3]
"""Seconds, 0.3 wanted: within the tolerance, thrice it while Pods start, no answer, within it, then half."""


@dataclass
class Scenario:
    """One Deployment with an HPA on one metric, which follows a script."""

    api: Api
    namespace: str
    name: str
    script: Values
    target: dict[str, str]
    syncs: list[Sync] = field(default_factory=list)
    _born: dict[str, int] = field(default_factory=dict)

    def objects(self) -> list[dict[str, Any]]:
        labels = {"app": self.name}
        meta = {"name": self.name, "namespace": self.namespace}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "none"}]}}
        all_or_four = [
            {"type": "Percent", "value": 100, "periodSeconds": 1},
            {"type": "Pods", "value": 4, "periodSeconds": 1},
        ]
        return [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": meta,
                "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod},
            },
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": meta,
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name},
                    "minReplicas": 1,
                    "maxReplicas": MOST,
                    "metrics": [
                        {"type": "External", "external": {"metric": {"name": self.name}, "target": self.target}}
                    ],
                    "behavior": {
                        "scaleUp": {"policies": all_or_four, "selectPolicy": "Max"},
                        "scaleDown": {
                            "stabilizationWindowSeconds": WINDOW,
                            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}],
                        },
                    },
                },
            },
        ]

    @property
    def is_over(self) -> bool:
        """One more sync than there are values: it shows what the last one led to."""
        return len(self.syncs) > len(self.script)

    def asked(self) -> float | None:
        """The controller asks for the metric: note how things are, and give the next value."""
        pods = self._pods()
        ready = sum(_is_ready(pod) for pod in pods)
        value = self.script[min(len(self.syncs), len(self.script) - 1)]
        self.syncs.append(Sync(time.monotonic(), value, self._replicas(), (ready, ready)))
        return value

    def settle(self) -> None:
        """Pods that are old enough become Ready, before the next sync."""
        for pod in self._pods():
            name = pod["metadata"]["name"]
            born = self._born.setdefault(name, len(self.syncs))
            if not _is_ready(pod) and len(self.syncs) - born >= COLD_START:
                least, most = self.syncs[-1].ready
                self.syncs[-1] = replace(self.syncs[-1], ready=(least, most + 1))
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.api.patch(f"/api/v1/namespaces/{self.namespace}/pods/{name}/status", {"status": status})

    def _replicas(self) -> int:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"
        return int(self.api.get(path)["spec"]["replicas"])

    def _pods(self) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=app%3D{self.name}"
        pods = self.api.get(path)["items"]
        return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _is_ready(pod: dict[str, Any]) -> bool:
    return condition(pod, "Ready").get("status") == "True"


@contextmanager
def metrics_api(plane: ControlPlane, kube: Kube, scenarios: dict[str, Scenario]) -> Iterator[None]:
    """An API of external metrics on the loopback interface, as an adapter or KEDA registers one."""
    service = f"metrics.{kube.namespace}.svc"
    certificate = plane.authority.issue("metrics", f"/CN={service}", [f"DNS:{service}"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts == ["apis", API, "v1beta1"]:
                self.answer(
                    200,
                    {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{API}/v1beta1", "resources": []},
                )
            elif len(parts) == 6 and parts[5] in scenarios:
                scenario = scenarios[parts[5]]
                value = scenario.asked()
                self.answer(500 if value is None else 200, _values(parts[5], value))
                scenario.settle()
            else:
                self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

        def answer(self, code: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            """Not into the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    port = server.server_address[1]
    try:
        kube.run("create", "service", "externalname", "metrics", "--external-name=localhost", f"--tcp={port}")
        kube.run("create", "-f", "-", stdin=json.dumps(_api_service(kube.namespace, port, plane)))
        yield
    finally:
        # A group that nobody answers for would keep every namespace from going.
        kube.run("delete", "apiservice", f"v1beta1.{API}", check=False)
        server.shutdown()
        server.server_close()


def _values(name: str, value: float | None) -> dict[str, Any]:
    if value is None:
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": "no such series"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": name, "metricLabels": {}, "timestamp": now, "value": f"{round(value * 1000)}m"}
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{API}/v1beta1", "metadata": {}, "items": [item]}


def _api_service(namespace: str, port: int, plane: ControlPlane) -> dict[str, Any]:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{API}"},
        "spec": {
            "group": API,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "metrics", "namespace": namespace, "port": port},
            "caBundle": base64.b64encode(plane.authority.ca.cert.read_bytes()).decode(),
        },
    }


@pytest.fixture
def kube(admin: Kube) -> Iterator[Kube]:
    own = Kube(admin.kubeconfig, "live-hpa")
    own.run("create", "namespace", own.namespace)
    yield own
    own.run("delete", "namespace", own.namespace, "--wait=false")


def test_the_simulated_hpa_takes_the_path_of_kubernetes_own(plane: ControlPlane, kube: Kube) -> None:
    average = {"type": "AverageValue", "averageValue": "5"}
    value = {"type": "Value", "value": "300m"}
    scenarios = {
        "waiting": Scenario(plane.api, kube.namespace, "waiting", WAITING, average),
        "p95": Scenario(plane.api, kube.namespace, "p95", P95, value),
    }
    with metrics_api(plane, kube, scenarios):
        for scenario in scenarios.values():
            kube.apply(*scenario.objects())
        longest = max(len(scenario.script) for scenario in scenarios.values())
        eventually("both scripts", lambda: all(one.is_over for one in scenarios.values()), longest * 10)

    def waiting(told: list[float]) -> Hpa:
        return Hpa(lambda _: told[0], 5.0, absolute=True, most=MOST, window=WINDOW)

    def p95(told: list[float]) -> Hpa:
        return Hpa(lambda _: told[0], 0.3, most=MOST, window=WINDOW)

    for name, hpa in (("waiting", waiting), ("p95", p95)):
        scenario = scenarios[name]
        live = [sync.replicas for sync in scenario.syncs[1 : len(scenario.script) + 1]]
        assert model_of(scenario.syncs, hpa)[: len(live)] == live
        # p95 counts Ready Pods: how much further it goes hangs on how soon this machine makes them.
        assert max(live) >= 3 * live[0], "the script takes it far up"
        assert live[-1] < max(live), "and down again"
