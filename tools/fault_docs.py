"""Writes docs/faults.md from tests/faults.toml: which test holds which fault that users really had."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "faults.toml"
PAGE = ROOT / "docs" / "faults.md"
GROUPS = {
    "A": "Specs", "B": "Rollouts", "C": "Sizes and who sets them", "D": "Restarts, deletion, two operators",
    "E": "Metrics", "F": "Scaling decisions", "G": "Engines", "H": "Routing and upgrades",
}  # fmt: skip
HEAD = """# Faults that users really had
Each was found in the tracker of an operator, a chart or an autoscaler for serving; beside it stands the test that holds it here,
or why it can't occur. Made of `tests/faults.toml` by `make generate`; a test fails where a row has neither.
"""


def places() -> dict[str, str]:
    """Name of each test -> its file."""
    return {
        name: str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)
    }


def page(rows: Mapping[str, Mapping[str, Any]], where: Mapping[str, str]) -> str:
    """The document. Raises KeyError with the name of a test that does not exist."""
    out = [HEAD]
    for letter, title in GROUPS.items():
        out += [f"\n## {letter}. {title}", "| | fault | held by |", "|---|---|---|"]
        for number, row in rows.items():
            if number.startswith(letter):
                out.append(f"| {number} | {row['fault']} | {_held(row, where)} |")
    return "\n".join(out) + "\n"


def _held(row: Mapping[str, Any], where: Mapping[str, str]) -> str:
    if "reason" in row:
        return f"can't occur: {row['reason']}"
    if "pending" in row:
        return f"not yet: {row['pending']}"
    return ", ".join(f"[`{name}`](../{where[name]})" for name in row["tests"])


def main() -> int:
    PAGE.write_text(page(tomllib.loads(TABLE.read_text()), places()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
