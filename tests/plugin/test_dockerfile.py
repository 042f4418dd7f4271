"""The steps of the image for GPUs, which needs a base that isn't here: each is run in the engine's environment for CPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import HOME, SITE
from tests.plugin.server import named
from tools.images.recipes import ROOT

pytestmark = pytest.mark.engine

DOCKERFILE = (ROOT / "images/engine/Dockerfile").read_text().replace("\\\n", " ")
FOLDER = "/opt/gemma-serving"


def build(root: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """What COPY and RUN do, under another root, with a Python whose own packages are none and which sees the engine's."""
    python = root / "python"
    subprocess.run([HOME / "bin" / "python", "-m", "venv", "--without-pip", python], check=True)
    (packages(root) / "engine.pth").write_text(f"{SITE}\n")
    (python / "bin" / "chown").write_text(f'#!/bin/sh\necho "$@" > {root}/chown\n')  # root's alone
    (python / "bin" / "chown").chmod(0o755)
    for sources, target in re.findall(r"^COPY (.*) (\S+)$", DOCKERFILE, re.MULTILINE):
        place = root / target.lstrip("/")
        for source in sources.split():
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    (command,) = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    moved = command.replace(FOLDER, f"{root}{FOLDER}").replace("/cache", f"{root}/cache")
    environment = {"PATH": f"{python / 'bin'}:/usr/bin:/bin", "PYTHONPATH": path, "HOME": str(root)}
    return subprocess.run(["sh", "-c", moved], env=environment, capture_output=True, text=True, check=False)


def packages(root: Path) -> Path:
    return root / "python" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def test_its_steps_leave_the_plugin_the_bill_and_the_chat_template(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (packages(tmp_path) / "gemma_engine" / "plugin.py").exists()
    left = tmp_path / FOLDER.lstrip("/")
    assert sorted(os.listdir(left)) == ["chat_template_gemma4.jinja", "sbom.cdx.json"]
    named_ = {part["name"] for part in json.loads((left / "sbom.cdx.json").read_text())["components"]}
    assert {"gemma-engine", "torch", "transformers"} <= named_
    assert (tmp_path / "chown").read_text().split() == ["2000:2000", f"{tmp_path}/cache"]
    assert (tmp_path / "cache").is_dir()


def test_it_stops_at_a_base_with_another_vllm(tmp_path: Path) -> None:
    done = build(tmp_path, str(named("0.99.0", tmp_path)))
    assert done.returncode != 0
    assert "gemma-engine works with vLLM 0.26 to 0.33, but vLLM is 0.99.0" in done.stderr


def test_it_fetches_nothing_and_ends_as_no_root() -> None:
    """So the base's digest fixes every version."""
    assert not re.search(
        r"\b(pip|uv|apt|apt-get|curl|wget|git|ADD)\b", re.sub(r"^#.*$", "", DOCKERFILE, flags=re.MULTILINE)
    )
    assert re.findall(r"^FROM (.*)$", DOCKERFILE, re.MULTILINE) == ["${BASE}"]
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[-1] == "2000:2000"
