"""What the documents show is so: links lead somewhere, examples render, commands and values exist."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gemma_operator import telemetry
from gemma_operator.api.conditions import TYPES
from gemma_operator.api.parse import parse
from gemma_operator.api.serving import KIND
from gemma_operator.desired import Defaults, desired
from gemma_operator.routing_status import Reason as RoutingReason
from gemma_operator.scaling.counters import MissingReason
from gemma_operator.scaling.decision import Kind, Reason
from tests.support.documents import DOCUMENTS, ROOT, blocks, commands

SCHEMAS = {
    f"charts/{path.parent.name}": json.loads(path.read_text()) for path in ROOT.glob("charts/*/values.schema.json")
}
DEFAULTS = Defaults(engine_image="vllm/vllm-openai:v0.32.0")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def accepts(command: list[str], path: str) -> bool:
    """Whether the schema of the chart that a command names, the operator's by default, has a value at a dotted path."""
    root = next((SCHEMAS[word] for word in command if word in SCHEMAS), SCHEMAS["charts/gemma-operator"])
    schema = root
    for name in path.split("."):
        while "$ref" in schema:
            schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
        free = schema.get("additionalProperties")
        if name not in schema.get("properties", {}) and not isinstance(free, dict):
            return False
        schema = schema.get("properties", {}).get(name, free)
    return True


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [t for t in targets if "://" not in t and not (document.parent / t).exists()] == []


@each_document
def test_examples_render(document: Path) -> None:
    for block in blocks(document, "yaml"):
        for found in yaml.safe_load_all(block):
            if found.get("kind") == KIND:
                assert desired(parse(found), DEFAULTS)


@each_document
def test_targets_of_make_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        *re.findall(r"^([a-z-]+):", makefile, re.M),
        *(f"test-{tier.name}" for tier in (ROOT / "tests").iterdir()),
    }
    for command in commands(document):
        if "make" in command[:2]:
            named = [word for word in command[command.index("make") + 1 :] if "=" not in word and word != "|"]
            assert [word for word in named if word not in targets] == [], command


@each_document
def test_values_of_helm_exist(document: Path) -> None:
    for command in commands(document):
        pairs = [after for word, after in pairwise(command) if word == "--set"]
        assert [pair for pair in pairs if not accepts(command, pair.partition("=")[0])] == [], command


@each_document
def test_files_that_commands_name_exist(document: Path) -> None:
    for command in commands(document):
        files = [word for word in command if re.match(r"(examples|charts|tools|docs)/", word)]
        assert [file for file in files if not (ROOT / file).exists()] == [], command


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_example_renders(example: Path) -> None:
    """The API server's tests apply what is of another kind."""
    found = [document for document in yaml.safe_load_all(example.read_text()) if document.get("kind") == KIND]
    assert all(desired(parse(document), DEFAULTS) for document in found)


def test_argo_cds_examples_differ_in_their_sources_only() -> None:
    """Chart values exist, and both ways deploy the same chart and folder from the same repository."""
    operator, serving, both = (
        yaml.safe_load((ROOT / f"examples/argocd/{name}.yaml").read_text())["spec"]
        for name in ("operator", "serving", "both")
    )
    chart, folder = both["sources"]
    del chart["helm"]["releaseName"]
    assert (chart, folder) == (operator["source"], serving["source"])
    assert all(accepts([], value) for value in operator["source"]["helm"]["valuesObject"])
    assert (ROOT / operator["source"]["path"] / "Chart.yaml").exists()
    assert {spec["syncPolicy"]["retry"]["limit"] for spec in (operator, serving, both)} == {-1}


def test_the_readme_shows_the_example_that_it_applies() -> None:
    (shown,) = (yaml.safe_load(block) for block in blocks(ROOT / "README.md", "yaml"))
    applied = yaml.safe_load((ROOT / "examples/quick-start/serving.yaml").read_text())
    assert shown["metadata"] == applied["metadata"]
    assert shown["spec"]["model"] == applied["spec"]["model"]
    assert set(shown["spec"]["pools"]) == set(applied["spec"]["pools"])


def test_every_condition_reason_and_metric_is_documented() -> None:
    readme, scaling, metrics = (
        (ROOT / name).read_text() for name in ("README.md", "docs/autoscaling.md", "docs/metrics.md")
    )
    assert [kind for kind in TYPES if f"`{kind}`" not in readme] == []
    assert [reason for reason in (*Reason, *Kind, *MissingReason) if f"`{reason}`" not in scaling] == []
    exposed = set(re.findall(r"^# TYPE (\w+?) ", b"".join(telemetry.exposition()).decode(), re.M))
    assert set(re.findall(r"^\| `(\w+)`", metrics, re.M)) == exposed


def test_every_reason_of_routing_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \|", (ROOT / "docs/routing.md").read_text(), re.M)
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == set(RoutingReason)


def test_tables_of_conditions_name_no_other() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert set(named) == set(TYPES)
