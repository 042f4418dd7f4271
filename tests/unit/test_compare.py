"""`python -m tools.compare`: from traces to the table and the page, on workloads small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import constant, synthetic
from tools.compare import __main__ as compare
from tools.compare.policies import AUTOSCALERS, FIXED, NAMES, OURS
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
    found = json.loads((out / "comparison.json").read_text())
    assert [one["policy"] for one in found["summaries"]] == list(NAMES)
    assert len(found["runs"]) == 2 * len(NAMES)
    static = next(one for one in found["summaries"] if one["policy"] == FIXED[1])
    assert static["gpu_difference"]["half"] < 10, "two seeds give an interval"
    shown = (out / "comparison.html").read_text()
    for name in AUTOSCALERS:
        assert name.replace("'", "&#x27;") in shown


def test_some_policies(out: Path) -> None:
    arguments = ["--traces", ".", "--workloads", "small", "--seeds", "1", "--trace-seeds", "1"]
    assert compare.main([*arguments, "--policies", "llm-d WVA V2;llm-d SLO guide"]) == 0
    found = json.loads((out / "comparison.json").read_text())
    assert [one["policy"] for one in found["summaries"]] == [OURS, "llm-d WVA V2", "llm-d SLO guide"]


@pytest.mark.parametrize(("option", "value"), [("--workloads", "moon"), ("--policies", "dice")])
def test_unknown_names_are_told(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["--traces", ".", option, value])
    assert f"there is no {option[2:-1].replace('policie', 'policy')} {value}: use some of" in capsys.readouterr().err


def test_a_missing_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--traces", str(tmp_path), "--workloads", "conversation"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
