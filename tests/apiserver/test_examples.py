"""Every file of the examples is taken by a real API server with the real CRDs of others; those of Argo CD by Argo CD itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.apiserver.conftest import SYSTEM
from tests.support.kube import Kube
from tools.cluster.crds import FLUX_HELM, FLUX_KUSTOMIZE, FLUX_SOURCE, GATEWAY_API, KEDA

EXAMPLES = Path("examples")
ELSEWHERE = {"argocd"}
"""The tier `argocd` applies these."""
FILES = sorted(
    path
    for path in EXAMPLES.rglob("*.yaml")
    if path.name != "values.yaml" and path.relative_to(EXAMPLES).parts[0] not in ELSEWHERE
)
CRDS = (
    (GATEWAY_API, "gateway.networking.k8s.io_gateways"),
    (KEDA, "keda.sh_scaledobjects"),
    (FLUX_SOURCE, "source.toolkit.fluxcd.io_gitrepositories"),
    (FLUX_KUSTOMIZE, "kustomize.toolkit.fluxcd.io_kustomizations"),
    (FLUX_HELM, "helm.toolkit.fluxcd.io_helmreleases"),
)


def namespaces(file: Path) -> set[str]:
    """Those that the objects of a file name."""
    return {
        one["metadata"]["namespace"] for one in yaml.safe_load_all(file.read_text()) if "namespace" in one["metadata"]
    }


@pytest.fixture(scope="module")
def others(admin: Kube) -> Iterator[Kube]:
    """The API server with the kinds of others, and with the namespaces that the examples name."""
    files = [str(module.crd(name)) for module, name in CRDS]
    for file in files:
        admin.run("apply", "--server-side", "-f", file)
    for file in files:
        admin.run("wait", "--for=condition=Established", "-f", file, "--timeout=60s")
    for namespace in {found for file in FILES for found in namespaces(file)} - {SYSTEM}:
        admin.run("create", "namespace", namespace)
    yield admin
    for file in files:
        admin.run("delete", "--ignore-not-found", "-f", file)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_is_taken(others: Kube, kube: Kube, file: Path) -> None:
    applied = [*yaml.safe_load_all(file.read_text())]
    where = "" if namespaces(file) else kube.namespace
    done = Kube(others.kubeconfig, where).run("apply", "--validate=strict", "-f", str(file))
    assert len(done.stdout.splitlines()) == len(applied)
    warnings = [line for line in done.stderr.splitlines() if "Warning" in line and "last-applied" not in line]
    assert warnings == []


def test_kedas_trigger_has_the_settings_that_its_scaler_reads() -> None:
    """KEDA's schema takes anything there."""
    code = (KEDA.fetched().parents[2] / "pkg/scalers/prometheus_scaler.go").read_text()
    known = set(re.findall(r"keda:\"name=(\w+)", code))
    needed = {
        name
        for name, more in re.findall(r"keda:\"name=(\w+)([^\"]*)\"", code)
        if not re.search("optional|default", more)
    }
    scaled = yaml.safe_load((EXAMPLES / "external-autoscaler/keda.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    assert {"query", "threshold"} <= needed
    assert trigger["metadata"].keys() <= known
    assert needed <= trigger["metadata"].keys()
