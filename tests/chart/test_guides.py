"""Commands of the guides and READMEs, run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART, CRD, SYSTEM, Helm, await_crd, find_program
from tests.chart.test_release_upgrade import clean, cluster  # noqa: F401 - fixtures: a cluster where the CRD may go
from tests.support.kube import Kube, eventually

ROOT = CHART.parents[1]
EXAMPLE = {
    "apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": {"name": "demo", "namespace": "team-a"},
    "spec": {"model": {"id": "google/gemma-4-E4B-it"}},
}  # fmt: skip


def commands(path: Path) -> list[str]:
    """What the fenced blocks of a document say to type, a command per line."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    text = "".join(block for language, block in fenced if language in ("", "sh")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith(("helm ", "kubectl "))]


def type_in(kube: Kube, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of a guide in the repository's root, on the test's cluster."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [find_program(program), *arguments], cwd=ROOT, env={**os.environ, "KUBECONFIG": str(kube.kubeconfig)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
    return done


def test_the_uninstall_guide_removes_what_it_says(cluster: Kube, helm: Helm) -> None:  # noqa: F811
    guide = commands(ROOT / "docs" / "uninstall.md")
    one, orphan, uninstall, *everything = guide
    assert [c.split()[1] for c in guide] == ["delete", "delete", "uninstall", "delete", "uninstall", "delete", "delete"]
    helm.on(cluster).ok("install", "gemma-operator", CHART, "--namespace", SYSTEM, "--create-namespace")
    await_crd(cluster)
    anywhere = Kube(cluster.kubeconfig, "team-a")
    cluster.run("create", "namespace", "team-a", check=False)
    for command in (one, orphan):
        anywhere.apply(EXAMPLE)
        type_in(cluster, command)
        assert anywhere.list("gsv") == []
    anywhere.apply(EXAMPLE)
    type_in(cluster, uninstall)
    assert anywhere.get("gsv", "demo"), "servings outlive the operator"
    assert cluster.get("crd", CRD)
    assert cluster.get("priorityclass", "gemma-operator-batch")
    helm.on(cluster).ok("install", "gemma-operator", CHART, "--namespace", SYSTEM, "--take-ownership")
    for command in everything:
        type_in(cluster, command)
    assert cluster.get("crd", CRD) is None
    for kind in ("priorityclass", "clusterrole", "clusterrolebinding"):
        left = cluster.list(kind, "app.kubernetes.io/part-of=gemma-serving")
        assert left == [], kind
    eventually("the namespace goes", lambda: cluster.get("namespace", SYSTEM) is None, 60)


def variants() -> list[str]:
    """The table of the chart's README: what to add to `helm install`."""
    rows = re.findall(
        r"^\| [^|]+ \| (`--(?:set|values)[^`]+`)[^|]*\|$", (CHART / "README.md").read_text(), re.MULTILINE
    )
    return [row.strip("`") for row in rows]


@pytest.mark.parametrize("variant", variants())
def test_the_readmes_ways_to_install_render(helm: Any, helm3: Any, variant: str) -> None:
    command = next(c for c in commands(CHART / "README.md") if c.startswith("helm install"))
    install = command.replace("--set prometheus.enabled=true", "").replace("helm install", "").split()
    for each in (helm, helm3):
        arguments = ("template", *install, *shlex.split(variant))
        if "kube-prometheus-stack" in variant:
            assert "Prometheus Operator's CRDs" in each.run(*arguments).stderr
            arguments += ("--api-versions", "monitoring.coreos.com/v1")
        assert "kind: Deployment" in each.ok(*arguments)


def test_there_are_ways_to_install() -> None:
    assert len(variants()) >= 5


@pytest.mark.gitops("E5")
def test_the_flux_example_puts_the_operator_first(helm: Any, tmp_path: Path) -> None:
    operator, servings = (
        {o["kind"]: o for o in yaml.safe_load_all((ROOT / "examples" / "flux" / f"{name}.yaml").read_text())}
        for name in ("operator", "servings")
    )
    release, kustomization = operator["HelmRelease"]["spec"], servings["Kustomization"]["spec"]
    assert kustomization["dependsOn"] == [{"name": "gemma-operator"}]
    assert kustomization["wait"] is True
    assert not {"install", "crds"} & release.keys(), "the CRD is a template"
    chart = ROOT / release["chart"]["spec"]["chart"]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(release["values"]))
    assert "Deployment" in helm.ok("template", "gemma-operator", chart, "--values", values)


def test_the_commands_of_the_upgrade_and_routing_guides_run(cluster: Kube, helm: Helm) -> None:  # noqa: F811
    here = Kube(cluster.kubeconfig, "default")
    helm.on(cluster).ok("install", "gemma-operator", CHART, "--namespace", SYSTEM, "--create-namespace")
    await_crd(cluster)
    here.run("apply", "-f", str(ROOT / "examples/quick-start/serving.yaml"))
    guide = [*commands(ROOT / "docs" / "upgrade.md"), *commands(ROOT / "docs" / "routing.md")]
    waits = [command for command in guide if command.startswith("kubectl wait")]
    assert [command.split()[2] for command in waits] == ["--for=condition=RoutingReady"], (
        "needs a gateway: apiserver/test_routing"
    )
    said = {command: type_in(here, command).stdout for command in guide if command not in waits}
    assert len(said) == 5
    (columns,) = [text for command, text in said.items() if "custom-columns" in command]
    assert columns.splitlines()[1].split()[:2] == ["default", "gemma4-e4b"]
    changed = here.get("gsv", "gemma4-e4b")
    assert changed
    assert changed["spec"]["rollout"]["adopt"] == "v0.33"
    assert "httproutes" in str(cluster.list("clusterrole", "app.kubernetes.io/part-of=gemma-serving"))
    here.run("delete", "gsv", "--all")
