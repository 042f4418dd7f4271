"""Who waits for a GemmaServing waits exactly until it is Ready: helm, kubectl, and Flux with its own code."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import SERVING_CHART, SYSTEM, Helm, find_program
from tests.support.kube import WRITES, Kube, audit, condition, eventually
from tests.support.operator import Operator
from tests.support.pods import make_ready
from tools.cluster.control_plane import ControlPlane

ROOT = SERVING_CHART.parents[1]
SERVINGS = ROOT / "examples" / "flux" / "servings.yaml"
OPERATOR = f"system:serviceaccount:{SYSTEM}:gemma-operator"
POOLS = {"interactive": {"replicas": {"min": 1, "max": 4}}, "batch": {}}
LIMIT = "5m"


@dataclass(frozen=True)
class Flux:
    """Flux's ssa and kstatus packages, on a Kustomization of examples/flux."""

    program: str
    kube: Kube
    folder: Path

    def start(self, command: str, *flags: str, kustomization: Path = SERVINGS) -> subprocess.Popen[str]:
        arguments = [self.program, command, *flags, str(kustomization), str(self.folder / "objects.yaml")]
        environment = {"KUBECONFIG": str(self.kube.kubeconfig)}
        return subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def say(self, command: str, *flags: str, **options: Any) -> list[str]:
        """What became of each object."""
        out, error = (process := self.start(command, *flags, **options)).communicate(timeout=120)
        assert process.returncode == 0, error
        return [json.loads(line)["result"] for line in out.splitlines()]

    def write(self, *objects: dict[str, Any]) -> None:
        """What the Kustomization builds, in the test's namespace."""
        placed = [{**o, "metadata": {**o["metadata"], "namespace": self.kube.namespace}} for o in objects]
        (self.folder / "objects.yaml").write_text(yaml.safe_dump_all(placed))


@pytest.fixture
def flux(kube: Kube, tmp_path: Path) -> Flux:
    return Flux(find_program("flux-ssa"), kube, tmp_path)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Kustomization without its expressions: kstatus alone."""
    kustomization = next(o for o in yaml.safe_load_all(SERVINGS.read_text()) if o["kind"] == "Kustomization")
    del kustomization["spec"]["healthCheckExprs"]
    path = tmp_path / "bare.yaml"
    path.write_text(yaml.safe_dump(kustomization))
    return path


def serving(name: str = "demo", **spec: Any) -> dict[str, Any]:
    body = {"model": {"id": "google/gemma-4-E4B-it"}, "pools": POOLS, **spec}
    return {"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": {"name": name}, "spec": body}


def kubectl_wait(kube: Kube, name: str = "demo") -> subprocess.Popen[str]:
    command = ["wait", "--for=condition=Ready", f"gsv/{name}", f"--timeout={LIMIT}"]
    arguments = [find_program("kubectl"), "-n", kube.namespace, "--kubeconfig", str(kube.kubeconfig), *command]
    return subprocess.Popen(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said(kube: Kube, kind: str, name: str = "demo") -> str:
    return str(condition(kube.get("gsv", name), kind).get("status", ""))


def observed(kube: Kube, generation: int, name: str = "demo") -> bool:
    return bool((kube.get("gsv", name) or {}).get("status", {}).get("observedGeneration") == generation)


def values(folder: Path, **spec: Any) -> Path:
    """A values file for the second chart."""
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump({"name": "demo", "spec": serving(**spec)["spec"]}))
    return path


def all_wait(waiters: dict[str, subprocess.Popen[str]]) -> None:
    over = {name: process.communicate() for name, process in waiters.items() if process.poll() is not None}
    assert over == {}, "returned before it was Ready"


def all_return(waiters: dict[str, subprocess.Popen[str]]) -> None:
    for name, process in waiters.items():
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, f"{name}: {error}"


@pytest.mark.gitops("B1", "C6", "C7", "E5")
def test_helm_kubectl_and_flux_return_when_it_is_ready_and_not_before(
    kube: Kube, operator: Operator, helm: Helm, flux: Flux, bare: Path, tmp_path: Path
) -> None:
    """One serving of the second chart, installed and then changed; its status is the operator's, its Pods' the test's."""
    chart = ("chat", SERVING_CHART, "--namespace", kube.namespace, "--wait", "--timeout", LIMIT)
    flux.write(serving())

    def waiters(verb: str, file: Path) -> dict[str, subprocess.Popen[str]]:
        generation = int((kube.get("gsv", "demo") or {"metadata": {"generation": 0}})["metadata"]["generation"])
        started = helm.on(kube).command(verb, *chart, "--values", file)
        eventually(
            "helm has written", lambda: (o := kube.get("gsv", "demo")) and o["metadata"]["generation"] > generation
        )
        return {
            "helm": started,
            "kubectl": kubectl_wait(kube),
            "flux": flux.start("wait", "--timeout", LIMIT),
            "flux by kstatus": flux.start("wait", "--timeout", LIMIT, kustomization=bare),
        }

    first = waiters("install", values(tmp_path))
    eventually("the operator has looked", lambda: observed(kube, 1))
    eventually("it is rolled out", lambda: len(kube.list("pods")) == 2)
    make_ready(kube, 1, "interactive")
    eventually("one pool serves", lambda: _ready_pods(kube, "interactive") == 1)
    assert flux.say("status") == flux.say("status", kustomization=bare) == ["InProgress"]
    all_wait(first)
    make_ready(kube, 2)
    all_return(first)
    assert said(kube, "Ready") == "True"
    assert flux.say("status") == flux.say("status", kustomization=bare) == ["Current"]

    changed = values(tmp_path, pools={**POOLS, "interactive": {**POOLS["interactive"], "maxNumSeqs": 8}})
    second = waiters("upgrade", changed)
    eventually("the change is seen", lambda: observed(kube, 2))
    eventually("a new engine", lambda: len(kube.list("pods", "gemmaserving.dev/pool=interactive")) == 2)
    # the old engine still serves, and what is asked for is not there yet
    assert flux.say("status") == ["InProgress"]
    assert said(kube, "Reconciling") == "True"
    for name in ("helm", "flux", "flux by kstatus"):
        assert second[name].poll() is None, f"{name} returned in the middle of a rollout"
    make_ready(kube, 2, "interactive")
    all_return(second)


