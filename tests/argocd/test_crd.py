"""The CRD switched off in git: it stays, with every GemmaServing, by whichever way Argo CD tracks what it made."""

from __future__ import annotations

import json

import pytest

from tests.argocd.conftest import CRD, NAME, VALUES, Documented
from tests.support.argocd import App, Repository, Timeline
from tests.support.kube import Kube, eventually
from tools.argocd.rig import ArgoCD


@pytest.mark.parametrize("tracking", ["annotation", "label"])
def test_switched_off_it_stays(
    tracking: str, argo: ArgoCD, apps: Kube, operator_app: App, timeline: Timeline, repository: Repository,
    documented: Documented,
) -> None:  # fmt: skip
    argo.configure({"application.resourceTrackingMethod": tracking})
    documented("kubectl apply -f examples/argocd/operator.yaml")
    operator_app.await_synced(repository.revision)
    assert f"CustomResourceDefinition/{CRD}" in operator_app.resources()
    apps.run("apply", "-f", "examples/quick-start/serving.yaml")
    serving, crd = apps.get("gsv", NAME), apps.get("crd", CRD)
    assert serving
    assert crd

    values = {"valuesObject": {**VALUES, "crds": {"enabled": False}}}
    patch = {"spec": {"source": {"helm": values}}}
    apps.run("patch", "application", operator_app.name, "--type=merge", "-p", json.dumps(patch))
    eventually(
        "that is synced",
        lambda: operator_app.status["sync"]["comparedTo"]["source"]["helm"] == values and operator_app.sync == "Synced",
        60,
    )
    operator_app.refresh("hard")
    mark, before = len(timeline.rows), operator_app.started_at
    operator_app.refresh("hard")
    assert {row.sync for row in timeline.of(operator_app.name, mark)} <= {"Synced"}
    assert (operator_app.sync, operator_app.started_at) == ("Synced", before)
    for kind, name, old in (("gsv", NAME, serving), ("crd", CRD, crd)):
        assert (apps.get(kind, name) or {}).get("metadata", {}).get("uid") == old["metadata"]["uid"], kind

    apps.run("delete", "gsv", NAME)
    documented("kubectl -n argocd delete application gemma-operator")
    eventually("the Application is gone", operator_app.gone, 60)
    assert apps.get("crd", CRD)
