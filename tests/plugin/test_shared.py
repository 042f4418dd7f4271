"""Numbers from the workers to the API servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gemma_engine import shared


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    return tmp_path


def worker(folder: Path, name: str) -> shared.Record:
    return shared.Record(folder / f"worker-{name}")


def test_a_worker_in_another_process_is_seen(folder: Path) -> None:
    program = "from gemma_engine import shared; record = shared.own_record(); record.add('encoder_calls', 3); record['state'] = 1"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ})
    workers = shared.Workers()
    workers.find()
    assert workers.new_counts()["encoder_calls"] == 3
    assert workers.state() == "batched"


def test_an_event_is_handed_out_once_whoever_asks(folder: Path) -> None:
    one = worker(folder, "1")
    first, second = shared.Workers(), shared.Workers()
    for workers in (first, second):
        workers.find()
    one.add("encoder_frames", 5)
    assert first.new_counts()["encoder_frames"] == 5
    assert second.new_counts()["encoder_frames"] == 0
    one.add("encoder_frames", 2)
    assert second.new_counts()["encoder_frames"] == 2
    assert first.new_counts()["encoder_frames"] == 0


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ([], "unchecked"),
        (["batched"], "batched"),
        (["batched", "per_item"], "per_item"),
        (["failed", "batched"], "failed"),
    ],
)
def test_the_worst_worker_counts(folder: Path, states: list[str], worst: str) -> None:
    for index, state in enumerate(states):
        worker(folder, str(index))["state"] = shared.STATES.index(state)
    workers = shared.Workers()
    workers.find()
    assert workers.state() == worst


def test_the_first_process_makes_the_folder_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shared.FOLDER)
    program = """
import os, subprocess, sys
from gemma_engine import shared
folder = shared.folder()
child = "from gemma_engine import shared; print(shared.folder())"
assert subprocess.check_output([sys.executable, "-c", child], text=True).strip() == str(folder)
assert folder.is_dir()
print(folder)
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not Path(found.stdout.strip()).exists()
