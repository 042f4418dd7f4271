"""A real Argo CD beside the real node; the Applications of examples/argocd with a repository on disk and this node's values."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.conftest import node as node
from tests.support.argocd import App, Repository, Timeline
from tests.support.kube import Kube, eventually
from tools.argocd.rig import CONTROLLER, NAMESPACE, REPO_SERVER, ArgoCD
from tools.cluster import binaries
from tools.cluster.node import Node

VALUES = yaml.safe_load(Path("tests/argocd/values.yaml").read_text())
COMMANDS = {line.partition("  #")[0].strip() for line in Path("docs/gitops.md").read_text().splitlines()}
SERVING = "servings/gemma4-e4b.yaml"
NAME = "gemma4-e4b"
CRD = "gemmaservings.gemmaserving.dev"
Documented = Callable[[str], str]


@pytest.fixture(scope="session")
def argo(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArgoCD]:
    folder = tmp_path_factory.mktemp("argocd")
    Kube(node.kubeconfig).run("delete", "crd", CRD, "--ignore-not-found")  # of a run on a node that was kept
    with ArgoCD(node.kubeconfig, folder / "rig") as running:
        yield running
        for name in (CONTROLLER, REPO_SERVER):
            assert "panic" not in running.log(name)


@pytest.fixture(scope="session")
def apps(argo: ArgoCD) -> Kube:
    """kubectl in Argo CD's namespace."""
    return Kube(argo.kubeconfig, NAMESPACE)


@pytest.fixture(scope="session")
def timeline(apps: Kube) -> Iterator[Timeline]:
    """Argo CD's own view over time; printed at the end, and written to the file that GEMMA_ARGOCD_TABLE names."""
    with Timeline(apps) as running:
        yield running
    print(f"\n{running.table()}")
    if path := os.environ.get("GEMMA_ARGOCD_TABLE"):
        Path(path).write_text(running.table())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def documented(apps: Kube, repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Documented:
    """Run a command of docs/gitops.md, where examples/ names the test's repository and this node's values."""
    work = tmp_path_factory.mktemp("work")
    shutil.copytree("examples/argocd", work / "examples/argocd")
    for name in ("operator", "serving", "both"):
        path = work / f"examples/argocd/{name}.yaml"
        path.write_text(yaml.safe_dump(localised(yaml.safe_load(path.read_text()), repository)))

    def run(command: str) -> str:
        assert command in COMMANDS, f"docs/gitops.md has no command {command!r}"
        program, *args = shlex.split(command)
        assert program == "kubectl"
        done = subprocess.run(
            [str(binaries.ensure_one("kubectl")), *args], cwd=work, capture_output=True, text=True, check=False,
            env={**os.environ, "KUBECONFIG": str(apps.kubeconfig)}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    return run


def localised(application: dict[str, Any], repository: Repository) -> dict[str, Any]:
    """An example with the two things changed that every user changes."""
    spec = application["spec"]
    for source in spec.get("sources") or [spec["source"]]:
        source["repoURL"] = repository.url
        if "helm" in source:
            source["helm"]["valuesObject"] = VALUES
    return application


@pytest.fixture
def operator_app(apps: Kube) -> App:
    return App(apps, "gemma-operator")


@pytest.fixture
def servings_app(apps: Kube) -> App:
    return App(apps, "gemma-servings")


@pytest.fixture
def models(apps: Kube) -> Kube:
    """kubectl in the namespace of the GemmaServings."""
    return Kube(apps.kubeconfig, "models")


@pytest.fixture(scope="module")
def lua(documented: Documented) -> None:
    """Our health check, installed as the documentation says."""
    documented("kubectl -n argocd patch configmap argocd-cm --patch-file examples/argocd/argocd-cm.yaml")


def children(kube: Kube) -> dict[str, str]:
    """uid of every child, by `Kind/name`."""
    kinds = "deployment,service,poddisruptionbudget,persistentvolumeclaim"
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["uid"] for o in kube.list(kinds)}


def templates(kube: Kube) -> dict[str, Any]:
    """Pod template and revision of every engine Deployment."""
    revision = "deployment.kubernetes.io/revision"
    return {
        d["metadata"]["name"]: (d["spec"]["template"], d["metadata"]["annotations"][revision])
        for d in kube.list("deployment")
    }


def await_nothing_left(kube: Kube) -> None:
    """Neither a GemmaServing nor a child or Pod of one; the garbage collector may take its time."""
    kinds = "deployment,service,persistentvolumeclaim,pod"
    eventually("nothing is left", lambda: not kube.list(kinds, "gemmaserving.dev/serving"), 120)
