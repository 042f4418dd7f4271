"""Operator and GemmaServing in two Applications: the life of one serving, each test from where the one before left it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.argocd.conftest import NAME, SERVING, Documented, await_nothing_left, children, templates
from tests.support.argocd import App, Repository, Timeline
from tests.support.kube import Kube, condition, eventually

POOL = f"{NAME}-interactive"
SCHEDULED = 2  # engines that the schedule asks for all day: above the floor, so that a reset would show


@pytest.fixture(scope="module")
def volume(apps: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A volume for the serving's cache."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o777)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": str(folder)}}
    apps.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "gemma-cache"}, "spec": spec})
    yield
    apps.run("delete", "pv", "gemma-cache", "--wait=false")


def richer(body: dict[str, Any]) -> None:
    """A cache, for its claim, and a schedule, so that the autoscaler moves a pool above its floor."""
    body["spec"]["model"]["cache"] = {"size": "1Gi", "storageClassName": ""}
    slot = {"start": "00:00", "end": "00:00", "min": SCHEDULED}
    body["spec"]["pools"]["interactive"]["scaling"] = {"schedule": [slot]}


def size(models: Kube) -> int:
    found = models.get("deployment", POOL)
    return int(found["spec"]["replicas"]) if found else 0


def note(repository: Repository, servings_app: App, **annotations: str | None) -> None:
    """Change annotations of the serving in git, None takes one away, and wait for the sync of it."""

    def change(body: dict[str, Any]) -> None:
        merged = {**body["metadata"]["annotations"], **annotations}
        body["metadata"]["annotations"] = {key: value for key, value in merged.items() if value}

    repository.edit(SERVING, change)
    servings_app.refresh("hard")
    servings_app.await_synced(repository.revision)


def test_a_serving_before_its_operator_becomes_healthy(
    documented: Documented, models: Kube, operator_app: App, servings_app: App, timeline: Timeline,
    repository: Repository, lua: None, volume: None,
) -> None:  # fmt: skip
    repository.edit(SERVING, richer)
    documented("kubectl apply -f examples/argocd/serving.yaml")
    eventually("its CRD is missed", lambda: "Retrying attempt" in servings_app.said(), 60)
    assert (servings_app.sync, servings_app.health) == ("OutOfSync", "Missing")
    documented("kubectl apply -f examples/argocd/operator.yaml")
    operator_app.await_synced(repository.revision)
    operator_app.await_health("Healthy")
    servings_app.await_synced(repository.revision)
    servings_app.await_health("Healthy")
    assert timeline.healths("gemma-servings")[-3:] == ["Missing", "Progressing", "Healthy"]
    eventually("the autoscaler follows the schedule", lambda: size(models) == SCHEDULED, 60)


@pytest.mark.parametrize(("option", "engines"), [("ServerSideApply=false", 3), ("ServerSideApply=true", 4)])
def test_sizes_move_and_argo_cd_sees_no_drift(
    option: str, engines: int, models: Kube, servings_app: App, timeline: Timeline, repository: Repository
) -> None:
    """By Argo CD's own way of comparing, and by the API server's, which comes with server-side apply."""

    options = {"spec": {"syncPolicy": {"syncOptions": ["CreateNamespace=true", option]}}}
    servings_app.kube.run("patch", "application", servings_app.name, "--type=merge", "-p", json.dumps(options))
    note(repository, servings_app, **{"example.test/note": option})
    servings_app.await_health("Healthy")

    mark, before = len(timeline.rows), servings_app.started_at
    models.run("scale", "deployment", POOL, f"--replicas={engines}")
    eventually(
        "the status tells of it", lambda: (models.get("gsv", NAME) or {})["status"]["pools"]["interactive"]["ready"] == engines, 60
    )  # fmt: skip
    for how in ("normal", "hard"):
        servings_app.refresh(how)
    assert (servings_app.sync, servings_app.started_at) == ("Synced", before)
    assert {(row.sync, row.health) for row in timeline.of(servings_app.name, mark)} <= {("Synced", "Healthy")}
    note(repository, servings_app, **{"example.test/note": f"with {engines} engines"})
    assert size(models) == engines


def test_nothing_of_ours_is_pruned_or_made_anew(models: Kube, servings_app: App, repository: Repository) -> None:
    """By syncs with prune, with labels and annotations of other tools on the serving."""
    made, of = children(models), templates(models)
    assert [name for name in made if name.startswith("PersistentVolumeClaim/")]
    models.run("annotate", "gsv", NAME, "example.test/tool=here")
    models.run("label", "gsv", NAME, "app.kubernetes.io/instance=gemma-servings", "helm.sh/chart=models-2.0.0")
    note(repository, servings_app, **{"example.test/note": "with labels of another tool"})
    assert (children(models), templates(models)) == (made, of)
    assert set(servings_app.resources()) == {f"GemmaServing/{NAME}"}


def test_degraded_means_that_a_person_has_to_act(servings_app: App, timeline: Timeline, repository: Repository) -> None:
    assert "Degraded" not in timeline.healths(servings_app.name)
    repository.edit(SERVING, lambda body: body["spec"].update(engine={"image": "registry.example/vllm:nightly"}))
    servings_app.refresh()
    servings_app.await_health("Degraded")
    assert servings_app.sync == "Synced"
    serving = servings_app.resources()[f"GemmaServing/{NAME}"]
    assert "set engine.version" in serving["health"]["message"]
    repository.edit(SERVING, lambda body: body["spec"].pop("engine"))
    servings_app.refresh()
    servings_app.await_synced(repository.revision)
    servings_app.await_health("Healthy")
    repository.edit(SERVING, lambda body: body["spec"].update(rollout={"paused": True}))
    servings_app.refresh()
    servings_app.await_health("Suspended")
    repository.edit(SERVING, lambda body: body["spec"].pop("rollout"))
    servings_app.refresh()
    servings_app.await_health("Healthy")


def test_a_replace_makes_nothing_anew_and_is_better_left_out(
    models: Kube, servings_app: App, repository: Repository
) -> None:
    made, of = children(models), templates(models)
    generation = (models.get("gsv", NAME) or {})["metadata"]["generation"]
    option = "argocd.argoproj.io/sync-options"
    note(repository, servings_app, **{option: "Replace=true"})
    note(repository, servings_app, **{"example.test/note": "replaced"})
    body = models.get("gsv", NAME) or {}
    assert "example.test/tool" not in body["metadata"]["annotations"], "it was not replaced"
    assert body["metadata"]["generation"] == generation
    assert (children(models), templates(models)) == (made, of)
    note(repository, servings_app, **{option: None})
    body = models.get("gsv", NAME) or {}
    assert option in body["metadata"]["annotations"], (
        "Argo CD now sees what leaves git after a replace: tell so in the docs"
    )


def test_without_the_operator_engines_stay_until_the_serving_goes(
    models: Kube, documented: Documented, operator_app: App, servings_app: App
) -> None:
    before = {pod["metadata"]["uid"] for pod in models.list("pod")}
    documented("kubectl -n argocd delete application gemma-operator")
    eventually("the operator's Application is gone", operator_app.gone, 60)
    system = Kube(models.kubeconfig, "gemma-system")
    eventually("no operator runs", lambda: not system.list("pod"), 60)
    assert {pod["metadata"]["uid"] for pod in models.list("pod")} == before
    assert condition(models.get("gsv", NAME), "Ready")["status"] == "True"
    documented("kubectl -n argocd delete application gemma-servings")
    eventually("the servings' Application is gone", servings_app.gone, 60)
    assert models.get("gsv", NAME) is None
    await_nothing_left(models)
