"""Options and fixtures of every tier."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# The machine is shared: how long an example takes says nothing. A run is repeatable, and a failure prints its input.
settings.register_profile("gemma", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.load_profile("gemma")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is rendered now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is what tests/golden/<name> holds."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        before = path.read_text() if path.exists() else ""
        changes = difflib.unified_diff(before.splitlines(), text.splitlines(), name, "rendered", lineterm="")
        assert before == text, "\n".join([*changes, "", "if that is meant: pytest tests/unit --update-golden"])

    return check


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the operator comes from the shell that runs the tests."""
    for name in [name for name in os.environ if name.startswith("GEMMA_")]:
        monkeypatch.delenv(name)
