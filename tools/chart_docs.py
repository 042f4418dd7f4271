"""Writes the values table of each chart's README from the `# --` comments in values.yaml; `--check` only compares.

Usage: python tools/chart_docs.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

CHARTS = sorted(path.parent for path in (Path(__file__).resolve().parent.parent / "charts").glob("*/Chart.yaml"))
START, END = "<!-- values:start (written by tools/chart_docs.py) -->\n", "<!-- values:end -->\n"


def described(lines: list[str], node: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, default as JSON, description) of every value under `node`; a described mapping counts as one value."""
    for key, value in node.value:
        path = prefix + key.value
        above = lines[key.start_mark.line - 1].strip() if key.start_mark.line else ""
        if above.startswith("# -- "):
            default = yaml.safe_load(yaml.serialize(value))
            yield path, json.dumps(default, ensure_ascii=False), above.removeprefix("# -- ")
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from described(lines, value, path + ".")
        else:
            raise SystemExit(
                f"values.yaml, line {key.start_mark.line + 1}: {path} has no description; write `# -- …` on the line above it"
            )


def table(values: str) -> str:
    """The Markdown table for the text of a values.yaml."""
    root = yaml.compose(values)
    assert isinstance(root, yaml.MappingNode)
    rows = [f"| `{path}` | `{default}` | {text} |\n" for path, default, text in described(values.splitlines(), root)]
    return "| Value | Default | Meaning |\n|---|---|---|\n" + "".join(rows)


def is_current(chart: Path, write: bool) -> bool:
    """True where the README of a chart has the table of its values.yaml, or with `write` has it now."""
    readme = chart / "README.md"
    old = readme.read_text(encoding="utf-8")
    head, _, rest = old.partition(START)
    _, _, tail = rest.partition(END)
    new = head + START + table((chart / "values.yaml").read_text(encoding="utf-8")) + END + tail
    if new != old and write:
        readme.write_text(new, encoding="utf-8")
    elif new != old:
        print(f"{readme} is out of date with values.yaml: run `python tools/chart_docs.py`", file=sys.stderr)
    return new == old or write


def main(arguments: list[str]) -> int:
    """Exit code 1 where `--check` finds a README out of date."""
    return int(not all(is_current(chart, write="--check" not in arguments) for chart in CHARTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
