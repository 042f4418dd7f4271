"""The autoscaler against a real API server: engines are Pods that the test calls Ready, their load is a scripted Prometheus's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma_operator.pods import engine_pods
from tests.apiserver.conftest import OPERATOR_USER
from tests.support.kube import WRITES, Kube, audit, condition, eventually
from tests.support.operator import Operator
from tests.support.scripted_prometheus import Reply, ScriptedEngine, ScriptedPrometheus, scripted_prometheus
from tools.cluster.control_plane import ControlPlane

# docs/autoscaling.md shows what came of GEMMA_OUTAGE=600.
OUTAGE_SECONDS = float(os.environ.get("GEMMA_OUTAGE", "10"))
NAME = "demo-interactive"
SERVING = {
    "apiVersion": "gemmaserving.dev/v1alpha1",
    "kind": "GemmaServing",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"id": "google/gemma-4-E4B-it"},
        "pools": {"interactive": {"replicas": {"min": 1, "max": 4}}},
    },
}


class Engines:
    """Makes Pods Ready as a kubelet would, and counts requests for them, a fifth of a second at a time."""

    def __init__(self, kube: Kube, prometheus: ScriptedPrometheus) -> None:
        self.kube, self.prometheus, self.rate = kube, prometheus, 4.0
        self.starting: set[str] = set()
        """Pools whose new Pods don't become Ready."""
        self.every = 0.2
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Engines:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.time()
        while not self._stop.wait(self.every):
            pods = [pod for pod in self.kube.list("pod") if "deletionTimestamp" not in pod["metadata"]]
            for pod in pods:
                is_starting = pod["metadata"]["labels"]["gemmaserving.dev/pool"] in self.starting
                if engine_pods([pod])[0].ready_at is None and not is_starting:
                    self._make_ready(pod["metadata"]["name"])
            now = time.time()
            engaged = {engine.uid for engine in engine_pods(pods) if engine.serves == "interactive" and engine.ready_at}
            requests = self.rate * (now - before) / max(1, len(engaged))
            before = now
            known = {engine.pod_uid: engine for engine in self.prometheus.engines}
            engines = [known.get(pod["metadata"]["uid"]) or ScriptedEngine(pod["metadata"]["uid"]) for pod in pods]
            self.prometheus.now = now
            self.prometheus.engines = [
                replace(engine, good=engine.good + requests, prompt_tokens=engine.prompt_tokens + 500 * requests)
                if engine.pod_uid in engaged
                else replace(engine, running=0)
                for engine in engines
            ]

    def _make_ready(self, name: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
        status = {"status": {"phase": "Running", "podIP": "10.9.9.9", "conditions": ready}}
        self.kube.run(
            "patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status), check=False
        )


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


def size(kube: Kube) -> int:
    found = kube.get("deployment", NAME)
    return int(found["spec"]["replicas"]) if found else 0


def test_load_outage_and_return(
    kube: Kube, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        Operator(operator_kubeconfig, log, GEMMA_PROMETHEUS_URL=prometheus.url),
        Engines(kube, prometheus) as engines,
    ):
        kube.apply(SERVING)
        eventually("metrics are there", lambda: _is(kube, "MetricsAvailable", "True", "Fresh"), 60)
        eventually("the SLO holds", lambda: _is(kube, "SLOMet", "True", "Met"), 60)
        engines.rate = 30.0
        eventually("more engines", lambda: size(kube) >= 3, 60)
        eventually("the sum is shown", lambda: _pool(kube)["lastDecision"]["record"]["terms"]["for_demand"] >= 3)
        before = size(kube)
        prometheus.reply = Reply(503)
        eventually("it is said", lambda: _is(kube, "MetricsAvailable", "False", "QueryFailed"), 60)
        eventually("and held", lambda: _is(kube, "ScalingActive", "False", "MetricsMissing"))
        assert size(kube) >= before
        prometheus.reply = None
        eventually("metrics are back", lambda: _is(kube, "MetricsAvailable", "True", "Fresh"), 60)
        assert size(kube) >= before
        done = explain(kube, "demo", "-n", kube.namespace)
        assert done.returncode == 0, done.stderr
        assert "pool interactive: " in done.stdout
        assert "bounds       1 to 4" in done.stdout
        assert explain(kube, "nobody", "-n", kube.namespace).returncode == 2
        assert condition(kube.get("gsv", "demo"), "Ready")["status"] == "True"
    assert "Traceback" not in log.read_text()


def test_an_outage_at_the_peak_writes_no_replicas(
    kube: Kube, plane: ControlPlane, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, tmp_path: Path
) -> None:
    """By the audit log. The load goes on; it is the one before the outage that is there after it."""
    with (
        Operator(operator_kubeconfig, tmp_path / "log", GEMMA_PROMETHEUS_URL=prometheus.url),
        Engines(kube, prometheus) as engines,
    ):
        kube.apply(SERVING)
        eventually("metrics are there", lambda: _is(kube, "MetricsAvailable", "True", "Fresh"), 60)
        engines.rate = 30.0
        eventually(
            "a peak", lambda: size(kube) >= 3 and _pool(kube).get("lastDecision", {}).get("reason") == "Steady", 90
        )
        before, written = size(kube), scaled(kube, plane)
        prometheus.reply, engines.every = Reply(503), 1.0
        end = time.monotonic() + OUTAGE_SECONDS
        eventually("it is said", lambda: _is(kube, "ScalingActive", "False", "MetricsMissing"), 60)
        eventually("it lasts", lambda: time.monotonic() > end, OUTAGE_SECONDS + 5)
        prometheus.reply = None
        eventually("metrics are back", lambda: _is(kube, "MetricsAvailable", "True", "Fresh"), 60)
        assert size(kube) == before
        assert scaled(kube, plane) == written
        print(
            f"\n{OUTAGE_SECONDS:g} s without Prometheus at {before} engines: {scaled(kube, plane) - written} writes of replicas"
        )


def scaled(kube: Kube, plane: ControlPlane) -> int:
    """Writes of the pool's Deployment so far."""
    mine = [
        entry
        for entry in audit(plane.audit_log, OPERATOR_USER)
        if entry.get("objectRef", {}).get("namespace") == kube.namespace
    ]
    return sum(
        entry["verb"] in WRITES
        and entry["objectRef"].get("resource") == "deployments"
        and "dryRun" not in entry.get("requestURI", "")
        for entry in mine
    )


def test_what_another_autoscaler_writes_stays(
    kube: Kube, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, tmp_path: Path
) -> None:
    """Handed over at two engines; then the size is whatever `kubectl scale` says, as an HPA would by the same door."""
    with (
        Operator(operator_kubeconfig, tmp_path / "log", GEMMA_PROMETHEUS_URL=prometheus.url, GEMMA_RESYNC_SECONDS="1"),
        Engines(kube, prometheus),
    ):
        pool = {"replicas": {"min": 2}}
        kube.apply({**SERVING, "spec": {**SERVING["spec"], "pools": {"interactive": pool}}})  # type: ignore[dict-item]
        eventually("two engines", lambda: size(kube) == 2)
        pool = {"replicas": {"min": 1, "max": 4}, "scaling": {"mode": "External"}}
        kube.apply({**SERVING, "spec": {**SERVING["spec"], "pools": {"interactive": pool}}})  # type: ignore[dict-item]
        eventually("it is said", lambda: _is(kube, "ScalingActive", "False", "NotOurs"), 60)
        assert size(kube) == 2
        for replicas in (7, 3):
            kube.run("scale", f"deployment/{NAME}", f"--replicas={replicas}")
            eventually("it is seen", lambda replicas=replicas: _pool(kube).get("desired") == replicas, 60)  # type: ignore[misc]
            assert size(kube) == replicas


def test_a_profile_from_a_config_map(
    kube: Kube, operator_kubeconfig: Path, prometheus: ScriptedPrometheus, tmp_path: Path
) -> None:
    """Missing, broken, of another engine, good: each is said, and the size follows the good one."""
    pool = {"replicas": {"min": 1, "max": 9}, "scaling": {"profileFrom": {"name": "measured"}}}
    serving = {**SERVING, "spec": {**SERVING["spec"], "pools": {"interactive": pool}}}  # type: ignore[dict-item]

    def profile(text: str) -> dict[str, Any]:
        data = {"profile.yaml": text}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "measured"}, "data": data}

    log = tmp_path / "log"
    with (
        Operator(operator_kubeconfig, log, GEMMA_PROMETHEUS_URL=prometheus.url, GEMMA_RESYNC_SECONDS="1"),
        Engines(kube, prometheus) as engines,
    ):
        engines.rate = 80.0
        kube.apply(serving)
        eventually("none is said", lambda: _is(kube, "ScalingSound", "False", "ProfileUnreadable"), 60)
        assert "there is none in namespace" in condition(kube.get("gsv", "demo"), "ScalingSound")["message"]
        kube.apply(profile("points: [{mediaShare: 0, load: -1}]"))
        eventually("a broken one is said", lambda: "points.0.load" in _sound(kube), 60)
        kube.apply(profile("measuredWith: {engineVersion: 0.20.0}\npoints: [{mediaShare: 0, load: 1}]"))
        eventually("a stale one is said", lambda: _is(kube, "ScalingSound", "False", "ProfileStale"), 60)
        assert "with vLLM 0.20.0" in _sound(kube)
        eventually("many engines", lambda: size(kube) >= 5, 60)
        kube.apply(profile("points: [{mediaShare: 0, load: 40}]"))
        eventually("nothing is wrong", lambda: _is(kube, "ScalingSound", "True", "AsExpected"), 60)
        shown = eventually("what it carries", lambda: _pool(kube).get("lastDecision", {}).get("record"))
        assert shown["terms"]["operating_point"] == 40
        assert shown["terms"]["for_demand"] == 1
    assert "Traceback" not in log.read_text()


def test_config_maps_are_read_by_name_only(admin: Kube) -> None:
    user = f"--as={OPERATOR_USER}"
    for verb, allowed in (("get", "yes"), ("list", "no"), ("watch", "no"), ("update", "no")):
        assert admin.run("auth", "can-i", verb, "configmaps", user, check=False).stdout.strip() == allowed, verb


def explain(kube: Kube, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "PYTHONPATH": str(Path("operator").resolve())}
    command = [sys.executable, "-P", "-m", "gemma_operator", "explain", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _pool(kube: Kube) -> dict[str, Any]:
    found: dict[str, Any] = (kube.get("gsv", "demo") or {}).get("status", {}).get("pools", {}).get("interactive", {})
    return found


def _sound(kube: Kube) -> str:
    return str(condition(kube.get("gsv", "demo"), "ScalingSound").get("message"))


def _is(kube: Kube, kind: str, status: str, reason: str) -> bool:
    found = condition(kube.get("gsv", "demo"), kind)
    return (found.get("status"), found.get("reason")) == (status, reason)
