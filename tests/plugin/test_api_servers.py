"""Real vLLM with two API servers before one engine: the probe, and counters that add up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.server import Server, image, serving, text, video
from tests.plugin.conftest import HOME
from tests.plugin.server import FLAGS, SEVERAL, PluginHome, answer, named, probe, values

pytestmark = pytest.mark.engine

MODEL = "gemma"
IMAGES, VIDEOS, FRAMES = 12, 6, 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    version = named("0.32.0+cpu", tmp_path_factory.mktemp("named"))
    home = PluginHome(HOME, before=(version,), program=SEVERAL)
    args = ["--model", home.model, "--served-model-name", MODEL, "--api-server-count", "2", *FLAGS]
    with serving(home, args, MODEL, tmp_path_factory.mktemp("servers")) as server:
        yield server


def test_is_ready_and_says_so_whichever_server_is_asked(engine: Server, tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    for _ in range(6):
        found = probe(engine.url, "ready", "--model", MODEL, "--marker", marker, "--timeout", "60")
        assert found.returncode == 0, found.stdout + found.stderr


def test_counters_of_both_add_up(engine: Server, tmp_path: Path) -> None:
    """Each answer goes through one of the two; every encoded medium is counted once, whoever took it in."""
    before = values(engine)
    questions = [[image(), text("What is it?")] for _ in range(IMAGES)]
    questions += [[video(FRAMES), text("What happens?")] for _ in range(VIDEOS)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda question: answer(engine, question), questions))
    after = values(engine)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["gemma_engine_encoder_items_total"] == IMAGES + VIDEOS
    assert grown["gemma_engine_encoder_images_total"] == IMAGES
    assert grown["gemma_engine_encoder_frames_total"] == VIDEOS * FRAMES
    assert grown["gemma_engine_fallbacks_total"] == grown["gemma_engine_record_errors_total"] == 0
    served = set(re.findall(r"\(ApiServer_(\d+) pid=\d+\) INFO: +\S+ - \"POST /v1/chat", engine.log.read_text()))
    assert served == {"0", "1"}, "the kernel gave all connections to one server: the test shows nothing"
