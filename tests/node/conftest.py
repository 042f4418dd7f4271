"""A real node with the chart installed by helm, once for the tier."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube import Kube, condition, eventually
from tools.cluster import binaries
from tools.cluster.node import Node

SYSTEM = "gemma-system"
RELEASE = "gemma-operator"
EXAMPLE: dict[str, Any] = yaml.safe_load(Path("examples/quick-start/serving.yaml").read_text())
MODEL = EXAMPLE["spec"]["model"]["id"]
Helm = Callable[..., str]


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """API server, scheduler, kubelet, containerd; eight pretended GPUs; our images imported."""
    for image in ("operator", "prometheus"):
        subprocess.run([sys.executable, "-m", "tools.images", "build", image], check=True)
    with Node.start("node-tests") as running:
        running.set_gpus(8)
        for image in ("operator", "prometheus"):
            command = [sys.executable, "-m", "tools.images", "archive", image]
            archive = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            running.load(Path(archive))
        yield running


@pytest.fixture(scope="session")
def helm(node: Node) -> Helm:
    """helm against the node; returns its output, fails with it."""

    def run(*args: str) -> str:
        done = subprocess.run(
            [str(binaries.ensure_one("helm")), *args], env={**os.environ, "KUBECONFIG": str(node.kubeconfig)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"helm {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def installed(node: Node, helm: Helm) -> Kube:
    """The chart, installed as the README says, with values for this node; kubectl in the chart's namespace."""
    helm("uninstall", RELEASE, "-n", SYSTEM, "--ignore-not-found", "--wait")  # of a run on a node that was kept
    where = ["-n", SYSTEM, "--create-namespace"]
    helm(
        "install",
        RELEASE,
        "charts/gemma-operator",
        *where,
        "--values",
        "tests/node/values.yaml",
        "--wait",
        "--timeout",
        "2m",
    )
    return Kube(node.kubeconfig, SYSTEM)


@pytest.fixture(scope="module")
def kube(installed: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """kubectl in a namespace of the module's own."""
    name = request.module.__name__.rpartition(".")[2].replace("_", "-")
    installed.run("create", "namespace", name)
    own = Kube(installed.kubeconfig, name)
    yield own
    own.run("delete", "gsv,deployments,replicasets", "--all", "--wait=false")
    own.run("delete", "pods", "--all", "--force", "--grace-period=0")  # nobody's requests are left to drain
    installed.run("delete", "namespace", name, "--timeout=120s")


def serving(name: str, **spec: Any) -> dict[str, Any]:
    """The example under another name, changed by `spec`."""
    return {**EXAMPLE, "metadata": {"name": name}, "spec": {**EXAMPLE["spec"], **spec}}


def await_ready(kube: Kube, name: str, seconds: float = 60) -> dict[str, Any]:
    """Wait for Ready at the newest generation."""

    def ready() -> dict[str, Any] | None:
        body = kube.get("gsv", name)
        ok = (
            body
            and condition(body, "Ready").get("status") == "True"
            and condition(body, "Reconciling").get("status") == "False"
        )
        return body if ok and body and body["status"]["observedGeneration"] == body["metadata"]["generation"] else None

    return eventually(f"{name} is Ready", lambda: ready() or None, seconds)


def address(kube: Kube, service: str) -> str:
    """URL of a Service by its cluster IP, which this host reaches."""
    found = kube.get("service", service)
    assert found
    return f"http://{found['spec']['clusterIP']}:8000"


def process_in(kube: Kube, pod: str, program: str) -> int:
    """The process of a Pod whose command line has a word, as this machine sees it."""
    found = kube.get("pod", pod)
    assert found
    uid = found["metadata"]["uid"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if uid in (process / "cgroup").read_text() and program.encode() in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue  # it has just ended
    raise AssertionError(f"no {program} runs in {pod}")


def restarts(kube: Kube, pod: str) -> int:
    """Restarts of a Pod's containers so far."""
    statuses = (kube.get("pod", pod) or {}).get("status", {}).get("containerStatuses", [])
    return sum(status["restartCount"] for status in statuses)
