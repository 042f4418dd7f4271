"""What a real API server says to the charts' objects."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART, CRD, SERVING_CHART, SYSTEM, documents
from tests.chart.test_serving_chart import STORED
from tests.support.kube import Kube, condition, eventually
from tools.cluster.crds import PROMETHEUS_OPERATOR

KIND = {"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing"}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SIZE_LIMIT = 200 << 10  # bytes; client-side apply stores the object in an annotation of at most 256 KiB


@pytest.fixture(scope="module")
def monitors(installed: Kube) -> Iterator[None]:
    """The Prometheus Operator's CRDs, from its Go module."""
    files = [
        str(PROMETHEUS_OPERATOR.crd(f"monitoring.coreos.com_{kind}")) for kind in ("podmonitors", "prometheusrules")
    ]
    for file in files:
        installed.run("apply", "--server-side", "-f", file)
    for kind in ("podmonitors", "prometheusrules"):
        crd = f"{kind}.monitoring.coreos.com"
        eventually(f"{crd} is established", lambda crd=crd: is_established(installed, crd))
    yield
    for file in files:
        installed.run("delete", "-f", file, "--wait=false")


def is_established(kube: Kube, crd: str) -> bool:
    return condition(kube.get("crd", crd), "Established").get("status") == "True"


@pytest.fixture(scope="module")
def spaces(installed: Kube) -> None:
    """The namespaces that the values files name."""
    names = ("system", "elsewhere", "team-a", "team-b")
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    installed.apply(*spaces)


def try_out(kube: Kube, *objects: Any, server_side: bool = True) -> None:
    """Apply without keeping anything: warnings fail too, such as that of a field given twice or unknown."""
    flags = ["--server-side", "--field-manager=helm"] if server_side else []
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    anywhere = Kube(kube.kubeconfig, "")
    done = anywhere.run("apply", *flags, "--dry-run=server", "--validate=strict", "-f", "-", stdin=body, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "missing the kubectl.kubernetes.io/last-applied" not in line]
    assert said == []


@pytest.mark.gitops("A3", "A8", "F3")
def test_every_object_is_accepted(installed: Kube, helm: Any, values: str, spaces: None, monitors: None) -> None:
    """By server-side apply; the CRD by client-side apply too, into which kubectl puts it once more."""
    rendered = helm.render("--api-versions", "monitoring.coreos.com/v1", values=values, release="try")
    # one CRD is in the cluster already, as another release's
    own = [m for m in rendered if m["kind"] != "CustomResourceDefinition"]
    try_out(installed, *own)
    assert len({(m["kind"], m["metadata"].get("name")) for m in own}) >= 5


@pytest.mark.gitops("A3")
def test_the_second_charts_objects_are_accepted(installed: Kube, helm: Any, spaces: None) -> None:
    for values in ([], ["--values", SERVING_CHART / "ci" / "pools-values.yaml"]):
        try_out(installed, *documents(helm.ok("template", "chat", SERVING_CHART, "--namespace", "team-a", *values)))


