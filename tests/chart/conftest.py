"""Fixture `helm`: renders the chart with the real program. `installed` and `operator`: the chart on a real API server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube import Kube, condition, eventually, namespace_of
from tests.support.operator import Operator, account_kubeconfig
from tools.cluster.binaries import ensure_one
from tools.cluster.control_plane import ControlPlane

CHART = Path(__file__).resolve().parents[2] / "charts" / "gemma-operator"
SERVING_CHART = CHART.parent / "gemma-serving"
RELEASES = Path(__file__).parent / "releases"
SYSTEM = "gemma-system"
CRD = "gemmaservings.gemmaserving.dev"
VALUES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
Manifest = dict[str, Any]


def find_program(name: str) -> str:
    """Path of a program: from the variable of its name, else as tools/cluster finds or compiles it."""
    return os.environ.get(name.upper()) or str(ensure_one(name))


def documents(text: str) -> list[Manifest]:
    """The objects in a text of several."""
    return [document for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if document]


@dataclass(frozen=True)
class Helm:
    program: str
    kubeconfig: Path = Path("/nowhere")

    def command(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """helm, started."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.Popen(
            [self.program, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        process = self.command(*arguments)
        out, error = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, error)

    def ok(self, *arguments: str | Path) -> str:
        """What helm prints; fails with what it says."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout

    def on(self, kube: Kube) -> Helm:
        """helm against a cluster."""
        return replace(self, kubeconfig=kube.kubeconfig)

    @cache  # noqa: B019 - one object per session
    def text(self, *arguments: str, values: str = "", release: str = "r", namespace: str = "system") -> str:
        """What `helm template` prints; `values` names a file in ci/, `arguments` are further ones such as --set."""
        files = ["--values", str(CHART / "ci" / f"{values}-values.yaml")] if values else []
        done = self.run("template", release, CHART, "--namespace", namespace, *files, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def render(self, *arguments: str, **options: str) -> list[Manifest]:
        return documents(self.text(*arguments, **options))

    def refusal(self, *arguments: str) -> str:
        """The message with which the chart is refused."""
        done = self.run("template", "r", CHART, *arguments)
        assert done.returncode != 0, f"accepted: {arguments}"
        return done.stderr

    def one(self, kind: str, name: str, *arguments: str, **options: str) -> Manifest:
        (found,) = [m for m in self.render(*arguments, **options) if (m["kind"], m["metadata"]["name"]) == (kind, name)]
        return found

    @staticmethod
    def names(manifests: list[Manifest], *kinds: str) -> set[str]:
        return {m["metadata"]["name"] for m in manifests if m["kind"] in kinds}

    def deployments(self, *arguments: str, **options: str) -> list[Manifest]:
        return [manifest for manifest in self.render(*arguments, **options) if manifest["kind"] == "Deployment"]

    def pod_specs(self, *arguments: str, **options: str) -> list[Manifest]:
        """Of the Deployments and of the test."""
        pods = [m["spec"] for m in self.render(*arguments, **options) if m["kind"] == "Pod"]
        return [m["spec"]["template"]["spec"] for m in self.deployments(*arguments, **options)] + pods

    def operator(self, *arguments: str, **options: str) -> Manifest:
        """Pod spec of the operator of release `r`."""
        spec: Manifest = self.one("Deployment", "r-gemma-operator", *arguments, **options)["spec"]["template"]["spec"]
        return spec

    def operator_env(self, *arguments: str, **options: str) -> dict[str, Any]:
        """Environment of the operator container of release `r`: values, or where they come from."""
        (container,) = self.operator(*arguments, **options)["containers"]
        env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
        assert len(env) == len(container["env"]), "the API server refuses a name given twice"
        return env


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(find_program("helm"))


@pytest.fixture(scope="session")
def helm3() -> Helm:
    return Helm(find_program("helm3"))


@pytest.fixture(scope="session")
def promtool() -> str:
    return find_program("promtool")


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(params=["", *VALUES])
def values(request: pytest.FixtureRequest) -> str:
    """Each values file of ci/ in turn, and none."""
    return str(request.param)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """etcd, API server and controller manager; no node."""
    with ControlPlane.start("chart-tests") as running:
        yield running


@pytest.fixture(scope="session")
def installed(plane: ControlPlane, helm: Helm) -> Kube:
    """The chart as the README installs it; kubectl in its namespace."""
    kube = Kube(plane.kubeconfig, SYSTEM)
    helm.on(kube).ok("install", "gemma-operator", CHART, "--namespace", SYSTEM, "--create-namespace")
    await_crd(kube)
    return kube


@pytest.fixture(scope="session")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The operator with the rights and the environment that the chart gives it."""
    folder = tmp_path_factory.mktemp("operator")
    kubeconfig = account_kubeconfig(installed, SYSTEM, "gemma-operator", folder)
    deployment = installed.get("deployment", "gemma-operator")
    assert deployment
    given = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    kept = {e["name"]: e["value"] for e in given if "value" in e and not e["name"].endswith(("_PORT", "_SECONDS"))}
    ours = {"GEMMA_RESYNC_SECONDS": "1", "POD_NAMESPACE": SYSTEM}
    with Operator(kubeconfig, folder / "log", **{**kept, **ours}) as running:
        yield running
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def kube(installed: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """kubectl in a namespace of the test's own."""
    with namespace_of(installed, request.node.nodeid) as own:
        yield own


def await_crd(kube: Kube) -> None:
    """Wait until GemmaServings can be made."""
    eventually(f"{CRD} is established", lambda: condition(kube.get("crd", CRD), "Established").get("status") == "True")
