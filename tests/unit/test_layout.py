"""Rules of the tree itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"operator/gemma_operator/engine/flag_table.py"}
MOST_LINES = 400
# Put together here, so that this file doesn't hold what it looks for.
HOSTS = [".".join(parts) for parts in (
    ("pypi", "org"), ("pythonhosted", "org"), ("proxy", "golang", "org"), ("sum", "golang", "org"), ("goproxy", "io"),
    ("registry", "npmjs", "org"), ("deb", "debian", "org"),
)]  # fmt: skip
LOCAL = "/(?:" + "work" + "/(?:main|shared)|root" + r"/(?:go|\.))"


def files() -> list[Path]:
    """Every file that is, or will be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_the_operator_folder_is_no_package() -> None:
    """It would shadow the standard library's `operator` wherever the root of the tree is on the path."""
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    forbidden = re.compile("|".join([*(re.escape(host) for host in HOSTS), LOCAL]))
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if hit := forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit.group()}")
    assert not found


def test_every_module_can_be_read_at_one_sitting() -> None:
    modules = [path for path in files() if path.suffix == ".py" and path.is_relative_to(ROOT)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    long = {name: length for name, length in lengths.items() if length >= MOST_LINES and not name.startswith("tests/")}
    assert long.keys() <= GENERATED


def test_the_imports_keep_to_the_architecture() -> None:
    """The contracts are in pyproject.toml: the pure packages do no I/O, and data flows one way."""
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.skip("import-linter is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run([program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
