"""A control plane for the tier, the chart's CRD and RBAC in it, and the operator with just those rights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.kube import Kube, condition, eventually, namespace_of
from tests.support.operator import Operator, account_kubeconfig
from tools.cluster import binaries
from tools.cluster.control_plane import ControlPlane

SYSTEM = "gemma-system"
OPERATOR_USER = f"system:serviceaccount:{SYSTEM}:gemma-operator"


class Quick(ControlPlane):
    """HPAs look at their metrics every 3 s, not every 15."""

    controller_flags = ("--horizontal-pod-autoscaler-sync-period=3s",)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """etcd, API server and controller manager; no node."""
    with Quick.start("apiserver-tests") as running:
        yield running


@pytest.fixture(scope="session")
def admin(plane: ControlPlane) -> Kube:
    """kubectl as cluster admin, with the chart's CRD, RBAC and priority classes applied."""
    kube = Kube(plane.kubeconfig)
    kube.run("create", "namespace", SYSTEM)
    install(kube, "gemma-operator")
    crd = "gemmaservings.gemmaserving.dev"
    eventually(f"{crd} established", lambda: condition(kube.get("crd", crd), "Established").get("status") == "True")
    return kube


@pytest.fixture(scope="session")
def operator_kubeconfig(admin: Kube, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the operator's ServiceAccount token: 403 where the chart grants too little."""
    return kubeconfig_of(admin, "gemma-operator", tmp_path_factory.mktemp("operator"))


def install(admin: Kube, release: str, *settings: str) -> None:
    """What the chart renders for a release, less what needs a node."""
    command = [str(binaries.ensure_one("helm")), "template", release, "charts/gemma-operator", "-n", SYSTEM]
    rendered = subprocess.run([*command, *settings], capture_output=True, text=True, check=True).stdout
    wanted = {
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "PriorityClass",
    }
    for document in yaml.safe_load_all(rendered):
        if document and document["kind"] in wanted:
            Kube(admin.kubeconfig, document["metadata"].get("namespace", SYSTEM)).apply(document)


def kubeconfig_of(admin: Kube, account: str, folder: Path) -> Path:
    """A kubeconfig with the token of an installed operator's ServiceAccount."""
    return account_kubeconfig(admin, SYSTEM, account, folder)


@pytest.fixture
def kube(admin: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """kubectl in a namespace of the test's own."""
    with namespace_of(admin, request.node.nodeid) as own:
        yield own


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A running operator that looks at every serving again after one second."""
    log = tmp_path_factory.mktemp("operator") / "log"
    classes = {f"GEMMA_PRIORITY_CLASS_{kind.upper()}": f"gemma-operator-{kind}" for kind in ("interactive", "batch")}
    with Operator(operator_kubeconfig, log, GEMMA_RESYNC_SECONDS="1", **classes) as running:
        yield running
    assert "Traceback" not in log.read_text()


def children(kube: Kube) -> list[str]:
    """`kind/name` of the Deployments and Services in the namespace, sorted."""
    return sorted(f"{o['kind']}/{o['metadata']['name']}" for kind in ("deployment", "service") for o in kube.list(kind))


def await_children(kube: Kube, *names: str) -> None:
    """Wait until exactly a Deployment and a Service of each name exist, and the entry `demo`."""
    expected = sorted([*(f"{kind}/{name}" for kind in ("Deployment", "Service") for name in names), "Service/demo"])
    eventually(f"children {expected}", lambda: children(kube) == expected or None)
