"""The flags that the operator renders, taken by a real vLLM that then serves text, image and video."""

import json
import re
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server import Home, Server, image, stop, text, video

pytestmark = pytest.mark.engine


def metric(server: Server, series: str) -> float:
    """The value of the first series whose name and labels match a pattern."""
    found = re.search(rf"^{series} (\S+)$", server.get("/metrics"), re.MULTILINE)
    assert found, f"no series like {series}"
    return float(found[1])


def test_serves_the_model_under_its_public_name(engine: Server) -> None:
    names = [model["id"] for model in json.loads(engine.get("/v1/models"))["data"]]
    assert names == ["google/gemma-4-E4B-it"]


@pytest.mark.parametrize(
    ("content", "least_prompt_tokens"),
    [
        pytest.param([text("What is the answer? " * 20)], 60, id="text"),
        pytest.param([image(), text("What is in this picture?")], 256, id="image"),
        pytest.param([video(frames=6), text("What happens?")], 6 * 60, id="video"),
    ],
)
def test_answers(engine: Server, content: list[dict[str, Any]], least_prompt_tokens: int) -> None:
    *chunks, last = engine.ask(content, tokens=8)
    assert last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens"] > least_prompt_tokens
    assert any(chunk["choices"][0]["finish_reason"] == "length" for chunk in chunks)


def test_refuses_more_media_than_the_pool_allows(engine: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        list(engine.ask([video(frames=1), video(frames=1)]))
    assert refused.value.code == 400


def test_counts_ttft_with_an_edge_at_the_objective(engine: Server) -> None:
    """A batch pool has no objective; the default edges have 0.3 s all the same."""
    list(engine.ask("Hello"))
    within = metric(engine, r'vllm:time_to_first_token_seconds_bucket\{[^}]*le="0\.3"[^}]*\}')
    count = metric(engine, r"vllm:time_to_first_token_seconds_count\{[^}]*\}")
    assert 0 <= within <= count
    assert count >= 1


def test_prefix_caching_is_on_for_batch_only(engine: Server, pool: str) -> None:
    question = "The same long beginning, again and again. " * 60
    for _ in range(2):
        list(engine.ask(question))
    hits = metric(engine, r"vllm:prefix_cache_hits_total\{[^}]*\}")
    assert (hits > 0) == (pool == "batch")


def test_drafts_tokens_for_batch_only(engine: Server, pool: str) -> None:
    list(engine.ask("Hello", tokens=16))
    drafted = "vllm:spec_decode_num_draft_tokens_total{" in engine.get("/metrics")
    assert drafted == (pool == "batch")


def test_answers_what_it_began_when_it_is_told_to_stop(engine: Server) -> None:
    """The last test of a server: it stops it."""
    answer = engine.ask("Count to a thousand.", tokens=100)
    next(answer)
    engine.process.terminate()
    *_, last = answer
    assert last["usage"]["completion_tokens"] == 100
    stop(engine.process)
    assert engine.process.returncode == 0, engine.log.read_text()[-3000:]


def test_an_unknown_flag_stops_the_engine_with_2(home: Home, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    process = home.start(["--model", home.model, "--no-such-flag"], tmp_path, log)
    assert process.wait(120) == 2
    assert "unrecognized arguments: --no-such-flag" in log.read_text()
