"""What the chart grants, and what it leaves behind: roles, CRD, priority classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}
KEPT = {
    "helm.sh/resource-policy": "keep",
    "argocd.argoproj.io/sync-options": "Prune=false",
    "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
}


def granted(manifests: list[dict[str, Any]], role: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for manifest in manifests
        if manifest["kind"] in {"Role", "ClusterRole"} and manifest["metadata"]["name"] == role
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_only_the_lease_of_our_name_is_touched(helm: Any, values: str) -> None:
    rules = [rule for m in helm.render(values=values) if m["kind"] in {"Role", "ClusterRole"} for rule in m["rules"]]
    leases = [rule for rule in rules if rule["resources"] == ["leases"]]
    assert leases
    for rule in leases:
        assert rule.get("resourceNames") == ["gemmaserving.dev"] or rule["verbs"] == ["create"]


READ = ("get", "list", "watch")
OPERATOR_RIGHTS = {
    *(("gemmaserving.dev", "gemmaservings", verb) for verb in READ),
    ("gemmaserving.dev", "gemmaservings/status", "patch"),
    ("gemmaserving.dev", "gemmaservings/finalizers", "update"),
    *(("apps", "deployments", verb) for verb in (*READ, "create", "patch", "delete")),
    *(("", "services", verb) for verb in (*READ, "create", "patch", "delete")),
    *(("policy", "poddisruptionbudgets", verb) for verb in (*READ, "create", "patch", "delete")),
    *(("", "persistentvolumeclaims", verb) for verb in (*READ, "create", "patch", "delete")),
    *(("", "pods", verb) for verb in ("list", "watch", "patch")),
    ("", "configmaps", "get"),
    ("", "pods/log", "get"),
    ("", "pods/eviction", "create"),
    ("", "events", "create"),
    *(("coordination.k8s.io", "leases", verb) for verb in ("get", "update")),
}
CREATE_LEASES = ("coordination.k8s.io", "leases", "create")
# Of other operators, which one for the whole cluster has to know.
LIST_LEASES = ("coordination.k8s.io", "leases", "list")
ROUTES = (("gateway.networking.k8s.io", "httproutes"), ("inference.networking.k8s.io", "inferencepools"))
ROUTING_RIGHTS = {(*kind, verb) for kind in ROUTES for verb in (*READ, "create", "patch", "delete")}
CRD_RIGHTS = {("apiextensions.k8s.io", "customresourcedefinitions", verb) for verb in READ}


@pytest.mark.gitops("A14")
def test_rights_in_the_whole_cluster_are_exactly_those_needed(helm: Any) -> None:
    manifests = helm.render(values="cluster")
    assert granted(manifests, "r-gemma-operator") == OPERATOR_RIGHTS | CRD_RIGHTS | {LIST_LEASES}
    assert granted(manifests, "r-gemma-operator-lease") == {CREATE_LEASES}
    assert helm.one("Role", "r-gemma-operator-lease", values="cluster")["metadata"]["namespace"] == "system"
    assert granted(manifests, "r-gemma-operator-prometheus") == {("", "pods", verb) for verb in READ}


@pytest.mark.gitops("A13")
def test_namespaced_rights_are_the_same_less_the_crds(helm: Any) -> None:
    manifests = helm.render(values="namespaced")
    assert granted(manifests, "r-gemma-operator") == OPERATOR_RIGHTS | {CREATE_LEASES}
    assert not {m["kind"] for m in manifests} & CLUSTER_SCOPED
    for kind in ("Role", "RoleBinding"):
        placed = {(m["metadata"]["namespace"], m["metadata"]["name"]) for m in manifests if m["kind"] == kind}
        assert placed == {
            ("system", "r-gemma-operator-prometheus"),  # which scrapes each replica of the operator
            *((ns, f"r-gemma-operator{end}") for ns in ("team-a", "team-b") for end in ("", "-prometheus")),
        }


def test_rights_to_routes_come_with_routing_alone(helm: Any) -> None:
    on = ("--set", "routing.enabled=true")
    assert (
        granted(helm.render(*on, values="cluster"), "r-gemma-operator")
        == OPERATOR_RIGHTS | CRD_RIGHTS | {LIST_LEASES} | ROUTING_RIGHTS
    )
    manifests = helm.render(*on, values="namespaced")
    assert granted(manifests, "r-gemma-operator") == OPERATOR_RIGHTS | ROUTING_RIGHTS | {CREATE_LEASES}
    assert not {m["kind"] for m in manifests} & CLUSTER_SCOPED
    assert helm.operator_env(*on)["GEMMA_ROUTING"] == "true"


def test_bindings_join_existing_roles_and_accounts(helm: Any, values: str) -> None:
    manifests = helm.render(values=values)
    accounts = helm.names(manifests, "ServiceAccount")
    for binding in (m for m in manifests if m["kind"] in {"RoleBinding", "ClusterRoleBinding"}):
        role = (binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"])
        assert role in {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests}
        (subject,) = binding["subjects"]
        assert subject["name"] in accounts
        assert subject["namespace"] == ("elsewhere" if values == "restricted" else "system")


def test_roles_and_account_can_be_left_to_others(helm: Any) -> None:
    settings = ("--set", "rbac.create=false,serviceAccount.create=false,serviceAccount.name=mine")
    manifests = helm.render(*settings, values="cluster")
    assert not {m["kind"] for m in manifests} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert helm.names(manifests, "ServiceAccount") == {"r-gemma-operator-prometheus"}
    assert helm.operator(*settings)["serviceAccountName"] == "mine"


def crd_of(helm: Any, *arguments: str, **options: str) -> dict[str, Any]:
    crd: dict[str, Any] = helm.one("CustomResourceDefinition", "gemmaservings.gemmaserving.dev", *arguments, **options)
    return crd


@pytest.mark.gitops("A7")
def test_the_crd_is_the_generated_one(helm: Any, chart: Path) -> None:
    generated = yaml.safe_load((chart / "crd" / "gemmaservings.yaml").read_text())
    crd = crd_of(helm)
    assert crd["spec"] == generated["spec"]
    assert crd.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert (crd["apiVersion"], crd["metadata"]["name"]) == (generated["apiVersion"], generated["metadata"]["name"])
    assert crd["metadata"]["annotations"] == KEPT


@pytest.mark.gitops("A6")
def test_the_crd_can_be_left_out_or_given_up(helm: Any) -> None:
    assert not helm.names(helm.render("--set", "crds.enabled=false"), "CustomResourceDefinition")
    assert "annotations" not in crd_of(helm, "--set", "crds.keep=false")["metadata"]


@pytest.mark.gitops("A6")
def test_own_annotations_of_the_crd_do_not_undo_its_keeping(helm: Any) -> None:
    assert crd_of(helm, values="monitoring")["metadata"]["annotations"] == {**KEPT, "example.com/owner": "inference"}
    overridden = crd_of(helm, "--set-string", r"crds.annotations.helm\.sh/resource-policy=delete")
    assert overridden["metadata"]["annotations"] == KEPT


@pytest.mark.gitops("A18")
def test_batch_yields_to_interactive_and_neither_preempts_strangers(helm: Any) -> None:
    classes = {m["metadata"]["name"]: m for m in helm.render() if m["kind"] == "PriorityClass"}
    interactive, batch = classes["r-gemma-operator-interactive"], classes["r-gemma-operator-batch"]
    assert (interactive["value"], interactive["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert batch["preemptionPolicy"] == "Never"
    assert -10 <= batch["value"] < interactive["value"], "the cluster autoscaler ignores Pods below -10"
    for priority in classes.values():
        assert priority["metadata"]["annotations"] == {**KEPT, "argocd.argoproj.io/sync-wave": "-1"}
        assert "globalDefault" not in priority