@pytest.mark.gitops("A7", "A8")
def test_the_crd_can_be_applied_by_either_apply(installed: Kube, chart: Path) -> None:
    crd = yaml.load((chart / "crd" / "gemmaservings.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert len(json.dumps(crd, separators=(",", ":"))) < SIZE_LIMIT
    assert "status" not in crd
    assert "creationTimestamp" not in crd["metadata"]
    assert "preserveUnknownFields" not in crd["spec"]
    other = copy.deepcopy(crd)
    other["metadata"]["name"], other["spec"]["group"] = "gemmaservings.example.dev", "example.dev"
    for server_side in (True, False):
        try_out(installed, other, server_side=server_side)
    live = installed.get("crd", CRD)
    assert live
    assert condition(live, "NonStructuralSchema") == {}
    assert live["spec"]["versions"][0]["schema"] == crd["spec"]["versions"][0]["schema"]


@pytest.mark.gitops("B2")
@pytest.mark.parametrize("server_side", [False, True], ids=["client-side", "server-side"])
def test_what_is_applied_comes_back_without_a_difference(installed: Kube, server_side: bool) -> None:
    """No default is written into a spec: git and cluster are equal, by either kind of diff."""
    flags = ["--server-side", "--field-manager=git"] if server_side else []
    for row in (row for row in STORED[::4] if "null" not in json.dumps(row["spec"])):  # kubectl drops or refuses nulls
        name = f"{row['name']}-{'server' if server_side else 'client'}"
        body = json.dumps({**KIND, "metadata": {"name": name, "namespace": SYSTEM}, "spec": row["spec"]})
        for _ in range(2):
            installed.run("apply", *flags, "-f", "-", stdin=body)
        diff = installed.run("diff", *flags, "-f", "-", stdin=body, check=False)
        assert (diff.returncode, diff.stdout) == (0, ""), diff.stderr
        live = installed.get("gsv", name)
        assert live
        assert live["spec"] == row["spec"]
        assert live["metadata"]["generation"] == 1
        installed.run("delete", "gsv", name, "--wait=false")


@pytest.mark.gitops("A11")
@pytest.mark.parametrize("values", ["cluster", "monitoring", "airgap", "restricted"])
def test_a_restricted_namespace_admits_every_pod(installed: Kube, helm: Any, values: str) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "locked", "labels": RESTRICTED}}
    rendered = helm.render(values=values)
    accounts = [m for m in rendered if m["kind"] == "ServiceAccount"]
    for account in accounts:
        account["metadata"]["namespace"] = "locked"
    Kube(installed.kubeconfig, "locked").apply(space, *accounts)
    pods = [copy.deepcopy(m["spec"]["template"]) for m in rendered if m["kind"] == "Deployment"]
    pods += [{"metadata": {}, "spec": m["spec"]} for m in rendered if m["kind"] == "Pod"]
    for number, pod in enumerate(pods):
        pod["metadata"].update(name=f"pod-{number}", namespace="locked")
        try_out(installed, {"apiVersion": "v1", "kind": "Pod", **pod})
    pods[0]["spec"]["containers"][0]["securityContext"].pop("capabilities")
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        try_out(installed, {"apiVersion": "v1", "kind": "Pod", **pods[0]})


@pytest.mark.gitops("A20")
def test_the_example_for_artifact_hub_is_accepted(installed: Kube, chart: Path) -> None:
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert about["kubeVersion"].endswith("-0")
    hub = {key.removeprefix("artifacthub.io/"): value for key, value in about["annotations"].items()}
    (example,) = yaml.safe_load(hub["crdsExamples"])
    example["metadata"]["namespace"] = "default"
    try_out(installed, example)
    (crd,) = yaml.safe_load(hub["crds"])
    assert installed.get("crd", crd["name"])
    images = {entry["name"]: entry["image"] for entry in yaml.safe_load(hub["images"])}
    values = yaml.safe_load((chart / "values.yaml").read_text())
    default = {**values["image"], "tag": about["appVersion"]}
    for name, image in (
        ("operator", default),
        ("engine", values["engine"]["image"]),
        ("prometheus", values["prometheus"]["image"]),
    ):
        registry = f"{image['registry']}/" if image["registry"] else ""
        assert images[name] == f"{registry}{image['repository']}:{image['tag']}"
    assert {change["kind"] for change in yaml.safe_load(hub["changes"])} <= {"added", "changed", "fixed", "removed"}


@pytest.mark.gitops("A21")
@pytest.mark.parametrize("values", ["", "cluster", "namespaced"])
def test_the_serving_in_the_notes_is_accepted(installed: Kube, helm: Any, values: str, spaces: None) -> None:
    files = ["--values", CHART / "ci" / f"{values}-values.yaml"] if values else []
    notes = helm.ok("install", "r", CHART, "--dry-run=client", *files).partition("\nNOTES:")[2]
    sample = re.search(r"<<EOF\n(.*?)\n\s*EOF\n", notes, re.DOTALL)
    assert sample
    try_out(installed, yaml.safe_load(sample[1]))


@pytest.mark.parametrize(
    ("role", "reads", "writes"), [("view", True, False), ("edit", True, True), ("admin", True, True)]
)
def test_people_get_their_rights_from_kubernetes_own_roles(
    installed: Kube, helm: Any, role: str, reads: bool, writes: bool
) -> None:
    manifests = helm.render(values="restricted", release="people")
    installed.apply(
        *(m for m in manifests if m["kind"] == "ClusterRole" and m["metadata"]["name"].endswith(("-view", "-edit")))
    )
    user = f"{role}-user"
    installed.run("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", check=False)

    def may(verb: str) -> bool:
        return installed.run("auth", "can-i", verb, "gemmaservings", "--as", user, check=False).stdout.strip() == "yes"

    eventually(f"{role} may read", lambda: may("list") == reads)
    for verb in ("create", "patch", "delete", "deletecollection"):
        eventually(f"{role}: {verb} is {writes}", lambda verb=verb: may(verb) == writes)
    assert (
        installed.run(
            "auth", "can-i", "patch", "gemmaservings", "--subresource=status", "--as", user, check=False
        ).stdout.strip()
        == "no"
    )
