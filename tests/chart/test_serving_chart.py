"""The chart gemma-serving: a GemmaServing from values, as they are, or refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gemma_operator.api.serving import API_VERSION
from tests.chart.conftest import RELEASES, SERVING_CHART, documents
from tools.serving_chart import text

STORED: list[dict[str, Any]] = json.loads((RELEASES / "0.1.0-servings.json").read_text())


def rendered(helm: Any, *arguments: str | Path) -> list[dict[str, Any]]:
    return documents(helm.ok("template", "chat", SERVING_CHART, "--namespace", "team-a", *arguments))


def test_values_become_one_serving(helm: Any) -> None:
    (serving,) = rendered(helm, "--set", "spec.model.id=google/gemma-4-E2B-it")
    assert (serving["apiVersion"], serving["kind"]) == (API_VERSION, "GemmaServing")
    assert (serving["metadata"]["name"], serving["metadata"]["namespace"]) == ("chat", "team-a")
    assert "annotations" not in serving["metadata"]
    assert serving["spec"] == {"model": {"id": "google/gemma-4-E2B-it"}}


def test_name_labels_and_annotations_are_the_users(helm: Any) -> None:
    serving = next(
        m for m in rendered(helm, "--values", SERVING_CHART / "ci" / "pools-values.yaml") if m["kind"] == "GemmaServing"
    )
    assert serving["metadata"]["name"] == "gemma"
    assert serving["metadata"]["labels"]["team"] == "inference"
    assert serving["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert serving["metadata"]["annotations"] == {"argocd.argoproj.io/sync-wave": "1"}
    assert serving["spec"]["pools"]["batch"] == {}


def test_a_name_of_digits_stays_a_name(helm: Any) -> None:
    policy, serving = rendered(helm, "--set-string", "name=2024", "--set", "networkPolicy.enabled=true")
    assert serving["metadata"]["name"] == policy["metadata"]["name"] == "2024"
    assert policy["spec"]["podSelector"]["matchLabels"]["gemmaserving.dev/serving"] == "2024"


@pytest.mark.parametrize("binary", ["helm", "helm3"])
@pytest.mark.parametrize("row", STORED[::4], ids=lambda row: row["name"])
def test_every_field_passes_through_unchanged(
    request: pytest.FixtureRequest, binary: str, row: dict[str, Any], tmp_path: Path
) -> None:
    helm = request.getfixturevalue(binary)
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"spec": row["spec"]}))
    # helm lets values win over the chart's, which names a model only
    (serving,) = rendered(helm, "--values", values)
    assert serving["spec"] == row["spec"]


def test_what_cant_be_written_is_refused(helm: Any) -> None:
    done = helm.run("template", "chat", SERVING_CHART, "--set-json", 'spec.model.id="a\\u007f"')
    assert done.returncode != 0
    assert "control character" in done.stderr


def test_the_schema_is_the_crds_and_takes_what_the_crd_takes() -> None:
    assert (SERVING_CHART / "values.schema.json").read_text() == text(), "run `make generate`"
    spec = json.loads(text())["properties"]["spec"]
    check = jsonschema.Draft7Validator(spec)
    for row in STORED:
        assert list(check.iter_errors(row["spec"])) == [], row["name"]


@pytest.mark.gitops("A5")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("spec.pools.batch.maxNumSeq=8", ["spec/pools/batch", "maxNumSeq", "not allowed"]),
        ("spec.pools.batch.maxNumSeqs=many", ["spec/pools/batch/maxNumSeqs", "integer"]),
        ("spec.rollout.strategy=Fast", ["spec/rollout/strategy", "Surge"]),
        ("spec.model=null", ["spec", "model"]),
        ("replicas=2", ["replicas", "not allowed"]),
        ("name=Gemma", ["name", "Gemma"]),
        ("networkPolicy.from[0].pods=x", ["networkPolicy/from/0", "pods"]),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Any, settings: str, words: list[str]) -> None:
    done = helm.run("template", "chat", SERVING_CHART, "--set", settings)
    assert done.returncode != 0
    assert [word for word in words if word not in done.stderr] == [], done.stderr


def test_the_notes_name_the_serving(helm: Any) -> None:
    notes = helm.ok("install", "chat", SERVING_CHART, "--namespace", "team-a", "--dry-run=client").partition(
        "\nNOTES:"
    )[2]
    assert "kubectl -n team-a wait --for=condition=Ready gemmaserving/chat --timeout=30m" in notes


def test_the_readmes_list_the_values(chart: Path) -> None:
    script = chart.parents[1] / "tools" / "chart_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
