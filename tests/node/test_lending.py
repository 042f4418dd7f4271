"""Donors on a real node: kube-proxy sends requests where the label says, within seconds, and the scenes of docs/autoscaling.md."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.node.conftest import MODEL, address, await_ready, serving
from tests.node.load import ask, failures
from tests.support.kube import Kube, eventually
from tools.cluster import binaries
from tools.demo import traffic
from tools.demo.console import Shell
from tools.scenarios.play import play, table
from tools.scenarios.recording import Recording
from tools.scenarios.scenes import scenes

START_SECONDS = 25
POOLS: dict[str, Any] = {
    "interactive": {"env": [{"name": "STANDIN_STARTUP_SECONDS", "value": str(START_SECONDS)}]},
    "batch": {"replicas": {"min": 1, "max": 2}, "scaling": {"mode": "Off", "lend": 1}},
}


def endpoints(kube: Kube, service: str) -> set[str]:
    """Names of the Ready Pods behind a Service."""
    return {
        endpoint["targetRef"]["name"]
        for found in kube.list("endpointslice", f"kubernetes.io/service-name={service}")
        for endpoint in found.get("endpoints") or []
        if endpoint["conditions"].get("ready")
    }


def test_a_pool_without_any_engine_is_answered_by_a_lent_one(kube: Kube) -> None:
    kube.apply(serving("lent", pools=POOLS))
    await_ready(kube, "lent", 120)
    kube.run("scale", "deployment/lent-batch", "--replicas=2")
    eventually("two batch engines", lambda: len(batch := endpoints(kube, "lent-batch")) == 2 and batch, 60)
    batch, (own,) = endpoints(kube, "lent-batch"), endpoints(kube, "lent-interactive")
    url = address(kube, "lent-interactive")
    kube.run("delete", "pod", own, "--wait=false")
    lent = eventually("a batch engine answers for it", lambda: endpoints(kube, "lent-interactive") & batch, 60)
    assert endpoints(kube, "lent-batch") == batch - lent
    eventually("and answers", lambda: not failures(ask(url, traffic.text_body(MODEL, 1))), 20)
    assert failures(ask(url, *(traffic.video_body(MODEL, n) for n in range(4)))) == []
    eventually("it goes back", lambda: endpoints(kube, "lent-batch") == batch, 120)
    (new,) = endpoints(kube, "lent-interactive")
    assert new not in {own, *batch}
    events = kube.run("get", "events", "-o", "custom-columns=R:.reason,M:.message", "--no-headers").stdout
    assert "is lent to pool interactive, which has 0 Ready engines" in events
    assert "goes back to pool batch" in events
    kube.run("delete", "gsv", "lent")


def played(kube: Kube, name: str) -> Recording:
    """The last run of a short scene; its figures are in the test's output."""
    shell = Shell(str(Path.cwd()), {**os.environ, "KUBECONFIG": str(kube.kubeconfig)})
    run = scenes(short=True)[name].runs[-1]
    recording = asyncio.run(play(run, shell, [str(binaries.ensure_one("kubectl"))], kube.namespace))
    print(f"\n{table(recording)}")
    return recording


def test_a_step_in_load_borrows_while_an_engine_starts(kube: Kube) -> None:
    recording = played(kube, "step")
    lent = next(sample for sample in recording.samples if sample.borrowed)
    assert lent.ready["interactive"] == 1, "before any cold engine was Ready"
    assert lent.desired["batch"] == 3, "its ReplicaSet has them still"
    assert max(sample.desired["interactive"] for sample in recording.samples) > 1, "cold ones were asked for as well"


def test_a_target_that_nobody_can_hold_adds_no_engine(kube: Kube) -> None:
    recording = played(kube, "infeasible")
    assert {sample.desired["interactive"] for sample in recording.samples} == {1}
    assert recording.samples[-1].conditions["SLOMet"].startswith("False")
