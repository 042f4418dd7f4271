"""Real vLLM with two API servers before one engine: the probe, and counters that add up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.multiprocess import MultiProcessCollector

from tests.engine.server import Server, image, serving, text, video
from tests.plugin.conftest import HOME
from tests.plugin.server import FLAGS, SEVERAL, PluginHome, answer, named, probe, values
from tests.support.kube import eventually

pytestmark = pytest.mark.engine

MODEL = "gemma"
IMAGES, VIDEOS, FRAMES = 4, 2, 3
MOST_ROUNDS = 8


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers' processes keep their metrics, which /metrics of each adds up."""
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, parts: Path) -> Iterator[Server]:
    version = named("0.32.0+cpu", tmp_path_factory.mktemp("named"))
    home = PluginHome(HOME, {"PROMETHEUS_MULTIPROC_DIR": str(parts)}, before=(version,), program=SEVERAL)
    # With --disable-log-stats the engine of several API servers counts nothing.
    flags = [flag for flag in FLAGS if flag != "--disable-log-stats"]
    args = ["--model", home.model, "--served-model-name", MODEL, "--api-server-count", "2", *flags]
    with serving(home, args, MODEL, tmp_path_factory.mktemp("servers")) as server:
        yield server


def test_is_ready_and_says_so_whichever_server_is_asked(engine: Server, tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    for _ in range(6):
        found = probe(engine.url, "ready", "--model", MODEL, "--marker", marker, "--timeout", "60")
        assert found.returncode == 0, found.stdout + found.stderr


def test_counters_of_both_add_up(engine: Server, parts: Path) -> None:
    """Each answer goes through one of the two; every encoded medium is counted once, whoever took it in."""
    before, rounds = values(engine), 0
    while not rounds or (rounds < MOST_ROUNDS and not all(counted_by_each(parts))):
        rounds += 1
        questions = [[image(), text("What is it?")] for _ in range(IMAGES)]
        questions += [[video(FRAMES), text("What happens?")] for _ in range(VIDEOS)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda question: answer(engine, question), questions))
    expected = rounds * (IMAGES + VIDEOS)
    name = "gemma_engine_encoder_items_total"
    # A step is told to one of the servers, which needn't be the one that answers.
    eventually("all is counted", lambda: values(engine)[name] - before.get(name, 0) >= expected, 30)
    after = values(engine)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    counted = counted_by_each(parts)
    assert len(counted) == 2
    assert all(counted), "each of the servers was told of some steps"
    assert sum(counted) == after["gemma_engine_encoder_items_total"]
    assert grown["gemma_engine_encoder_items_total"] == expected
    assert grown["gemma_engine_encoder_images_total"] == rounds * IMAGES
    assert grown["gemma_engine_encoder_frames_total"] == rounds * VIDEOS * FRAMES
    assert grown["gemma_engine_answered_requests_total"] == expected
    assert after["gemma_engine_unanswered_requests"] == 0
    assert grown["gemma_engine_fallbacks_total"] == grown["gemma_engine_record_errors_total"] == 0


def counted_by_each(parts: Path) -> list[float]:
    """Media by the file that each API server keeps its counters in."""
    found = []
    for path in parts.glob("counter_*.db"):
        metrics = MultiProcessCollector.merge([str(path)])
        samples = [s for metric in metrics for s in metric.samples if s.name == "gemma_engine_encoder_items_total"]
        found += [sum(sample.value for sample in samples)] if samples else []
    return found
