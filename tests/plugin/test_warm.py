"""The Job that fills a pool's caches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gemma_engine import probe, warm

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def run(monkeypatch: pytest.MonkeyPatch, server: list[str], within: str = "30") -> int:
    monkeypatch.setattr(warm, "SERVER", server)
    monkeypatch.setattr(warm, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("sys.argv", ["warm", "--within", within, "--", "--model", "m"])
    return warm.main()


def test_ends_well_once_the_server_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def ready_the_second_time(_: Any, model: str, marker: Path, canary: bool) -> None:
        asked.append(canary)
        if len(asked) == 1:
            raise probe.NotReady("loading")

    monkeypatch.setattr(probe, "check_ready", ready_the_second_time)
    assert run(monkeypatch, SLEEPS) == 0
    assert asked == [True, True]
    assert "the caches are full" in capsys.readouterr().out


def test_tells_that_the_server_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, [sys.executable, "-c", "raise SystemExit(3)"]) == 1
    assert "the server ended with 3" in capsys.readouterr().out


def test_gives_up_with_the_probes_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise probe.NotReady("the engine is asleep")

    monkeypatch.setattr(probe, "check_ready", never)
    assert run(monkeypatch, SLEEPS, within="0.05") == 1
    assert "not ready in time: the engine is asleep" in capsys.readouterr().out
