"""The operator behind an API server that fails: refused and expired lists, cut watches, slow answers, an outage, crashes between any two writes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import await_children
from tests.apiserver.test_lifecycle import engine_args, serving
from tests.support.faulty_proxy import Fault, FaultyProxy, Request
from tests.support.kube import Kube, eventually
from tests.support.operator import Operator

# docs/reliability.md shows what came of GEMMA_CRASHES=32 and GEMMA_API_DELAY=5.
CRASHES = int(os.environ.get("GEMMA_CRASHES", "3"))
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


def test_with_slow_answers_it_converges_and_lives(kube: Kube, proxy: FaultyProxy, tmp_path: Path) -> None:
    with Operator(proxy.kubeconfig, tmp_path / "log", GEMMA_RESYNC_SECONDS="60") as operator:
        proxy.fault = lambda request: None if request.is_watch else Fault(delay_seconds=DELAY_SECONDS)
        kube.apply(serving())
        eventually("its children are there", lambda: kube.list("deployment"), 120)
        assert operator.healthy()


def made(kube: Kube) -> dict[str, Any]:
    """The children as a person compares them: specs without what the API server makes up, and owners."""
    found = {}
    for kind in ("deployment", "service", "poddisruptionbudget"):
        for body in kube.list(kind):
            spec = dict(body["spec"])
            for made_up in ("clusterIP", "clusterIPs"):
                spec.pop(made_up, None)
            owners = [owner["kind"] for owner in body["metadata"]["ownerReferences"]]
            found[f"{kind}/{body['metadata']['name']}"] = (spec, owners)
    return found


STEPS: tuple[dict[str, Any], ...] = (
    {"interactive": {"replicas": {"min": 2, "max": 4}}, "batch": {}},
    {"interactive": {"replicas": {"min": 2, "max": 4}, "maxNumSeqs": 9}, "extra": {"class": "batch"}},
    {"interactive": {"replicas": {"min": 3, "max": 4}, "maxNumSeqs": 10}, "batch": {"replicas": {"min": 2}}},
)


def is_done(kube: Kube, generation: int) -> bool:
    status = (kube.get("gsv", "demo") or {}).get("status", {})
    return bool(status.get("observedGeneration") == generation)


def walk(
    kube: Kube, proxy: FaultyProxy, folder: Path, crash_after: int = 0, expected: dict[str, Any] | None = None
) -> tuple[dict[str, Any], int]:
    """Create, update and prune, with a SIGKILL right after, or instead of, the n-th write.

    Returns what came of it, at last as `expected`, and the number of writes.
    """
    count = 0
    doomed: list[Operator] = []
    crashed = False

    def fault(request: Request) -> Fault | None:
        nonlocal count, crashed
        if not request.is_write:
            return None
        count += 1
        if count == crash_after and not crashed:
            crashed = True
            doomed[0].kill_at_once()
            return Fault(cut=True) if crash_after % 2 else Fault(lost=True)
        return None

    operator = Operator(proxy.kubeconfig, folder / "log", GEMMA_RESYNC_SECONDS="2")
    doomed.append(operator)
    proxy.fault = fault
    with operator:
        for number, pools in enumerate(STEPS, 1):
            kube.apply(serving(pools=pools))

            def done(number: int = number) -> bool:
                if crashed and not operator.is_running():
                    operator.start()
                return is_done(kube, number)

            eventually(f"step {number}", done, 60)
        eventually("the dropped pool is gone", lambda: not kube.get("deployment", "demo-extra"), 30)
        if expected is not None:
            eventually("the same objects", lambda: made(kube) == expected, 30)
        came = made(kube)
    proxy.fault = lambda _: None
    return came, count


def test_killed_between_any_two_writes_it_comes_to_the_same_end(
    admin: Kube, proxy: FaultyProxy, tmp_path: Path
) -> None:
    def world(name: str) -> Kube:
        admin.run("create", "namespace", name)
        return Kube(admin.kubeconfig, name)

    undisturbed, writes = walk(world("crash-none"), proxy, tmp_path)
    assert writes > 10
    moments = random.Random(10).sample(range(1, writes + 1), min(CRASHES, writes))
    for moment in moments:
        kube = world(f"crash-{moment}")
        print(f"\nkilled at write {moment} of {writes}")
        assert walk(kube, proxy, tmp_path, moment, undisturbed)[0] == undisturbed
        admin.run("delete", "namespace", kube.namespace, "--wait=false")
    admin.run("delete", "namespace", "crash-none", "--wait=false")
    assert "Traceback" not in (tmp_path / "log").read_text()
