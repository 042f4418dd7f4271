"""The operator before its GemmaServing: by a wave within one Application, and in two; deletion leaves nothing."""

from __future__ import annotations

from tests.argocd.conftest import CRD, NAME, Documented, await_nothing_left, children
from tests.support.argocd import App, Repository, Timeline
from tests.support.kube import Kube, condition, eventually


def test_the_wave_waits_for_a_healthy_operator_and_deletion_leaves_nothing(
    apps: Kube, timeline: Timeline, repository: Repository, lua: None, documented: Documented
) -> None:
    app, system = App(apps, "gemma"), Kube(apps.kubeconfig, "gemma-system")
    documented("kubectl apply -f examples/argocd/both.yaml")
    app.await_synced(repository.revision, 120)
    app.await_health("Healthy")
    assert app.resources()[f"GemmaServing/{NAME}"]["health"]["status"] == "Healthy"
    assert "Degraded" not in timeline.healths("gemma")
    serving, operator = system.get("gsv", NAME), system.get("deployment", "gemma-operator")
    assert serving
    healthy_at = condition(operator, "Available")["lastTransitionTime"]
    assert serving["metadata"]["creationTimestamp"] >= healthy_at

    documented("kubectl -n argocd delete application gemma")
    eventually("the Application is gone", app.gone, 60)
    await_nothing_left(system)
    assert system.get("gsv", NAME) is None
    assert system.get("deployment", "gemma-operator") is None
    assert system.get("crd", CRD)


def test_the_operator_before_and_after_its_serving(
    apps: Kube, models: Kube, operator_app: App, servings_app: App, timeline: Timeline, repository: Repository,
    lua: None, documented: Documented,
) -> None:  # fmt: skip
    """The operator comes first and goes last. The serving is deleted while its engines start."""
    documented("kubectl apply -f examples/argocd/operator.yaml")
    operator_app.await_synced(repository.revision)
    operator_app.await_health("Healthy")
    documented("kubectl apply -f examples/argocd/serving.yaml")
    servings_app.await_synced(repository.revision)
    eventually("it has children", lambda: children(models))
    documented("kubectl -n argocd delete application gemma-servings")
    eventually("the servings' Application is gone", servings_app.gone, 60)
    await_nothing_left(models)
    documented("kubectl -n argocd delete application gemma-operator")
    eventually("the operator's Application is gone", operator_app.gone, 60)
    assert apps.get("crd", CRD)
