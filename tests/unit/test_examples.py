"""Each folder of examples is a use case that a stranger can follow: a README with commands, what to look at and what to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gemma_operator.api.serving import KIND
from gemma_operator.cli import main
from tests.unit.test_docs import ROOT, accepts

EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
OLDER = {"argocd", "gateway", "kube-prometheus-stack"}
"""They have tables in the place of the sections."""
SERVINGS = sorted(path for path in EXAMPLES.rglob("*.yaml") if f"\nkind: {KIND}\n" in path.read_text())

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


@each_folder
def test_a_readme_says_what_to_do(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    commands = [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    named = {word for line in commands for word in re.findall(r"(?:examples|charts)/[\w./-]+", line)}
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
    sections = {"## Look at", "## Change"} if folder.name not in OLDER else set()
    assert [section for section in sections if f"\n{section}\n" not in text] == []


@each_folder
def test_every_file_of_a_folder_is_named_in_its_readme(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    names = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()} - {"README.md"}
    assert [name for name in names if name not in text] == []


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    links = {target.partition("/")[0] for target in re.findall(r"\]\(([^)#]+)\)", index)}
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert there - links == set()


@pytest.mark.parametrize("example", SERVINGS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples_have_no_warnings(example: Path, clean_environment: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--explain", str(example)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")] == []


@pytest.mark.parametrize("values", sorted(EXAMPLES.rglob("values.yaml")), ids=lambda path: path.parent.name)
def test_values_are_the_charts(values: Path) -> None:
    def paths(tree: object, prefix: str = "") -> list[str]:
        if isinstance(tree, dict):
            return [path for key, value in tree.items() for path in paths(value, f"{prefix}{key}.")]
        return [prefix[:-1]]

    assert [path for path in paths(yaml.safe_load(values.read_text())) if not accepts([], path)] == []
