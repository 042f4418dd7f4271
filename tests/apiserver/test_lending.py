"""Loans on a real API server: the Pod changes the Services and stays its ReplicaSet's, through refusals and restarts."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_scaling import Engines
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tests.support.scripted_prometheus import ScriptedPrometheus, scripted_prometheus

BATCH = {"replicas": {"min": 1, "max": 3}}
LENDING = {**BATCH, "scaling": {"lend": 2}}
CLASS, LENT = "gemmaserving.dev/class", "gemmaserving.dev/lent-since"
COST = "controller.kubernetes.io/pod-deletion-cost"


def serving(**batch: Any) -> dict[str, Any]:
    pools = {"interactive": {"replicas": {"min": 1, "max": 4}}, "batch": batch}
    return {
        "apiVersion": "gemmaserving.dev/v1alpha1",
        "kind": "GemmaServing",
        "metadata": {"name": "demo"},
        "spec": {"model": {"id": "google/gemma-4-E4B-it"}, "pools": pools},
    }


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


@pytest.fixture
def proxy(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[FaultyProxy]:
    with FaultyProxy(operator_kubeconfig, tmp_path) as running:
        yield running


class Scene:
    """One interactive engine and three batch engines, all Ready; new interactive ones don't become so."""

    def __init__(self, kube: Kube, engines: Engines) -> None:
        self.kube, self.engines = kube, engines
        kube.apply(serving(**BATCH))
        eventually(
            "both pools are Ready", lambda: condition(kube.get("gsv", "demo"), "Ready").get("status") == "True", 60
        )
        kube.run("scale", "deployment/demo-batch", "--replicas=3")
        eventually("three batch engines", lambda: len(self.endpoints("demo-batch")) == 3, 60)
        engines.starting = {"interactive"}

    def rise(self) -> None:
        """More load than two engines bear."""
        self.engines.rate = 110.0

    def pods(self, pool: str = "batch") -> list[dict[str, Any]]:
        found = self.kube.list("pod", f"gemmaserving.dev/pool={pool}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    @property
    def lent(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods() if pod["metadata"]["labels"][CLASS] == "interactive"}

    def endpoints(self, service: str) -> set[str]:
        """Names of the Pods that a Service selects; without a node there are no EndpointSlices of them."""
        found = self.kube.get("service", service)
        assert found
        selector = ",".join(f"{key}={value}" for key, value in found["spec"]["selector"].items())
        pods = self.kube.list("pod", selector)
        return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    def pool(self, name: str) -> dict[str, Any]:
        return dict((self.kube.get("gsv", "demo") or {}).get("status", {}).get("pools", {}).get(name, {}))

    def await_lent(self, count: int) -> set[str]:
        eventually(f"{count} engines are lent", lambda: len(self.lent) == count, 60)
        return self.lent

    def events(self, reason: str) -> list[str]:
        done = self.kube.run("get", "events", "-o", "json", "--field-selector", f"reason={reason}")
        return [event["message"] for event in json.loads(done.stdout)["items"]]


@pytest.fixture
def scene(kube: Kube, prometheus: ScriptedPrometheus) -> Iterator[Callable[[], Scene]]:
    with Engines(kube, prometheus) as engines:
        yield lambda: Scene(kube, engines)


def ticks(operator: Operator) -> float:
    """How often it has decided since its start."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics", timeout=10) as answer:
        found = re.search(r"^gemma_operator_tick_seconds_count (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_lent_and_given_back(
    kube: Kube,
    operator_kubeconfig: Path,
    prometheus: ScriptedPrometheus,
    scene: Callable[[], Scene],
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    settings = {"GEMMA_PROMETHEUS_URL": prometheus.url}
    with Operator(operator_kubeconfig, log, **settings) as operator:
        made = scene()
        uids = {pod["metadata"]["uid"] for pod in [*made.pods(), *made.pods("interactive")]}
        templates = [kube.get("deployment", f"demo-{pool}")["spec"]["template"] for pool in ("interactive", "batch")]  # type: ignore[index]
        kube.apply(serving(**LENDING))
        eventually("the Service goes by class", lambda: CLASS in kube.get("service", "demo-batch")["spec"]["selector"])  # type: ignore[index]
        assert len(made.endpoints("demo-batch")) == 3
        made.rise()
        lent = made.await_lent(2)
        eventually("they are behind interactive's Service", lambda: lent < made.endpoints("demo-interactive"))
        eventually("and behind the entry", lambda: lent < made.endpoints("demo"))
        eventually("and not behind batch's", lambda: not lent & made.endpoints("demo-batch"))
        assert len(made.endpoints("demo-batch")) == 1
        for pod in made.pods():
            assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
            assert (pod["metadata"]["annotations"].get(COST) == "1000") is (pod["metadata"]["name"] in lent)
        eventually(
            "the status tells it",
            lambda: (made.pool("batch").get("lent"), made.pool("interactive").get("borrowed")) == (2, 2),
        )
        assert len(eventually("Events", lambda: len(made.events("Lent")) == 2 and made.events("Lent"))) == 2

        operator.kill()  # what is lent stays so, without and with an operator
        operator.start()
        eventually("it has decided some times", lambda: ticks(operator) >= 4, 90)
        assert made.lent == lent

        made.engines.starting = set()
        eventually("they go back", lambda: not made.lent, 90)
        eventually("all three serve batch", lambda: len(made.endpoints("demo-batch")) == 3)
        assert not any({LENT, COST} & pod["metadata"]["annotations"].keys() for pod in made.pods())
        assert uids <= {pod["metadata"]["uid"] for pod in [*made.pods(), *made.pods("interactive")]}, (
            "nothing was started anew"
        )
        now = [kube.get("deployment", f"demo-{pool}")["spec"]["template"] for pool in ("interactive", "batch")]  # type: ignore[index]
        assert now == templates
    assert "Traceback" not in log.read_text()


FAULTS = {
    "conflict": Fault(status=409),
    "forbidden": Fault(status=403),
    "fails": Fault(status=500),
    "the answer is lost": Fault(lost=True),
}


def test_a_flip_that_fails_is_said_and_made_once_it_can_be(
    kube: Kube, proxy: FaultyProxy, prometheus: ScriptedPrometheus, scene: Callable[[], Scene], tmp_path: Path
) -> None:
    """One operator through all faults; at each, the engines are called back and lent again."""
    log, failed = tmp_path / "log", list[str]()
    with Operator(proxy.kubeconfig, log, GEMMA_PROMETHEUS_URL=prometheus.url, GEMMA_RESYNC_SECONDS="2"):
        made = scene()
        made.rise()
        for what, fault in FAULTS.items():

            def failing(request: Any, what: str = what, fault: Fault = fault) -> Fault | None:
                if request.method != "PATCH" or "/pods/" not in request.path:
                    return None
                failed.append(what)
                return fault

            proxy.fault = failing
            kube.apply(serving(**LENDING))
            eventually(f"{what}: it has failed", lambda what=what: what in failed, 60)  # type: ignore[misc]
            if not fault.lost:
                eventually(
                    f"{what}: it is said",
                    lambda: condition(kube.get("gsv", "demo"), "ScalingSound").get("reason") == "LoanRefused",
                    60,
                )
                assert condition(kube.get("gsv", "demo"), "Ready")["status"] == "True"
            proxy.fault = lambda _: None
            made.await_lent(2)
            eventually(
                f"{what}: it is no longer said",
                lambda: condition(kube.get("gsv", "demo"), "ScalingSound").get("reason") != "LoanRefused",
                60,
            )
            kube.apply(serving(**BATCH))
            eventually(f"{what}: without lend they come back", lambda: not made.lent, 60)
    assert "Traceback" not in log.read_text()


def test_a_lent_pod_that_dies_leaves_nothing(
    kube: Kube, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, scene: Callable[[], Scene], tmp_path: Path
) -> None:
    with Operator(operator_kubeconfig, tmp_path / "log", GEMMA_PROMETHEUS_URL=prometheus.url):
        made = scene()
        kube.apply(serving(**LENDING))
        made.rise()
        lent = made.await_lent(2)
        kube.run("delete", "pod", sorted(lent)[0], "--force", "--grace-period=0")
        eventually("another one takes its place", lambda: len(made.lent) == 2 and made.lent != lent, 60)
        eventually("the new Pod serves batch", lambda: len(made.endpoints("demo-batch")) == 1, 60)
        kube.run("delete", "gsv", "demo")
        eventually("nothing is left", lambda: not made.pods() and not kube.list("service"), 60)
