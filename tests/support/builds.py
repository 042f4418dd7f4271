"""Another build of the operator, with other defaults for the same spec."""

from __future__ import annotations

import shutil
from pathlib import Path

EDITS = {
    "desired/pod.py": ("PRESTOP_SECONDS = 10", "PRESTOP_SECONDS = 25"),
    "engine/environment.py": ("    ours = [\n", '    ours = [\n        Variable("NEW_DEFAULT", "1"),\n'),
    "engine/settings.py": ('Setting("--port", ', 'Setting("--seed", ("3",), "new")\n    yield Setting("--port", '),
}


def newer_build(folder: Path) -> str:
    """A copy of the operator with other defaults; returns its place for PYTHONPATH."""
    shutil.copytree("operator", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in EDITS.items():
        file = folder / "gemma_operator" / name
        text = file.read_text()
        assert text.count(old) == 1, name
        file.write_text(text.replace(old, new))
    return str(folder)
