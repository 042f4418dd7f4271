"""`gemma-operator simulate`: what it tells, what faults change, and what it says of wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.cli import main
from gemma_operator.cli.simulate import FAULTS
from gemma_operator.simulation.faults import FaultKind

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples/quick-start/serving.yaml")
CALM = "poisson:rate=30,seconds=3600,output-tokens=10"
RISE = "ramp:rate=10,to=60,end=3000,seconds=3000,output-tokens=10"
Told = Callable[..., dict[str, Any]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """The figures of a run."""

    def run(*arguments: str) -> dict[str, Any]:
        # A pre-roll would be the workload's end, and these end otherwise than they begin.
        code = main(["simulate", EXAMPLE, *arguments, "--pre-roll", "0s", "-o", "json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == (0 if found["holds"] else 3)
        return found

    return run


def ready(found: dict[str, Any], low: float, high: float) -> set[int]:
    return {tick["ready"] for tick in found["ticks"] if low <= tick["at"] < high}


def test_a_table_a_page_and_the_same_run_every_time(capsys, tmp_path):
    page = tmp_path / "what.html"
    command = ["simulate", EXAMPLE, CALM, "--start", "11:30", "--fault", "prometheus:12:00:10m", "--plot", str(page)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for part in ("held: ", "GPU-hours", "Over time", "11:30", "MetricsMissing", "MetricsBlind", "prometheus"):
        assert part in shown, part
    assert "<svg" in page.read_text()
    assert "MetricsMissing" in page.read_text()
    assert main(command) == 0
    assert capsys.readouterr().out == shown


def test_engines_that_batch_may_lend_bridge_a_cold_start(capsys, tmp_path):
    burst = "spike:rate=10,to=45,at=1200,length=900,seconds=3000,output-tokens=10"
    document = yaml.safe_load((ROOT / "examples/quick-start/serving.yaml").read_text())
    found = {}
    for lend in (None, 2):
        document["spec"]["pools"]["batch"]["replicas"] = {"min": 1, "max": 3}
        document["spec"]["pools"]["batch"]["modalities"] = {"video": {"count": 1, "frames": 6}}
        document["spec"]["pools"]["batch"]["scaling"] = {"lend": lend} if lend else {}
        (tmp_path / "serving.yaml").write_text(yaml.safe_dump(document))
        main(["simulate", str(tmp_path / "serving.yaml"), burst, "--pre-roll", "0s", "-o", "json"])
        found[lend] = json.loads(capsys.readouterr().out)
    assert found[2]["attainment"] > found[None]["attainment"] + 0.05
    told = [note for note in found[2]["notes"] if "2 batch engines are taken as warm" in note]
    assert told, found[2]["notes"]
    assert not [note for note in found[None]["notes"] if "lent" in note]
    del document["spec"]["pools"]["batch"]["modalities"]
    (tmp_path / "serving.yaml").write_text(yaml.safe_dump(document))
    main(["simulate", str(tmp_path / "serving.yaml"), CALM, "--pre-roll", "0s"])
    assert "scaling.lend has no effect" in capsys.readouterr().out


def test_figures_add_up(told):
    found = told(CALM, "--media-share", "0.1")
    assert sum(part["requests"] for part in found["time"]) == found["workload"]["requests"]
    assert len(found["ticks"]) == 3600 / 15
    assert found["gpuHours"] == pytest.approx(sum(tick["asked"] for tick in found["ticks"]) * 15 / 3600, rel=0.1)
    assert found["holds"] is (found["attainment"] >= 0.95)
    assert "NaN" not in json.dumps(found)


@pytest.mark.parametrize("kind", ["prometheus", "empty", "frozen", "half", "operator"])
def test_nothing_is_taken_away_while_nothing_is_known(told, kind):
    """At 00:20 the load falls to a third, while the operator knows nothing of it."""
    fall = "step:rate=60,to=20,at=1200,seconds=3600,output-tokens=10"
    plain, faulty = told(fall), told(fall, "--fault", f"{kind}:00:15:35m")
    assert min(ready(plain, 2700, 3000)) < max(ready(plain, 0, 1200)), "without the fault it goes down"
    assert min(ready(faulty, 900, 3000)) == max(ready(faulty, 0, 900))
    assert faulty["gpuHours"] > plain["gpuHours"]


@pytest.mark.parametrize("kind", ["gpus", "image-pull"])
def test_engines_that_do_not_come_make_misses(told, kind):
    plain, faulty = told(RISE), told(RISE, "--fault", f"{kind}:00:10:40m")
    assert max(ready(faulty, 600, 3000)) < max(ready(plain, 600, 3000))
    assert not faulty["holds"]
    assert plain["holds"]
    if kind == "gpus":
        assert "NoCapacity" in {finding["kind"] for finding in faulty["findings"]}


def test_a_slower_engine_a_longer_start_and_a_small_cluster_cost_attainment(told):
    plain = told(RISE)
    for worse in (["--engine-speed", "0.6"], ["--cold-start", "15m"], ["--gpus", "1"], ["--failed-starts", "1"]):
        assert told(RISE, *worse)["attainment"] < plain["attainment"], worse


@pytest.mark.parametrize(("start", "engines"), [("12:00", 3), ("15:00", 1)])
def test_the_schedule_goes_by_the_clock(capsys, tmp_path, start, engines):
    file = tmp_path / "scheduled.yaml"
    slot = "scaling: {schedule: [{start: '12:00', end: '13:00', min: 3}]}"
    file.write_text(Path(EXAMPLE).read_text().replace("      slo:\n", f"      {slot}\n      slo:\n"))
    quiet = "poisson:rate=5,seconds=1800,output-tokens=10"
    assert main(["simulate", str(file), quiet, "-o", "json", "--start", start]) == 0
    assert json.loads(capsys.readouterr().out)["time"][-1]["asked"] == [engines, engines]


def test_a_budget_shared_with_another_pool_is_told(capsys, tmp_path):
    file = tmp_path / "budget.yaml"
    file.write_text(Path(EXAMPLE).read_text().replace("spec:\n", "spec:\n  gpuBudget: 3\n"))
    assert main(["simulate", str(file), CALM]) == 0
    assert "gpuBudget 3 leaves 2 engines" in capsys.readouterr().out


def test_the_command_names_every_fault():
    assert set(FAULTS) == {kind.value for kind in FaultKind}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([EXAMPLE, "nowhere"], "neither a file or folder nor a description"),
        ([EXAMPLE, "poisson:rate=0"], "the workload holds no request"),
        ([EXAMPLE, CALM, "--pool", "chat"], "has no pool chat: it has interactive, batch"),
        ([EXAMPLE, CALM, "--pool", "batch"], "pool batch has no TTFT objective"),
        ([EXAMPLE, CALM, "--profile", "nowhere"], "--profile nowhere can't be read"),
        ([EXAMPLE, CALM, "--fault", "prometheus:12:00:10m"], "the fault prometheus would begin 12 h after the start"),
        ([EXAMPLE, CALM, "--plot", "/nowhere/x.png"], "--plot /nowhere/x.png can't be written"),
        (["nowhere.yaml", CALM], "nowhere.yaml"),
        ([str(ROOT / "Makefile"), CALM], "Makefile: "),
        ([str(ROOT / "examples/text-only/servings.yaml"), CALM], "holds 2 GemmaServings: give a file with one"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_clear_line(capsys, arguments, said):
    assert main(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gemma-operator: ")
    assert said in error
    assert error.count("\n") == 1


def test_what_is_refused_is_told_and_missed(capsys, tmp_path):
    file = tmp_path / "valve.yaml"
    valve = "      admission: {enabled: true, maxQueuedTokens: 4096}\n"
    file.write_text(Path(EXAMPLE).read_text().replace("      slo:\n", f"{valve}      slo:\n"))
    long = "gamma:rate=30,seconds=600,prompt-tokens=2000,output-tokens=10"
    assert main(["simulate", str(file), long, "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert 0.02 < found["refused"] / found["workload"]["requests"] < 1 - found["attainment"] + 1e-9


def test_media_for_a_pool_of_text_is_refused(capsys, tmp_path):
    file = tmp_path / "text.yaml"
    text = Path(EXAMPLE).read_text()
    file.write_text(
        text.replace("video: {count: 1, frames: 6}", "{image: {count: 0}, video: {count: 0}, audio: {count: 0}}")
    )
    assert main(["simulate", str(file), CALM, "--media-share", "0.5"]) == 2
    assert "takes text only, and 50% of the requests have media" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--fault", "sun:12:00:10m", "'sun' is nothing that can fail here: prometheus"),
        ("--fault", "prometheus:12:10m", "write KIND:HH:MM:LENGTH"),
        ("--fault", "prometheus:12:61:10m", "write KIND:HH:MM:LENGTH"),
        ("--fault", "prometheus:12:00:1s", "give 15s to"),
        ("--start", "25:00", "is no time: write HH:MM"),
        ("--cold-start", "9m-3m", "ends before it begins"),
        ("--engine-speed", "0", "no number from 0.05"),
        ("--gpus", "0", "no whole number from 1"),
        ("--failed-starts", "2", "no number from 0 to 1"),
    ],
)
def test_wrong_options_are_one_clear_line(capsys, option, value, said):
    with pytest.raises(SystemExit):
        main(["simulate", EXAMPLE, CALM, option, value])
    assert said in capsys.readouterr().err
