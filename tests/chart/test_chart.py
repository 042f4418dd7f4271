"""The Helm chart: what it renders, and what it tells people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gemma_operator.api.serving import API_VERSION, Spec
from tests.chart.conftest import CHART, SERVING_CHART

CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}


@pytest.fixture(params=["helm", "helm3"])
def any_helm(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def files(chart: Path) -> list[list[str]]:
    """Arguments for each values file of a chart, and none."""
    return [[], *(["--values", str(path)] for path in sorted((chart / "ci").glob("*-values.yaml")))]


@pytest.mark.gitops("A1", "A20")
@pytest.mark.parametrize("folder", [CHART, SERVING_CHART], ids=lambda path: path.name)
def test_lint_finds_nothing(any_helm: Any, folder: Path) -> None:
    for values in files(folder):
        done = any_helm.run("lint", "--strict", folder, *values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gitops("A1", "A2")
@pytest.mark.parametrize("folder", [CHART, SERVING_CHART], ids=lambda path: path.name)
def test_helm_3_and_4_render_the_same_bytes_twice(helm: Any, helm3: Any, folder: Path) -> None:
    """Save for blank lines in front of `---`: Helm 4 keeps the newline at the end of a template."""
    for values in files(folder):
        first, second, third = (
            each.ok("template", "r", folder, "--namespace", "system", *values) for each in (helm, helm, helm3)
        )
        assert first == second
        assert re.sub(r"\n+(?=\n---)", "", first.rstrip()) == re.sub(r"\n+(?=\n---)", "", third.rstrip())


def test_every_object_fits_the_kubernetes_schema(helm: Any, values: str) -> None:
    for manifest in helm.render(values=values):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(manifest, "1.30", strict=True)
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_objects_are_distinct_labelled_and_in_the_release_namespace(helm: Any, values: str) -> None:
    manifests = [m for m in helm.render(values=values) if not m["metadata"]["name"].endswith(("-map", "-string"))]
    identities = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(set(identities)) == len(identities)
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", "gemma-operator would make them engines"
        assert labels["app.kubernetes.io/instance"] == "r"
        namespace = manifest["metadata"].get("namespace")
        assert (namespace is None) == (manifest["kind"] in CLUSTER_SCOPED)
        if manifest["kind"] not in {"Role", "RoleBinding"}:
            assert namespace in (None, "elsewhere" if values == "restricted" else "system")


@pytest.mark.gitops("A2")
def test_templates_hold_nothing_that_changes_by_itself(chart: Path) -> None:
    for path in chart.parent.glob("*/templates/**/*.*"):
        assert not re.search(r"\b(lookup|rand\w+|gen(CA|\w*Cert|PrivateKey)\w*|now|uuidv4)\b", path.read_text()), path


@pytest.mark.gitops("A9", "A19")
def test_no_hook_but_the_test_and_no_serving(helm: Any, values: str) -> None:
    manifests = helm.render(values=values)
    hooks = {m["metadata"].get("annotations", {}).get("helm.sh/hook") for m in manifests}
    assert hooks == {None, "test"}
    assert "GemmaServing" not in {m["kind"] for m in manifests}


@pytest.mark.gitops("A22")
@pytest.mark.parametrize("release", ["a" * 53, "a" * 52 + "b", "gemma-operator", "with.dots", "x"])
def test_names_fit_and_stay_distinct(helm: Any, release: str) -> None:
    options = {"values": "monitoring", "release": release}
    embedded = {"values": "cluster", "release": release}
    for manifests in (helm.render(**options), helm.render(**embedded)):
        own = [m for m in manifests if m["kind"] not in {"CustomResourceDefinition", "ConfigMap"}]
        assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", m["metadata"]["name"]) for m in own)
        assert len({(m["kind"], m["metadata"]["name"]) for m in own}) == len(own)


def test_long_releases_that_differ_in_the_end_do_not_meet(helm: Any) -> None:
    first, second = (helm.names(helm.render(release="a" * 52 + end), "Deployment") for end in "bc")
    assert not first & second


def test_a_release_called_as_the_chart_gets_no_doubled_name(helm: Any) -> None:
    assert helm.names(helm.render(release="gemma-operator"), "Deployment") == {"gemma-operator"}
    assert helm.names(helm.render("--set", "fullnameOverride=x"), "Deployment") == {"x"}


@pytest.mark.gitops("A21")
def test_extra_objects_are_maps_or_templates(helm: Any) -> None:
    assert helm.names(helm.render(values="monitoring"), "ConfigMap") >= {"as-a-map", "r-as-a-string"}
    assert helm.one("ConfigMap", "as-a-map", values="monitoring")["data"] == {"braces": "{{ kept }}"}


@pytest.mark.parametrize(("values", "namespace"), [("cluster", "default"), ("namespaced", "team-a")])
def test_the_notes_hold_a_valid_serving_for_the_mode(helm: Any, chart: Path, values: str, namespace: str) -> None:
    done = helm.run("install", "r", chart, "--dry-run=client", "--values", chart / "ci" / f"{values}-values.yaml")
    assert done.returncode == 0, done.stderr
    sample = re.search(r"<<EOF\n(.*?)\n\s*EOF\n", done.stdout.partition("\nNOTES:")[2], re.DOTALL)
    assert sample
    serving = yaml.safe_load(sample[1])
    assert (serving["kind"], serving["metadata"]["namespace"]) == ("GemmaServing", namespace)
    assert serving["apiVersion"] == API_VERSION
    assert Spec.model_validate(serving["spec"])


def test_every_point_of_the_charts_checklist_is_held_by_a_test(chart: Path) -> None:
    """research/gitops.md, section 7 A."""
    tests = chart.parents[1] / "tests"
    marks = "".join(
        re.findall(r"@pytest\.mark\.gitops\(([^)]*)\)", "".join(p.read_text() for p in tests.rglob("test_*.py")))
    )
    held = set(re.findall(r'"(\w+)"', marks))
    assert {f"A{number}" for number in range(1, 23)} - held == set()
