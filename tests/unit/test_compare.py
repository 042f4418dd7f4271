"""`python -m tools.compare`: from traces to the table and the page, on workloads small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import constant, synthetic
from tools.compare import __main__ as compare
from tools.compare.policies import AUTOSCALERS, NAMES, OURS
from tools.compare.workloads import ALL, Workload


def small(traces: Path, seed: int) -> Workload:
    arrivals: Arrivals = synthetic(constant(25), 300, seed=seed, output_tokens=10)
    return Workload(arrivals, 300.0)


@pytest.fixture(autouse=True)
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compare, "OUT", tmp_path)
    monkeypatch.setattr(compare, "MOST", 3)
    monkeypatch.setitem(ALL, "small", small)
    return tmp_path


def test_every_policy_on_the_same_arrivals_with_paired_intervals(out: Path) -> None:
    assert compare.main(["--traces", ".", "--workloads", "small", "--seeds", "2", "--trace-seeds", "1"]) == 0
    runs = runs_in(out)
    assert [run["policy"] for run in runs] == [name for name in NAMES for _ in range(2)]
    shown = (out / "comparison.html").read_text()
    for name in AUTOSCALERS:
        assert name.replace("'", "&#x27;") in shown
    assert shown.count(" ± ") == 2 * len(NAMES), "two seeds give an interval"


def runs_in(out: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((out / "comparison.json").read_text())["runs"]
    return runs


def test_some_policies_beside_what_is_there_already(out: Path) -> None:
    arguments = ["--traces", ".", "--workloads", "small", "--seeds", "1", "--trace-seeds"]
    assert compare.main([*arguments, "1", "--policies", "llm-d WVA V2;llm-d SLO guide"]) == 0
    first = runs_in(out)
    assert [run["policy"] for run in first] == [OURS, "llm-d WVA V2", "llm-d SLO guide"]
    assert compare.main([*arguments, "1", "--policies", "llm-d SLO guide"]) == 0
    assert runs_in(out) == first, "the same runs again: nothing is there twice, and nothing has changed"
    assert compare.main([*arguments, "2", "--policies", OURS]) == 0
    assert [(run["policy"], run["trace_seed"]) for run in runs_in(out)][:2] == [(OURS, 1), (OURS, 2)]
    assert len(runs_in(out)) == 4


@pytest.mark.parametrize(("option", "value"), [("--workloads", "moon"), ("--policies", "dice")])
def test_unknown_names_are_told(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["--traces", ".", option, value])
    assert f"there is no {option[2:-1].replace('policie', 'policy')} {value}: use some of" in capsys.readouterr().err


def test_a_missing_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--traces", str(tmp_path), "--workloads", "conversation"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