def _ready_pods(kube: Kube, pool: str) -> int:
    return int((kube.get("deployment", f"demo-{pool}") or {}).get("status", {}).get("readyReplicas", 0))


@pytest.mark.gitops("B1")
def test_nobody_takes_a_serving_for_ready_that_no_operator_has_seen(
    kube: Kube, operator: Operator, flux: Flux, bare: Path, helm: Helm, tmp_path: Path
) -> None:
    operator.stop()
    try:
        flux.write(serving())
        assert flux.say("apply") == ["created"]
        assert (kube.get("gsv", "demo") or {})["status"] == {"observedGeneration": -1}
        assert flux.say("status") == flux.say("status", kustomization=bare) == ["InProgress"]
        for kustomization in (SERVINGS, bare):
            waiting = flux.start("wait", "--timeout", "2s", kustomization=kustomization)
            assert "timeout waiting for" in waiting.communicate(timeout=60)[1]
        assert "timed out" in kube.run("wait", "--for=condition=Ready", "gsv/demo", "--timeout=2s", check=False).stderr
        install = ("install", "other", SERVING_CHART, "--namespace", kube.namespace, "--wait", "--timeout", "3s")
        done = helm.on(kube).run(*install)
        assert done.returncode != 0
        assert "InProgress" in done.stderr
        # Deletion asks for no operator: there is no finalizer
        kube.run("delete", "gsv", "demo", "--timeout=10s")
    finally:
        operator.start()


@pytest.mark.gitops("C8", "C9")
def test_helm_and_flux_fail_when_a_person_has_to_act(
    kube: Kube, operator: Operator, helm: Helm, flux: Flux, bare: Path, tmp_path: Path
) -> None:
    wrong = {"engine": {"image": "registry.example/vllm:nightly"}}
    install = ("install", "chat", SERVING_CHART, "--namespace", kube.namespace, "--wait", "--timeout", LIMIT)
    done = helm.on(kube).run(*install, "--values", values(tmp_path, **wrong))
    assert done.returncode != 0
    assert "GemmaServing" in done.stderr
    assert said(kube, "Stalled") == "True"
    flux.write(serving(**wrong))
    for kustomization in (SERVINGS, bare):
        assert flux.say("status", kustomization=kustomization) == ["Failed"]
        waiting = flux.start("wait", "--timeout", LIMIT, kustomization=kustomization)
        _, error = waiting.communicate(timeout=60)
        assert waiting.returncode == 1
        assert "failed early due to stalled resources" in error


@pytest.mark.gitops("C1", "C3", "E6")
def test_flux_sees_no_drift_while_replicas_move(
    kube: Kube, operator: Operator, flux: Flux, plane: ControlPlane
) -> None:
    flux.write(serving())
    assert flux.say("apply") == ["created"]
    make_ready(kube, 2)
    eventually("it is Ready", lambda: said(kube, "Ready") == "True")
    before = kube.get("gsv", "demo")
    templates = {d["metadata"]["name"]: d["spec"]["template"] for d in kube.list("deployment")}
    for replicas in (3, 2):
        # as the scaler does it, by its own field manager
        body = json.dumps(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "demo-interactive"},
                "spec": {"replicas": replicas},
            }
        )
        kube.run(
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=gemma-operator-scaler",
            "-f",
            "-",
            stdin=body,
        )
        assert flux.say("diff") == ["unchanged"]
        assert flux.say("apply") == ["unchanged"]
        assert flux.say("status") == ["Current"], "scaling is no change that is being rolled out"
    after = kube.get("gsv", "demo")
    assert before
    assert after
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["labels"] == {
        "kustomize.toolkit.fluxcd.io/name": "gemma-servings",
        "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
    }
    for child in [*kube.list("deployment"), *kube.list("service"), *kube.list("poddisruptionbudget")]:
        assert not any("fluxcd" in key for key in child["metadata"]["labels"])
    assert {d["metadata"]["name"]: d["spec"]["template"] for d in kube.list("deployment")} == templates


@pytest.mark.gitops("A4")
def test_the_operator_leaves_the_charts_objects_to_helm(
    kube: Kube, installed: Kube, operator: Operator, helm: Helm, plane: ControlPlane
) -> None:
    """After a life of a serving the chart is applied again, without force, by kubectl and by helm: no conflict."""
    kube.apply(serving())
    make_ready(kube, 2)
    eventually("it is Ready", lambda: said(kube, "Ready") == "True")
    kube.run("delete", "gsv", "demo")
    rendered = helm.ok(
        "template", "gemma-operator", SERVING_CHART.parent / "gemma-operator", "--namespace", SYSTEM, "--no-hooks"
    )
    installed.run("apply", "--server-side", "--field-manager=helm", "-f", "-", stdin=rendered)
    helm.on(installed).ok("upgrade", "gemma-operator", SERVING_CHART.parent / "gemma-operator", "--namespace", SYSTEM)
    touched = {
        entry["objectRef"]["resource"]
        for entry in audit(plane.audit_log, OPERATOR)
        if entry["verb"] in WRITES and entry.get("objectRef", {}).get("namespace") == SYSTEM
    }
    assert touched <= {"leases", "events"}, "only its own, which the chart doesn't hold"
