"""Installs gemma_engine into the Python that runs this (or into a folder), without pip and without a network.

The engine's environment has setuptools, since vLLM needs it; a wheel of pure Python is a zip file that only needs unpacking.

    python3 install.py [FOLDER]
"""

import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent


def build(folder: Path) -> Path:
    """The package's wheel. Built from a copy, since building writes beside the sources."""
    from setuptools.build_meta import build_wheel

    copy = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / "gemma_engine", copy / "gemma_engine", ignore=ignored)
    shutil.copy(SOURCES / "pyproject.toml", copy)
    os.chdir(copy)
    name: str = build_wheel(str(folder))
    return folder / name


def install(target: Path) -> None:
    for old in [target / "gemma_engine", *target.glob("gemma_engine-*.dist-info")]:
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(build(Path(folder))) as wheel:
            wheel.extractall(target)
        os.chdir(SOURCES)
    for path in [*target.glob("gemma_engine*"), *target.glob("gemma_engine*/*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    install(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib")).resolve())
