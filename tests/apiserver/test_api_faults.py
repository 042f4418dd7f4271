"""The operator behind an API server that fails: refused and expired lists, cut watches, slow answers, an outage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import await_children
from tests.apiserver.test_lifecycle import engine_args, serving
from tests.support.faulty_proxy import Fault, FaultyProxy, Request
from tests.support.kube import Kube, eventually
from tests.support.operator import Operator

# docs/reliability.md shows what came of GEMMA_API_DELAY=5.
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
            eventually(f"{what}: some requests have failed", lambda failed=failed: len(failed) >= 2, 60)
            proxy.fault = lambda _: None

            def changed(number: int = number) -> bool:
                operator.keep_alive()
                return str(number) in engine_args(kube)

            eventually(f"{what}: the change is there", changed, 90)
            kube.run("delete", "service", "demo-batch")
            eventually(f"{what}: its watches live", lambda: kube.get("service", "demo-batch"), 60)
            assert operator.healthy()
        assert operator.starts <= 2
    assert "Traceback" not in (tmp_path / "log").read_text()


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
        eventually("its children are there", lambda: kube.list("deployment"), 120)
        assert operator.healthy()
