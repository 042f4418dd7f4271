"""The documents, and the commands that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "charts/**/*.md", "tools/**/*.md", "images/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
PROGRAMS = r"(?:make|helm|kubectl|gemma-operator|python3|CONTEXT=\S+ make) "


def blocks(document: Path, *languages: str) -> Iterator[str]:
    """Contents of the fenced blocks in these languages."""
    for language, content in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.M | re.S):
        if language in languages:
            yield content


def commands(document: Path) -> Iterator[list[str]]:
    """The shell commands of a document, in blocks and in backquotes, without their comments."""
    text = "\n".join(blocks(document, "", "sh", "bash")).replace("\\\n", " ")
    inline = re.findall(rf"`({PROGRAMS}[^`\n]+)`", document.read_text())
    for line in [*text.splitlines(), *inline]:
        if re.match(PROGRAMS, line):
            yield shlex.split(line, comments=True)
