"""The documentation as pages: it builds without a warning, needs no network, and its new pages say what the code says."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_operator.routing_status import Reason as RoutingReason
from gemma_operator.scaling.counters import MissingReason
from gemma_operator.scaling.decision import Kind, Reason
from tools import dependency_docs
from tools.cli_docs import PAGE, commands, page, spelled
from tools.site_hooks import outward

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OPERATOR = ROOT / "operator/gemma_operator"
MAKERS = {"Condition": 2, "Problem": 0, "Diagnosis": 0}
"""What makes a condition's reason, and at which place it stands."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. Not by --quiet, which keeps --strict from seeing warnings."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_take_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    taken = {
        address
        for file in (*pages, *site.glob("*.css"))
        for address in re.findall(
            r"""(?:\bsrc=|<link[^>]+href=|url\(|@import )["']?(https?:[^"' )>]+|//[^"' )>]+)""", file.read_text()
        )
    }
    assert taken == set()


def test_every_link_between_pages_leads_to_a_file(site: Path) -> None:
    """Also those that the hook wrote."""
    broken = []
    for file in site.rglob("*.html"):
        for target in re.findall(r'<a [^>]*href="([^"#]+)', file.read_text()):
            if "://" not in target and not target.startswith("mailto:") and not (file.parent / target).exists():
                broken.append(f"{file.relative_to(site)}: {target}")
    assert [line for line in broken if not line.startswith("404.html")] == []


@pytest.mark.parametrize(
    ("page", "text", "repository", "shown"),
    [
        ("a.md", "[b](b.md)", "", "[b](b.md)"),
        ("runbooks/a.md", "[b](../monitoring.md#x)", "", "[b](../monitoring.md#x)"),
        ("a.md", "see [files](../examples/flux) now", "", "see files (`examples/flux`) now"),
        ("a.md", "[examples/flux](../examples/flux)", "", "examples/flux"),
        ("a.md", "[t](../README.md#install)", "https://git.example.com/g/", "[t](https://git.example.com/g/blob/main/README.md)"),
        ("decisions/a.md", "[t](../../Makefile)", "", "t (`Makefile`)"),
    ],
)  # fmt: skip
def test_links_out_of_the_documentation(page: str, text: str, repository: str, shown: str) -> None:
    assert outward(text, page, repository) == shown


def test_a_link_to_nothing_stops_the_build() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/a\.md: \.\./nothing leads to nothing, which doesn't exist"):
        outward("[t](../nothing)", "a.md", "")


def test_the_reference_of_commands_is_renewed() -> None:
    assert PAGE.read_text() == page(), "make generate"


def test_the_list_of_dependencies_is_renewed() -> None:
    assert dependency_docs.PAGE.read_text() == dependency_docs.page(), "make generate"


def test_every_argument_of_every_command_has_a_meaning() -> None:
    from gemma_operator.cli import parser

    for command, said in commands(parser()):
        assert said, command.prog
        shown = [action for action in command._actions if not isinstance(action, argparse._HelpAction)]
        assert [f"{command.prog} {spelled(action)}" for action in shown if not action.help] == []


def reasons() -> Iterator[str]:
    """Every reason of a condition that stands in the code as text or in one of the enumerations."""
    yield from (*RoutingReason, *MissingReason, *Kind)
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                place = MAKERS[node.func.id]
                found = ast.walk(node.args[place]) if len(node.args) > place else ()
                yield from (
                    part.value for part in found if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
            if isinstance(node, ast.Assign | ast.AnnAssign) and file.name in ("reconcile.py", "status.py"):
                values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
                yield from (
                    value.value
                    for value in values
                    if isinstance(value, ast.Constant) and re.fullmatch(r"([A-Z][a-z]+){2,}", str(value.value))
                )


def test_every_reason_is_in_the_page_on_troubleshooting() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    found = set(reasons())
    assert {"PodsRefused", "OutOfGpuMemory", "RolloutBlocked", "UnknownEngineVersion", "FixedSize"} <= found
    assert sorted(reason for reason in found if f"`{reason}`" not in text) == []


def test_troubleshooting_names_no_other_reason() -> None:
    rows = re.findall(r"^\| [^|]*\| (`\w+`(?:, `\w+`)*) \|", (DOCS / "troubleshooting.md").read_text(), re.M)
    named = {reason for row in rows for reason in re.findall(r"`(\w+)`", row)}
    known = {*reasons(), *Reason}
    assert named - known == set()


def test_security_names_tests_that_exist() -> None:
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/.]+)\)", (DOCS / "security.md").read_text())
    assert len(links) > 15
    assert [name for name, file in links if f"def {name}(" not in (ROOT / file).read_text()] == []
