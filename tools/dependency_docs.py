"""Writes docs/data/dependencies.md: what is in the operator's image beside our code and Debian's Python, and who asked for it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "requirements" / "operator.txt"
PAGE = ROOT / "docs" / "data" / "dependencies.md"
HEAD = """# Dependencies of the operator
All of `requirements/operator.txt`, pinned by hash; made by `make generate` from the pins and from what the packages say of themselves.
The image holds the same list as CycloneDX in `/opt/venv/sbom.cdx.json`.
Known holes are not looked up here, as neither OSV nor PyPI's own list is reachable where this is built.
Where one is: `pip-audit -r requirements/operator.txt --disable-pip --require-hashes`.

| package | version | asked for by | licence | compiled code |
|---|---|---|---|---|
"""


def pins() -> Iterator[tuple[str, str, list[str]]]:
    """Name, version, and who asked for it."""
    for block in re.split(r"\n(?=\S)", PINS.read_text()):
        if found := re.match(r"([a-z0-9-]+)==(\S+)", block):
            said = block.partition("# via")[2].replace("#", " ").split()
            asked = [name for name in said if name[0] != "("]
            yield found[1], found[2], asked


def licence(package: importlib.metadata.Distribution) -> str:
    """As the package names it."""
    about = package.metadata
    named = next((about[field] for field in ("License-Expression", "License") if field in about), "")
    if named and len(named) < 40:
        return named
    classified = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    return ", ".join(text.rpartition(" :: ")[2] for text in classified)


def page() -> str:
    """The document. Raises PackageNotFoundError where the environment isn't the pinned one."""
    rows = []
    for name, version, asked in pins():
        package = importlib.metadata.distribution(name)
        compiled = any(str(file).endswith(".so") for file in package.files or ())
        rows.append(f"| {name} | {version} | {', '.join(asked)} | {licence(package)} | {'yes' if compiled else ''} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
