"""The operator under faults: stopped, killed, without Prometheus. Each test runs its own operator."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from tests.apiserver.conftest import await_children, children
from tests.apiserver.test_lifecycle import COLLECTION_SECONDS, engine_args, serving
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator


def test_before_an_operator_sees_it_the_status_says_so(kube: Kube) -> None:
    kube.apply(serving())
    body = kube.get("gsv", "demo")
    assert body
    assert body["status"] == {"observedGeneration": -1}


def test_deletion_needs_no_operator(kube: Kube, operator_kubeconfig: Path, tmp_path: Path) -> None:
    with Operator(operator_kubeconfig, tmp_path / "operator.log") as operator:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        assert operator.stop() == 0
    kube.run("delete", "gsv", "demo", "--timeout=20s")
    eventually("no child is left", lambda: children(kube) == [], COLLECTION_SECONDS)


def test_without_prometheus_replicas_are_held_and_the_status_says_why(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with Operator(operator_kubeconfig, tmp_path / "log", GEMMA_PROMETHEUS_URL="http://127.0.0.1:9") as operator:
        kube.apply(serving())
        missing = eventually(
            "metrics are missing",
            lambda: (c := condition(kube.get("gsv", "demo"), "MetricsAvailable")).get("status") == "False" and c,
        )
        assert missing["reason"] == "QueryFailed"
        assert condition(kube.get("gsv", "demo"), "ScalingActive")["status"] == "False"
        assert operator.healthy()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_killed_at_any_moment_it_converges_after_a_restart(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    """kill -9 at random moments of create, update and prune; then the same objects as of an undisturbed run."""
    moments = random.Random(20261129)
    steps = [
        serving(pools={"interactive": {"replicas": {"min": 2, "max": 4}}, "batch": {}}),
        serving(
            pools={"interactive": {"replicas": {"min": 2, "max": 4}, "maxNumSeqs": 9}, "extra": {"class": "batch"}}
        ),
        serving(
            pools={
                "interactive": {"replicas": {"min": 3, "max": 4}, "maxNumSeqs": 10},
                "batch": {"replicas": {"min": 2}},
            }
        ),
    ]
    for step in steps:
        operator = Operator(operator_kubeconfig, tmp_path / "operator.log").start()
        kube.apply(step)
        time.sleep(moments.uniform(0, 0.3))  # the moment of the crash is the input of this test
        operator.kill()
    with Operator(operator_kubeconfig, tmp_path / "operator.log"):
        await_children(kube, "demo-interactive", "demo-batch")

        def sizes() -> dict[str, int]:
            return {d["metadata"]["name"]: d["spec"]["replicas"] for d in kube.list("deployment")}

        eventually("sizes of the last spec", lambda: sizes() == {"demo-interactive": 3, "demo-batch": 2})
        assert "10" in engine_args(kube)


def test_an_old_crd_is_told(admin: Kube, operator_kubeconfig: Path, tmp_path: Path) -> None:
    crd = "gemmaservings.gemmaserving.dev"
    spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rollout"
    field = admin.run("get", "crd", crd, "-o", "json").stdout
    whole = json.loads(field)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    admin.run("patch", "crd", crd, "--type=json", "-p", json.dumps([{"op": "remove", "path": spec}]))
    try:
        with Operator(operator_kubeconfig, tmp_path / "log"):
            said = (tmp_path / "log").read_text()
        assert f"the CRD {crd} is older than this operator and lacks spec.rollout" in said
        assert "upgrade it (helm upgrade" in said
    finally:
        back = [{"op": "add", "path": spec, "value": whole["rollout"]}]
        admin.run("patch", "crd", crd, "--type=json", "-p", json.dumps(back))
