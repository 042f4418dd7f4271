"""Golden objects on real vLLM: the rendered command line starts a server that answers. Only the weights and the GPU are others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.api.serving import Spec
from gemma_operator.engine.commandline import engine_command
from gemma_operator.engine.progress import marks
from gemma_operator.engine.view import PoolView, served_name
from tests.engine.conftest import VLLM
from tests.engine.server import Home, Server, image, serving, text

GOLDEN = Path(__file__).parents[1] / "golden"
# (golden object, pool, what a request carries)
STARTS = [
    ("minimal", "batch", [text("Hi"), image()]),
    ("text-only", "chat-eu", [text("Hi")]),
    ("mtp-adaptive", "interactive", [text("Hi")]),
]


def on_this_machine(case: str, pool: str, home: Home) -> Spec:
    """The golden object with weights that are here, on the CPU; everything else stays as it was written."""
    body: dict[str, Any] = yaml.safe_load((GOLDEN / f"{case}.serving.yaml").read_text())["spec"]
    pools = body.get("pools") or {}
    own = pools.get(pool) or {}
    mtp = own.get("mtp", {"enabled": pool == "batch"})
    drafted = {**mtp, "assistant": home.assistant} if mtp["enabled"] else mtp
    cpu = {"gpus": 0, "maxModelLen": 4096, "nodeSelector": {}, "mtp": drafted, "extraArgs": ["--enforce-eager"]}
    model = {**body["model"], "checkpoint": home.model}
    model.pop("revision", None)
    return Spec.model_validate({"model": model, "pools": {pool: {**own, **cpu}}})


@pytest.fixture(params=STARTS, ids=[f"{case}-{pool}" for case, pool, _ in STARTS])
def started(
    request: pytest.FixtureRequest, home: Home, tmp_path: Path
) -> Iterator[tuple[Server, list[dict[str, Any]], PoolView]]:
    case, pool, content = request.param
    view = PoolView(on_this_machine(case, pool, home), pool, VLLM)
    with serving(home, engine_command(view).args, served_name(view.spec), tmp_path) as server:
        yield server, content, view


def test_a_golden_object_starts_and_answers(started: tuple[Server, list[dict[str, Any]], PoolView]) -> None:
    server, content, view = started
    chunks = list(server.ask(content))
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    shown = server.get("/metrics")
    assert 'le="0.3"' in shown
    assert f'model_name="{served_name(view.spec)}"' in shown
    assert ("vllm:spec_decode_num_drafts_total" in shown) == bool(view.pool.mtp and view.pool.mtp.enabled)
    stamped = "\n".join(
        f"2026-01-01T00:00:{second % 60:02}Z {line}" for second, line in enumerate(server.log.read_text().splitlines())
    )
    assert "Loading" in dict(marks(stamped)), "the log tells no phase of the start (an eager engine compiles nothing)"
