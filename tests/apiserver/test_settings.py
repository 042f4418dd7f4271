"""What the API server shows of engine settings: warnings, a budget, a claim; `render --diff`; start-up phases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.apiserver.conftest import await_children
from tests.apiserver.test_lifecycle import serving
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tools.cluster.control_plane import ControlPlane


def render(plane: ControlPlane, file: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gemma-operator render` as a user with the admin's kubeconfig."""
    classes = {f"GEMMA_PRIORITY_CLASS_{kind.upper()}": f"gemma-operator-{kind}" for kind in ("interactive", "batch")}
    known = {"PYTHONPATH": str(Path("operator").resolve()), "KUBECONFIG": str(plane.kubeconfig), **classes}
    command = [sys.executable, "-P", "-m", "gemma_operator", "render", str(file), *options]
    return subprocess.run(
        command, env={**os.environ, **known, **environment}, capture_output=True, text=True, check=False
    )


def write(folder: Path, kube: Kube, body: dict[str, Any]) -> Path:
    """The object as a user has it in git."""
    file = folder / "serving.yaml"
    file.write_text(yaml.safe_dump({**body, "metadata": {**body["metadata"], "namespace": kube.namespace}}))
    return file


def test_a_difference_is_shown_before_it_is_applied_and_none_afterwards(
    kube: Kube, operator: Operator, plane: ControlPlane, tmp_path: Path
) -> None:
    pools: dict[str, Any] = {"interactive": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1024Mi"}}]}}
    new = render(plane, write(tmp_path, kube, serving(pools=pools)), "--diff")
    assert (new.returncode, new.stderr) == (1, "")
    assert "+kind: Deployment" in new.stdout
    kube.apply(serving(pools=pools))
    await_children(kube, "demo-interactive")
    eventually("accepted", lambda: condition(kube.get("gsv", "demo"), "Valid").get("status") == "True")
    same = render(plane, write(tmp_path, kube, serving(pools=pools)), "--diff")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")
    pools["interactive"]["maxNumSeqs"] = 7
    changed = render(plane, write(tmp_path, kube, serving(pools=pools)), "--diff")
    lines = [line for line in changed.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert (changed.returncode, lines[0].split()[-1], lines[1].split()[-1]) == (1, "'64'", "'7'"), changed.stdout


def test_a_difference_without_a_cluster_is_one_line(plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(yaml.safe_dump(serving()))
    for kubeconfig in ("/nowhere", str(tmp_path / "dead")):
        config = yaml.safe_load(plane.kubeconfig.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = "https://127.0.0.1:1"
        (tmp_path / "dead").write_text(yaml.safe_dump(config))
        done = render(plane, file, "--diff", KUBECONFIG=kubeconfig)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_a_warning_is_a_condition_and_goes_with_its_cause(kube: Kube, operator: Operator) -> None:
    pool = {"extraArgs": ["--max_num_seqs=9"]}
    kube.apply(serving(pools={"interactive": pool}))
    warned = eventually("a warning", lambda: _not_sound(kube))
    assert warned["reason"] == "UserArgumentWins"
    assert warned["message"] == "pools.interactive.extraArgs: --max-num-seqs replaces what the operator would set"
    assert condition(kube.get("gsv", "demo"), "Valid")["status"] == "True"
    kube.apply(serving(pools={"interactive": {}}))
    eventually("no warning", lambda: condition(kube.get("gsv", "demo"), "SettingsSound").get("status") == "True")


def _not_sound(kube: Kube) -> dict[str, Any] | None:
    found = condition(kube.get("gsv", "demo"), "SettingsSound")
    return found if found.get("status") == "False" else None


def test_an_argument_that_the_engine_would_exit_on_changes_nothing(kube: Kube, operator: Operator) -> None:
    kube.apply(serving(pools={"interactive": {}}))
    await_children(kube, "demo-interactive")
    eventually("accepted", lambda: condition(kube.get("gsv", "demo"), "Valid").get("status") == "True")
    before = kube.get("deployment", "demo-interactive")
    kube.apply(serving(pools={"interactive": {"extraArgs": ["--disable-log-requests"]}}))
    eventually("refused", lambda: condition(kube.get("gsv", "demo"), "Valid").get("status") == "False")
    said = condition(kube.get("gsv", "demo"), "Stalled")
    assert said["reason"] == "InvalidSpec"
    assert "pools.interactive.extraArgs[0]" in said["message"]
    assert "--disable-log-requests" in said["message"]
    after = kube.get("deployment", "demo-interactive")
    assert before
    assert after
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_cache_is_a_claim_of_the_serving_and_every_pool_has_a_budget(kube: Kube, operator: Operator) -> None:
    model = {"id": "google/gemma-4-E4B-it", "cache": {"size": "10240Mi", "storageClassName": ""}}
    kube.apply(serving(model=model))
    await_children(kube, "demo-interactive", "demo-batch")
    (claim,) = eventually("the claim", lambda: kube.list("persistentvolumeclaim"))
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert claim["spec"]["storageClassName"] == ""
    assert claim["metadata"]["ownerReferences"][0]["name"] == "demo"
    assert {p["metadata"]["name"]: p["spec"]["maxUnavailable"] for p in kube.list("poddisruptionbudget")} == {
        "demo-interactive": 1,
        "demo-batch": 1,
    }
    kube.apply(serving(model={"id": "google/gemma-4-E4B-it"}, pools={"interactive": {}}))
    eventually("the claim goes", lambda: not [c for c in kube.list("pvc") if "deletionTimestamp" not in c["metadata"]])
    eventually("the budget of a pool that went, too", lambda: len(kube.list("poddisruptionbudget")) == 1)


def test_a_new_engine_shows_its_phase(kube: Kube, operator: Operator) -> None:
    """No node here: the engines wait for one."""
    kube.apply(serving(pools={"interactive": {}}))
    shown = eventually("a phase", lambda: _startup(kube))
    assert shown["phase"] == "Scheduling"
    assert shown["pod"].startswith("demo-interactive-")


def _startup(kube: Kube) -> dict[str, Any] | None:
    found = kube.get("gsv", "demo") or {}
    startup: dict[str, Any] | None = found.get("status", {}).get("pools", {}).get("interactive", {}).get("startup")
    return startup
