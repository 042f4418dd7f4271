"""What mkdocs does beside its own for `make site`: folders in the navigation, and links to files of the repository that are no pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_config(config: Any) -> Any:
    """Put all pages of a folder where the navigation names the folder."""
    config.nav = [_expanded(entry, Path(config.docs_dir)) for entry in config.nav]
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, target),) = entry.items()
    if isinstance(target, list):
        return {title: [_expanded(child, docs) for child in target]}
    if not target.endswith("/"):
        return entry
    pages = sorted((docs / target).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return {title: [f"{target}{page.name}" for page in pages]}


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links out of docs/ lead to the repository where its address is known, else they become the file's path."""
    return outward(markdown, page.file.src_uri, config.repo_url or "")


def outward(markdown: str, page: str, repository: str) -> str:
    """`markdown` of `page` (its path in docs/) with the links that leave docs/ exchanged."""

    def exchanged(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
        if path.startswith("docs/"):
            return link.group()
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"docs/{page}: {target} leads to {path}, which doesn't exist")
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{path})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(exchanged, markdown)
