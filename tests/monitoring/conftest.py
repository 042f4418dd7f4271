"""Fixtures over the real programs: promtool in every version there is, and a Prometheus."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tools.cluster.binaries import ensure_one, version_of


def _promtools() -> list[Path]:
    """The pinned version, and the machine's own where it is another (Debian's is 2.42)."""
    own = os.environ.get("PROMTOOL") or shutil.which("promtool")
    pinned = ensure_one("promtool")
    return [pinned, *([Path(own)] if own and Path(own) != pinned else [])]


def _named(path: Path) -> str:
    return ".".join(map(str, version_of(path, ("--version",)) or ("unknown",)))


@pytest.fixture(scope="session", params=_promtools(), ids=_named)
def promtool(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path
