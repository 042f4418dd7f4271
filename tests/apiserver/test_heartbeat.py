"""Engines that hang, against a real API server with the operator's own rights: named, and evicted one at a time on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_scaling import NAME, SERVING, Engines
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tests.support.scripted_prometheus import ScriptedEngine, ScriptedPrometheus, scripted_prometheus

KEEPS_HANGING_SECONDS = 8


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


def test_hung_engines_are_named_then_evicted_one_at_a_time(
    kube: Kube, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, tmp_path: Path
) -> None:
    still: set[str] = set()

    def stop(engines: list[ScriptedEngine]) -> list[ScriptedEngine]:
        return [replace(e, good=7, prompt_tokens=7, running=3) if e.pod_uid in still else e for e in engines]

    def pods() -> dict[str, str]:
        return {p["metadata"]["uid"]: p["metadata"]["name"] for p in kube.list("pod")}

    def progressing() -> dict[str, Any]:
        return condition(kube.get("gsv", "demo"), "EnginesProgressing")

    def hung() -> dict[str, Any] | None:
        return found if (found := progressing()).get("reason") == "EngineHung" else None

    prometheus.distort = stop
    log = tmp_path / "log"
    fast = {"GEMMA_RESYNC_SECONDS": "1", "GEMMA_SCALING_TICK_SECONDS": "1"}
    spec = {**SERVING["spec"], "pools": {"interactive": {"replicas": {"min": 2}}}, "heartbeat": {"afterSeconds": 30}}  # type: ignore[dict-item]
    with Operator(operator_kubeconfig, log, GEMMA_PROMETHEUS_URL=prometheus.url, **fast), Engines(kube, prometheus):
        kube.apply({**SERVING, "spec": spec})
        eventually("engines get on", lambda: progressing().get("reason") == "AsExpected" and len(pods()) == 2, 60)
        old = pods()
        still |= old.keys()
        found = eventually(
            "both are named", lambda: (c := hung()) and all(n in c["message"] for n in old.values()) and c, 90
        )
        assert found["status"] == "False"
        assert "spec.heartbeat.restart" in found["message"]
        assert pods() == old, "nobody asked for a restart"
        before = kube.get("deployment", NAME)
        kube.run("patch", "gsv", "demo", "--type=merge", "-p", json.dumps({"spec": {"heartbeat": {"restart": True}}}))
        eventually("one is replaced", lambda: len(pods().keys() - old.keys()) == 1 and len(pods()) == 2, 60)
        (left,) = (name for uid, name in pods().items() if uid in old)
        eventually(
            "the other is named still",
            lambda: (c := hung()) and left in c["message"] and len(c["message"]) < len(found["message"]),
            30,
        )
        last = eventually("its time", lambda: len(prometheus.asked) or None)
        eventually("some ticks", lambda: len(prometheus.asked) > last + 4 * KEEPS_HANGING_SECONDS or None, 60)
        assert left in pods().values(), "the second goes ten minutes later"
        after = kube.get("deployment", NAME)
        assert before
        assert after
        assert after["spec"]["template"] == before["spec"]["template"], "a heartbeat is no reason to replace engines"
        told = kube.run("get", "events", "-o", "custom-columns=R:.reason", "--no-headers").stdout.split()
        assert told.count("EngineRestarted") == 1
    assert "Traceback" not in log.read_text()
