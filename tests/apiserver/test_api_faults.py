"""The operator behind an API server that fails: refused and expired lists, cut watches, slow answers, an outage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from gemma_operator.api.crd import CRD_NAME
from tests.apiserver.conftest import await_children, children, install
from tests.apiserver.test_lifecycle import COLLECTION_SECONDS, engine_args, reconciles, serving
from tests.support.faulty_proxy import Fault, FaultyProxy, Request
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tools.cluster.control_plane import ControlPlane

EVENTS = 5000
PROBES_SECONDS = 20
"""From the first failed probe to the third: the kubelet acts (periodSeconds of the chart's probe)."""

# docs/reliability.md shows what came of GEMMA_API_DELAY=5 and GEMMA_API_OUTAGE=600.
OUTAGE_SECONDS = float(os.environ.get("GEMMA_API_OUTAGE", "3"))
DELAY_SECONDS = float(os.environ.get("GEMMA_API_DELAY", "2"))


@pytest.fixture
def proxy(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[FaultyProxy]:
    with FaultyProxy(operator_kubeconfig, tmp_path) as running:
        yield running


def lists(status: int) -> Any:
    return lambda request: Fault(status=status) if request.is_list else None


FAULTS: dict[str, Any] = {
    "lists are forbidden": lists(403),
    "lists are expired": lists(410),
    "lists fail": lists(500),
    "lists are throttled": lists(429),
    "one kind is forbidden": lambda request: (
        Fault(status=403) if request.is_list and "services" in request.path else None
    ),
    "nothing answers": lambda _: Fault(cut=True),
    "writes conflict": lambda request: Fault(status=409) if request.is_write else None,
    "answers to writes are lost": lambda request: Fault(lost=True) if request.is_write else None,
    "writes are throttled": lambda request: Fault(status=429) if request.is_write else None,
    "writes fail": lambda request: Fault(status=500) if request.is_write else None,
}


def test_after_a_fault_of_the_api_server_it_goes_on_by_itself(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    """One operator through all of them; of an expired list kopf dies, and the liveness probe sees to the rest."""
    with Operator(proxy.kubeconfig, tmp_path / "log", GEMMA_RESYNC_SECONDS="60") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        for number, (what, fault) in enumerate(FAULTS.items(), 9):
            failed: list[Fault] = []

            def failing(request: Request, fault: Any = fault, failed: list[Fault] = failed) -> Fault | None:
                found: Fault | None = fault(request)
                failed += [found] if found else []
                return found

            proxy.fault = failing
            proxy.cut_watches()
            kube.apply(serving(pools={"interactive": {"maxNumSeqs": number}, "batch": {}}))
            eventually(
                f"{what}: some requests have failed",
                lambda failed=failed: len(failed) >= 2 or not operator.is_running(),
                60,
            )
            proxy.fault = lambda _: None

            def changed(number: int = number) -> bool:
                operator.keep_alive()
                return str(number) in engine_args(kube)

            eventually(f"{what}: the change is there", changed, 90)
            kube.run("delete", "service", "demo-batch")
            eventually(f"{what}: its watches live", lambda: kube.get("service", "demo-batch"), 60)
            assert operator.healthy()
        assert operator.starts <= 2
    assert "traceback" not in (tmp_path / "log").read_text().lower()


def test_a_crd_that_is_listed_late_is_waited_for(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    """As after `helm install`: kopf looks once for what there is, and doesn't hear of a CRD that was established just before."""
    log, asked = tmp_path / "log", list[str]()

    def unlisted(request: Request) -> Fault | None:
        if request.path != "/apis/gemmaserving.dev/v1alpha1":
            return None
        asked.append(request.path)
        return Fault(status=404)

    proxy.fault = unlisted
    with ThreadPoolExecutor(1) as side:

        def list_it() -> None:
            eventually("it has asked", lambda: len(asked) >= 3, 60)
            proxy.fault = lambda _: None

        listing = side.submit(list_it)
        with Operator(proxy.kubeconfig, log, GEMMA_RESYNC_SECONDS="60") as operator:
            listing.result()
            kube.apply(serving())
            await_children(kube, "demo-interactive", "demo-batch")
            assert operator.starts == 1
    said = log.read_text()
    assert "waiting for the API server to list gemmaservings.gemmaserving.dev" in said
    assert "Unresolved resources" not in said


def test_with_slow_answers_it_converges_and_lives(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    with Operator(proxy.kubeconfig, tmp_path / "log", GEMMA_RESYNC_SECONDS="60") as operator:
        proxy.fault = lambda request: None if request.is_watch else Fault(delay_seconds=DELAY_SECONDS)
        kube.apply(serving())
        applied = time.monotonic()
        eventually("its children are there", lambda: kube.list("deployment"), 120)
        print(f"\n{DELAY_SECONDS:.0f} s for each answer: Deployments after {time.monotonic() - applied:.0f} s")
        assert operator.healthy()


def test_a_dead_watch_is_told_in_time(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    """kopf dies of an expired list: the process ends, or its probe fails, and the kubelet acts within a minute of the fault."""
    with Operator(proxy.kubeconfig, tmp_path / "log") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        proxy.fault = lists(410)
        proxy.cut_watches()
        eventually("it is told", lambda: not operator.answers(), 60 - PROBES_SECONDS)
        proxy.fault = lambda _: None
        operator.keep_alive()
        kube.run("delete", "service", "demo-batch")
        eventually("its watches live", lambda: kube.get("service", "demo-batch"))


def test_an_outage_is_lived_through(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    """Nothing answers for a while, the kubelet does what it does, and the spec that was changed meanwhile is carried out."""
    with Operator(proxy.kubeconfig, tmp_path / "log") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        proxy.fault = lambda _: Fault(cut=True)
        proxy.cut_watches()
        kube.apply(serving(pools={"interactive": {"maxNumSeqs": 11}, "batch": {}}))
        end = time.monotonic() + OUTAGE_SECONDS
        while time.monotonic() < end:
            operator.keep_alive()
            time.sleep(1)
        proxy.fault = lambda _: None

        def changed() -> bool:
            operator.keep_alive()
            return "11" in engine_args(kube)

        over = time.monotonic()
        eventually("the change is there", changed, 90)
        print(
            f"\n{OUTAGE_SECONDS:.0f} s without an API server: {operator.starts} starts, "
            f"and the change {time.monotonic() - over:.0f} s after it"
        )
    assert "traceback" not in (tmp_path / "log").read_text().lower()


def test_a_burst_of_events_is_a_few_looks(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    with Operator(proxy.kubeconfig, tmp_path / "log", GEMMA_RESYNC_SECONDS="600") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        before, written = reconciles(operator), len(proxy.writes)
        proxy.repeats = EVENTS
        kube.run("annotate", "service", "demo-batch", "a.test/burst=1")
        eventually("the burst has come", lambda: proxy.repeats == 0, 60)
        kube.apply(serving("other"))
        eventually("another serving is served meanwhile", lambda: kube.get("deployment", "other-batch"), 120)
        assert operator.healthy()
        looks = eventually("the burst is over", lambda: at_rest(operator), 120) - before
        assert looks < EVENTS / 10
        assert len([write for write in proxy.writes[written:] if "demo" in write.path]) < 10


def at_rest(operator: Operator) -> float | None:
    """How often it has looked, once it looks no more."""
    before = reconciles(operator)
    time.sleep(2)
    return before if reconciles(operator) == before else None


def test_a_restarted_api_server_with_compacted_history(
    kube: Kube, plane: ControlPlane, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """The operator's place in the history is gone: it lists anew, and misses nothing."""
    with Operator(proxy.kubeconfig, tmp_path / "log", GEMMA_RESYNC_SECONDS="600") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        proxy.fault = lambda _: Fault(cut=True)
        proxy.cut_watches()
        kube.apply(serving(pools={"interactive": {"maxNumSeqs": 12}, "batch": {}}))
        kube.run("delete", "service", "demo-batch")
        compact(plane)
        restart_api_server(plane)
        proxy.fault = lambda _: None

        def made_good() -> bool:
            operator.keep_alive()
            return "12" in engine_args(kube) and bool(kube.get("service", "demo-batch"))

        eventually("the change is there, and the Service is back", made_good, 90)
    assert "traceback" not in (tmp_path / "log").read_text().lower()


def compact(plane: ControlPlane) -> None:
    """Forget etcd's history, by its own HTTP interface."""
    (url,) = [part.partition("=")[2] for part in arguments(plane, "etcd") if part.startswith("--listen-client-urls=")]
    pki = plane.state.pki
    tls: dict[str, Any] = {"cert": (str(pki / "etcd.crt"), str(pki / "etcd.key")), "verify": str(pki / "ca.crt")}
    seen = requests.post(f"{url}/v3/kv/range", json={"key": "AA=="}, timeout=20, **tls).json()
    asked = {"revision": seen["header"]["revision"], "physical": True}
    requests.post(f"{url}/v3/kv/compaction", json=asked, timeout=60, **tls).raise_for_status()


def restart_api_server(plane: ControlPlane) -> None:
    """End it, and start it again as it was."""
    name = "kube-apiserver"
    command = arguments(plane, name)
    plane.supervisor.end(name, grace=0)
    plane.supervisor.start(name, command)
    plane.supervisor.wait(name, lambda: plane.api.exists("/readyz"))


def arguments(plane: ControlPlane, name: str) -> list[str]:
    """The command of a part of the control plane."""
    return Path(f"/proc/{plane.supervisor.handles()[name].pid}/cmdline").read_text().rstrip("\0").split("\0")


def test_the_crd_is_removed_and_comes_back(admin: Kube, kube: Kube, operator_kubeconfig: Path, tmp_path: Path) -> None:
    with Operator(operator_kubeconfig, tmp_path / "log") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        # First: the garbage collector may not know a kind that is gone, and would leave its children for ever.
        kube.run("delete", "gsv", "demo", "--timeout=20s")
        eventually("the children are collected", lambda: children(kube) == [], COLLECTION_SECONDS)
        admin.run("delete", "crd", CRD_NAME, "--timeout=60s")
        install(admin, "gemma-operator")
        eventually("it is served", lambda: condition(admin.get("crd", CRD_NAME), "Established").get("status") == "True")
        eventually("a serving is accepted", lambda: apply_if_known(kube))

        def served() -> bool:
            operator.keep_alive()
            return len(children(kube)) == 5

        eventually("it has its children", served, COLLECTION_SECONDS)
        print(f"\nwithout its CRD, and with it again: {operator.starts} starts")


def apply_if_known(kube: Kube) -> bool:
    """Apply a serving; False while kubectl doesn't know the kind."""
    done = kube.run("apply", "-f", "-", stdin=json.dumps(serving()), check=False)
    return done.returncode == 0
