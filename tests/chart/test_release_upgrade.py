"""From the chart's last release to this one: what runs and what is stored stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gemma_operator.api.parse import parse
from gemma_operator.desired import desired
from gemma_operator.desired.tenancy import GRANTS
from gemma_operator.rollout import settle
from gemma_operator.settings import read_settings
from tests.chart.conftest import CHART, CRD, RELEASES, SYSTEM, Helm, await_crd
from tests.support.kube import Kube, condition, eventually
from tools.cluster.control_plane import ControlPlane

LAST = "0.1.0"
RELEASE = RELEASES / f"gemma-operator-{LAST}.tgz"
STORED: list[dict[str, Any]] = json.loads((RELEASES / f"{LAST}-servings.json").read_text())
WHERE = ("--namespace", SYSTEM)
VALUES = ("--set", "prometheus.enabled=true", "--set", "log.level=debug")
# As docs/upgrade.md has it. `--reuse-values` would leave out what is new in the chart's values.
KEEP_VALUES = "--reset-then-reuse-values"
PER_RELEASE = ("deployment", "service", "configmap", "serviceaccount")
IN_CLUSTER = ("clusterrole", "clusterrolebinding", "priorityclass", "crd")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kube]:
    """A cluster of its own: the CRD comes and goes here."""
    with ControlPlane.start("chart-upgrade") as plane:
        yield Kube(plane.kubeconfig, SYSTEM)


@pytest.fixture(autouse=True)
def clean(cluster: Kube) -> Iterator[None]:
    """Nothing of the chart is left by the test before."""
    yield
    cluster.run("delete", "namespace", SYSTEM, "--ignore-not-found", "--wait=false")
    cluster.run("delete", "crd", CRD, "--ignore-not-found")
    cluster.run(
        "delete", "priorityclass,clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/part-of=gemma-serving"
    )
    eventually("the namespace is gone", lambda: cluster.get("namespace", SYSTEM) is None, 60)


def of_release(kube: Kube) -> dict[str, dict[str, Any]]:
    """Every object of the chart."""
    found = [o for kind in PER_RELEASE for o in kube.list(kind, "app.kubernetes.io/instance=gemma-operator")]
    found += [o for kind in IN_CLUSTER for o in kube.list(kind, "app.kubernetes.io/part-of=gemma-serving")]
    return {f"{o['kind']}/{o['metadata']['name']}": o for o in found}


def store(kube: Kube) -> dict[str, Any]:
    """Make the saved GemmaServings; returns them as they are stored."""
    rows = [{"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": {"name": row["name"]},
             "spec": row["spec"]} for row in STORED]  # fmt: skip
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": rows})
    # kubectl itself would refuse a pool without a body, which Argo CD and Flux may send
    kube.run("apply", "--server-side", "--validate=false", "-f", "-", stdin=body)
    return {o["metadata"]["name"]: o for o in kube.list("gsv")}


@pytest.mark.gitops("A8", "A16", "A18")
@pytest.mark.parametrize(("before", "after"), [("helm3", "helm3"), ("helm", "helm"), ("helm3", "helm")])
def test_an_upgrade_keeps_objects_and_what_is_stored(
    cluster: Kube, helm: Helm, request: pytest.FixtureRequest, before: str, after: str
) -> None:
    """By either Helm, and from Helm 3 to Helm 4, which goes on client-side for such a release."""
    old, new = (request.getfixturevalue(name).on(cluster) for name in (before, after))
    old.ok("install", "gemma-operator", RELEASE, *WHERE, "--create-namespace", *VALUES)
    await_crd(cluster)
    objects, servings = of_release(cluster), store(cluster)
    assert len(objects) > 10
    assert len(servings) == len(STORED)

    new.ok("upgrade", "gemma-operator", CHART, *WHERE, KEEP_VALUES)
    later = of_release(cluster)
    assert {name: o["metadata"]["uid"] for name, o in later.items() if name in objects} == {
        name: o["metadata"]["uid"] for name, o in objects.items()
    }
    assert {o["metadata"]["labels"]["helm.sh/chart"] for o in later.values()} == {"gemma-operator-0.2.0"}
    assert "Deployment/gemma-operator-prometheus" in later, "a value that was set before"
    for name, o in objects.items():
        if o["kind"] == "Deployment":
            assert later[name]["spec"]["selector"] == o["spec"]["selector"]
    crd = cluster.get("crd", CRD)
    assert condition(crd, "Established")["status"] == "True"
    assert condition(crd, "NonStructuralSchema") == {}
    rendered = next(m for m in helm.render() if m["kind"] == "CustomResourceDefinition")
    assert (crd or {})["spec"]["versions"][0]["schema"] == rendered["spec"]["versions"][0]["schema"], (
        "new fields are known"
    )

    now = {o["metadata"]["name"]: o for o in cluster.list("gsv")}
    for name, serving in servings.items():
        assert now[name]["spec"] == serving["spec"]
        for key in ("uid", "generation", "resourceVersion"):
            assert now[name]["metadata"][key] == serving["metadata"][key]
    # An unchanged object is accepted as it is under the new schema, and not changed by it
    assert {n: o["metadata"]["generation"] for n, o in store(cluster).items()} == dict.fromkeys(servings, 1)
    # Once more, and now with nothing to change: also where the fields' owner came from Helm 3
    new.ok("upgrade", "gemma-operator", CHART, *WHERE, KEEP_VALUES)
    assert of_release(cluster)["Deployment/gemma-operator"]["metadata"]["generation"] == later[
        "Deployment/gemma-operator"]["metadata"]["generation"]  # fmt: skip


@pytest.mark.gitops("C1")
@pytest.mark.parametrize("row", STORED, ids=lambda row: row["name"])
def test_no_stored_serving_gets_another_engine_by_an_upgrade(row: dict[str, Any]) -> None:
    """The hash of what was asked for is the last release's, so its recorded Pod template stays; selectors can't change.

    What an administrator must grant since then is granted here; docs/upgrade.md tells of it.
    """
    serving = parse({"metadata": {"name": row["name"], "namespace": "default", "uid": "u"}, "spec": row["spec"]})
    defaults = read_settings({"GEMMA_TENANTS_MAY": ",".join(GRANTS)}).defaults
    pools = [o for o in desired(serving, defaults).children if o["kind"] == "Deployment"]
    marked = [settle(serving, child, None)[0]["metadata"] for child in pools]
    asked = {
        m["labels"]["gemmaserving.dev/pool"]: m["annotations"]["gemmaserving.dev/asked"].split(".")[0] for m in marked
    }
    assert asked == row["asked"]
    assert {o["metadata"]["name"]: o["spec"]["selector"]["matchLabels"] for o in pools} == row["selectors"]


@pytest.mark.gitops("A18")
def test_a_changed_priority_is_refused_by_name_and_the_readmes_way_out_works(cluster: Kube, helm: Helm) -> None:
    on = helm.on(cluster)
    on.ok("install", "gemma-operator", CHART, *WHERE, "--create-namespace")
    changed = ("upgrade", "gemma-operator", CHART, *WHERE, "--set", "priorityClasses.batch.value=-7")
    done = on.run(*changed)
    assert done.returncode != 0
    assert "gemma-operator-batch" in done.stderr
    assert "value" in done.stderr
    cluster.run("delete", "priorityclass", "gemma-operator-batch")
    on.ok(*changed)
    assert (cluster.get("priorityclass", "gemma-operator-batch") or {})["value"] == -7


@pytest.mark.gitops("A6")
@pytest.mark.parametrize("binary", ["helm3", "helm"])
def test_uninstalling_leaves_servings_and_a_second_installation_takes_them_over(
    cluster: Kube, request: pytest.FixtureRequest, binary: str
) -> None:
    on = request.getfixturevalue(binary).on(cluster)
    on.ok("install", "gemma-operator", CHART, *WHERE, "--create-namespace")
    await_crd(cluster)
    servings = store(cluster)
    on.ok("upgrade", "gemma-operator", CHART, *WHERE, "--set", "crds.enabled=false")
    assert cluster.get("crd", CRD), "crds.enabled=false is no wish to delete it"
    on.ok("uninstall", "gemma-operator", *WHERE)
    assert {o["metadata"]["uid"] for o in cluster.list("gsv")} == {o["metadata"]["uid"] for o in servings.values()}
    assert sorted(of_release(cluster)) == [
        f"CustomResourceDefinition/{CRD}",
        "PriorityClass/gemma-operator-batch",
        "PriorityClass/gemma-operator-interactive",
    ]
    install = ("install", "other", CHART, *WHERE, "--set", "fullnameOverride=gemma-operator")
    done = on.run(*install)
    assert done.returncode != 0
    assert "invalid ownership metadata" in done.stderr
    on.ok(*install, "--take-ownership")
    assert {o["metadata"]["uid"] for o in cluster.list("gsv")} == {o["metadata"]["uid"] for o in servings.values()}
