"""Two operators, one writer: replicas of one installation, and two installations by mistake. Proved from the audit log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.apiserver.conftest import OPERATOR_USER, SYSTEM, await_children, children
from tests.apiserver.test_lifecycle import serving
from tests.support.kube import Kube, condition, eventually, writes
from tests.support.operator import Operator
from tools.cluster.control_plane import ControlPlane

LEASE = "gemmaserving.dev"
# Issue 10: a new leader acts within 20 s of the old one's death.
TAKEOVER_SECONDS = 20


@pytest.fixture
def lease(admin: Kube) -> Kube:
    """kubectl where the Lease is; none is left by another test."""
    kube = Kube(admin.kubeconfig, SYSTEM)
    kube.run("delete", "lease", LEASE, "--ignore-not-found")
    return kube


def replica(kubeconfig: Path, log: Path, pod: str, namespace: str = SYSTEM) -> Operator:
    return Operator(
        kubeconfig, log, POD_NAME=pod, POD_NAMESPACE=namespace, GEMMA_RESYNC_SECONDS="1", GEMMA_SCALING_TICK_SECONDS="5"
    )


def holder(lease: Kube) -> str:
    found = lease.get("lease", LEASE)
    return str(found["spec"]["holderIdentity"]) if found else ""


def observed(kube: Kube, generation: int) -> bool:
    body = kube.get("gsv", "demo")
    return bool(body and body["status"].get("observedGeneration") == generation)


def own(written: list[str]) -> list[str]:
    """Writes to anything but the Lease."""
    return [write for write in written if f"leases/{LEASE}" not in write]


def test_a_standby_is_ready_writes_nothing_and_takes_over_from_a_leader_that_is_killed(
    kube: Kube, lease: Kube, plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with replica(operator_kubeconfig, tmp_path / "a", "pod-a") as first:
        eventually("the first leads", lambda: holder(lease) == f"{SYSTEM}/gemma-operator/pod-a")
        with replica(operator_kubeconfig, tmp_path / "b", "pod-b") as second:
            kube.apply(serving())
            await_children(kube, "demo-interactive", "demo-batch")
            assert second.healthy()
            assert own(writes(plane.audit_log, OPERATOR_USER, "(pod-a)"))
            assert writes(plane.audit_log, OPERATOR_USER, "(pod-b)") == []
            first.kill()
            by_first = len(writes(plane.audit_log, OPERATOR_USER, "(pod-a)"))
            killed = time.monotonic()
            kube.apply(serving(pools={"interactive": {"maxNumSeqs": 7}, "batch": {}}))
            eventually("the second has taken over", lambda: observed(kube, 2), TAKEOVER_SECONDS)
            print(f"\nleader killed -> the standby has acted: {time.monotonic() - killed:.1f} s")
            assert own(writes(plane.audit_log, OPERATOR_USER, "(pod-b)"))
            assert len(writes(plane.audit_log, OPERATOR_USER, "(pod-a)")) == by_first


def test_a_leader_that_is_stopped_hands_over_at_once(
    kube: Kube, lease: Kube, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    """As in a rolling update of the operator."""
    with replica(operator_kubeconfig, tmp_path / "a", "pod-a") as first:
        eventually("the first leads", lambda: holder(lease) == f"{SYSTEM}/gemma-operator/pod-a")
        with replica(operator_kubeconfig, tmp_path / "b", "pod-b"):
            kube.apply(serving())
            await_children(kube, "demo-interactive", "demo-batch")
            assert first.stop() == 0
            assert holder(lease) in ("", f"{SYSTEM}/gemma-operator/pod-b")
            eventually("the second leads", lambda: holder(lease) == f"{SYSTEM}/gemma-operator/pod-b", 10)
            kube.apply(serving(pools={"interactive": {"maxNumSeqs": 7}, "batch": {}}))
            eventually("the second acts", lambda: observed(kube, 2))


def test_a_second_installation_stands_aside_and_the_condition_names_it(
    kube: Kube, lease: Kube, plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with replica(operator_kubeconfig, tmp_path / "a", "pod-one") as first:
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        with replica(operator_kubeconfig, tmp_path / "b", "pod-two", "elsewhere") as second:
            rival = eventually(
                "the condition names the other",
                lambda: (c := condition(kube.get("gsv", "demo"), "SoleOperator")).get("status") == "False" and c,
                40,
            )
            assert rival["reason"] == "AnotherOperator"
            assert "elsewhere/gemma-operator" in rival["message"]
            assert "uninstall one of the two" in rival["message"]
            events = [event["reason"] for event in kube.list("events")]
            assert events.count("AnotherOperator") == 1
            kube.apply(serving(pools={"interactive": {"maxNumSeqs": 7}, "batch": {}}))
            eventually("the first acts", lambda: observed(kube, 2))
            assert own(writes(plane.audit_log, OPERATOR_USER, "(pod-two)")) == []
            assert first.healthy()
            assert second.healthy()
    assert (
        f"{SYSTEM}/gemma-operator acts for the whole cluster: this operator stands aside"
        in (tmp_path / "b").read_text()
    )


def test_the_whole_cluster_leaves_a_namespace_to_an_operator_of_its_own(
    kube: Kube, lease: Kube, admin: Kube, plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "lease"},
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}],
    }
    kube.apply(role)
    kube.run("create", "rolebinding", "lease", "--role=lease", f"--serviceaccount={SYSTEM}:gemma-operator")
    with replica(operator_kubeconfig, tmp_path / "a", "pod-wide"):
        kube.apply(serving())
        await_children(kube, "demo-interactive", "demo-batch")
        namespaced = Operator(
            operator_kubeconfig,
            tmp_path / "b",
            POD_NAME="pod-team",
            POD_NAMESPACE="team-system",
            GEMMA_WATCH_NAMESPACES=kube.namespace,
            GEMMA_RESYNC_SECONDS="1",
        )
        with namespaced:
            eventually(
                "the namespace has an operator of its own",
                lambda: own(writes(plane.audit_log, OPERATOR_USER, "(pod-team)")) or observed_by(kube, "pod-team"),
                60,
            )
            before = len(writes(plane.audit_log, OPERATOR_USER, "(pod-wide)"))
            kube.apply(serving(pools={"interactive": {"maxNumSeqs": 7}, "batch": {}}))
            eventually("it acts", lambda: observed(kube, 2))
            assert "patch deployments/demo-interactive" in writes(plane.audit_log, OPERATOR_USER, "(pod-team)")
            later = own(writes(plane.audit_log, OPERATOR_USER, "(pod-wide)")[before:])
            assert [write for write in later if "demo" in write] == []
    assert "Traceback" not in (tmp_path / "a").read_text() + (tmp_path / "b").read_text()
    assert children(kube)


def observed_by(kube: Kube, pod: str) -> bool:
    """Whether the Lease of the namespace is held by `pod`, long enough for it to act."""
    found = kube.get("lease", LEASE)
    return bool(
        found
        and pod in found["spec"]["holderIdentity"]
        and condition(kube.get("gsv", "demo"), "SoleOperator").get("status") == "False"
    )
