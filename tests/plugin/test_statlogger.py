"""The metrics: what a step adds, and that nothing gets out of `record`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gemma_engine import shared, statlogger
from prometheus_client import REGISTRY, generate_latest

ARCHITECTURE = "Gemma4ForConditionalGeneration"
RECORDING = Path("tests/unit/data/gemma-engine-metrics.txt")


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"gemma_engine_{name}", labels) or 0.0


def engine_config(architecture: str = ARCHITECTURE, limit: int = 0) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, max_num_encoder_input_tokens=2048),
        model_config=SimpleNamespace(architectures=[architecture]),
        ec_manager_config=SimpleNamespace(manager_config={"encoder_tokens_per_step": limit} if limit else {}),
    )


@dataclass
class Step:
    num_ctx_tokens: int = 500
    num_generation_tokens: int = 4
    elapsed_ms: float = 80.0
    num_encoder_inputs: int = 0
    num_encoder_output_tokens: int = 0
    is_dummy: bool = False


def stats(step: Step | None, running: int = 1) -> Any:
    return SimpleNamespace(iteration_details=step, num_running_reqs=running, num_waiting_reqs=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    return tmp_path


def logger(**config: Any) -> statlogger.EncoderStatLogger:
    made = statlogger.EncoderStatLogger(engine_config(**config), [0])
    made.log_engine_initialized()
    return made


def test_a_step_with_media_adds_items_tokens_budget_and_the_workers_counts(folder: Path) -> None:
    worker = shared.Record(folder / "worker-1")
    one = logger()
    names = ("encoder_items_total", "encoder_tokens_total", "encoder_budget_tokens_total", "encoder_calls_total")
    before = {name: sample(name) for name in names}
    worker.add("encoder_calls", 2)
    one.record(stats(Step(num_encoder_inputs=3, num_encoder_output_tokens=792)), None)
    after = {name: sample(name) - before[name] for name in names}
    assert list(after.values()) == [3, 792, 2048, 2]


def test_the_fill_ratio_is_of_the_limit_where_there_is_one() -> None:
    before = sample("encoder_budget_tokens_total")
    logger(limit=512).record(stats(Step(num_encoder_inputs=1, num_encoder_output_tokens=266)), None)
    assert sample("encoder_budget_tokens_total") - before == 512


@pytest.mark.parametrize(("inputs", "encoder"), [(0, "no"), (2, "yes")])
def test_step_times_are_apart_by_encoder_work(inputs: int, encoder: str) -> None:
    before = sample("step_seconds_sum", encoder=encoder)
    logger().record(stats(Step(num_encoder_inputs=inputs)), None)
    assert sample("step_seconds_sum", encoder=encoder) - before == pytest.approx(0.08)


def test_an_engine_that_only_waits_makes_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    one = logger()
    clock = 1000.0
    monkeypatch.setattr(statlogger.time, "time", lambda: clock)
    one.record(stats(Step()), None)
    clock = 2000.0
    one.record(stats(None), SimpleNamespace(num_generation_tokens=0))
    assert sample("last_progress_timestamp_seconds") == 1000.0
    one.record(stats(None, running=0), None)
    assert sample("last_progress_timestamp_seconds") == 2000.0


def test_says_whose_encoder_serves_and_what_its_check_found(folder: Path) -> None:
    worker = shared.Record(folder / "worker-1")
    one = logger()
    assert sample("self_check", state="unchecked") == 1
    worker["state"] = shared.STATES.index("batched")
    one.record(stats(None), None)
    assert sample("self_check", state="batched") == 1
    assert sample("self_check", state="unchecked") == 0


def test_another_models_encoder_is_vllms() -> None:
    logger(architecture="Gemma4UnifiedForConditionalGeneration")
    assert sample("self_check", state="off") == 1


@pytest.mark.parametrize("broken", [object(), SimpleNamespace(iteration_details=object()), stats(Step(elapsed_ms="x"))])  # type: ignore[arg-type]
def test_nothing_gets_out_of_record(broken: Any) -> None:
    before = sample("record_errors_total")
    logger().record(broken, None)
    assert sample("record_errors_total") >= before
    logger().record(None, None)


def test_a_broken_step_is_counted() -> None:
    before = sample("record_errors_total")
    logger().record(SimpleNamespace(iteration_details=object()), None)
    assert sample("record_errors_total") == before + 1


def test_several_api_servers_add_up(folder: Path) -> None:
    """Two processes of one engine, as `--api-server-count 2` makes them: each sees a part of the steps."""
    program = """
import os, sys, tempfile
os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
from tests.plugin import test_statlogger as test
from gemma_engine import shared
worker = shared.own_record()
for frames in (6, 4):
    if os.fork() == 0:
        worker.add("encoder_frames", frames)
        worker["state"] = 1
        test.logger().record(test.stats(test.Step(num_encoder_inputs=1, num_encoder_output_tokens=378)), None)
        os._exit(0)
    os.wait()
from prometheus_client import CollectorRegistry, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
for name, labels in (("encoder_frames_total", {}), ("encoder_items_total", {}), ("self_check", {"state": "batched"})):
    print(registry.get_sample_value(f"gemma_engine_{name}", labels))
"""
    path = ":".join(["operator", ".", os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.split()[-3:] == ["10.0", "2.0", "1.0"], done.stderr[-3000:]


def test_the_recording_that_rules_and_panels_are_held_to(folder: Path, request: pytest.FixtureRequest) -> None:
    """Renew it with `pytest tests/plugin/test_statlogger.py --update-golden`."""
    logger().record(stats(Step(num_encoder_inputs=1, num_encoder_output_tokens=266)), None)
    logger().record(stats(Step()), None)
    lines = [line for line in generate_latest(REGISTRY).decode().splitlines() if line.startswith("gemma_engine_")]
    if request.config.getoption("--update-golden"):
        RECORDING.write_text("\n".join(lines) + "\n")
    assert shape(RECORDING.read_text().splitlines()) == shape(lines)


def shape(lines: list[str]) -> set[tuple[str, tuple[str, ...]]]:
    """Names, each with the names of its labels."""
    return {(re.split(r"[{ ]", line)[0], tuple(re.findall(r'(\w+)="', line))) for line in lines}
