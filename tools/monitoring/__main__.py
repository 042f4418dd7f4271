"""Writes the files that the chart ships: `python -m tools.monitoring`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tools.monitoring.alerts import PRODUCTION, groups
from tools.monitoring.dashboard import content
from tools.monitoring.promql import Clock

FILES = Path(__file__).parents[2] / "charts" / "gemma-operator" / "files"
HEAD = "# Written by `make generate` from tools/monitoring. A rules file as Prometheus reads it.\n"


class _Readable(yaml.SafeDumper):
    """Writes expressions of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def rules_file(clock: Clock = PRODUCTION) -> str:
    """The rules as YAML."""
    content: dict[str, Any] = groups(clock)
    return HEAD + str(yaml.dump(content, Dumper=_Readable, sort_keys=False, width=10_000))


def dashboard_file() -> str:
    """The dashboard as JSON."""
    return json.dumps(content(), indent=1) + "\n"


def main() -> None:
    FILES.mkdir(exist_ok=True)
    (FILES / "rules.yaml").write_text(rules_file())
    (FILES / "dashboard.json").write_text(dashboard_file())


if __name__ == "__main__":
    main()
