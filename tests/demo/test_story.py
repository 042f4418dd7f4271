"""The README's first command, as a new user would type it: its exit code, its words and its report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

STEPS = {"standin": 7, "vllm": 6}


def run_demo(engine: str, folder: Path) -> str:
    """What the demo prints; fails with it where the demo fails."""
    command = [sys.executable, "-m", "tools.demo", "--engine", engine, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def test_load_moves_the_pools_and_a_report_shows_it(tmp_path: Path) -> None:
    said = run_demo("standin", tmp_path)
    for step in range(1, STEPS["standin"] + 1):
        assert f"[{step}/{STEPS['standin']}]" in said
    assert "helm install gemma-operator charts/gemma-operator" in said
    assert "-f examples/quick-start/serving.yaml" in said
    assert "Demand: 1 -> 2 replicas" in said
    report = (tmp_path / "report.html").read_text()
    assert "data:image/png;base64," in report
    assert "SLO held again" in report
    assert not re.search(r"(src|href)=.http", report), "it opens without a network"
    recorded = json.loads((tmp_path / "recording.json").read_text())
    assert all(outcome["ok"] for outcome in recorded["interactive"]), "no request failed"


def test_real_vllm_serves_both_pools(tmp_path: Path) -> None:
    said = run_demo("vllm", tmp_path)
    assert "-f examples/tiny-cpu/serving.yaml" in said
    for pool in ("interactive", "batch"):
        for kind in ("text", "image", "video"):
            row = next(line.split() for line in said.splitlines() if line.split()[:2] == [pool, kind])
            assert row[2:5] == ["3", "of", "3"], row
    assert "Ready=True" in said
