"""Real vLLM on the CPU, one server at a time: two would need more cores than a small machine has."""

from collections.abc import Iterator

import pytest

from gemma_operator.api.serving import Spec
from gemma_operator.engine.commandline import engine_command
from gemma_operator.engine.view import PoolView, served_name
from tests.engine.server import Home, Server, serving
from tools.images.engine_venv import engine_venv

VLLM = (0, 32, 0)


@pytest.fixture(scope="session")
def home(pytestconfig: pytest.Config) -> Home:
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return Home(engine_venv())


def tiny_serving(home: Home) -> Spec:
    """The defaults of both pools, as far as a CPU can hold them; eager, since there is no compiler in the engine's image."""
    cpu = {"gpus": 0, "maxModelLen": 4096, "drainSeconds": 120, "extraArgs": ["--enforce-eager"]}
    return Spec.model_validate(
        {
            "model": {"id": home.model, "servedName": "google/gemma-4-E4B-it"},
            "pools": {
                "interactive": cpu,
                "batch": {**cpu, "mtp": {"enabled": True, "tokens": 4, "assistant": home.assistant}},
            },
        }
    )


@pytest.fixture(scope="module", params=["interactive", "batch"])
def pool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(pool: str, home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An engine of the pool, started with the operator's arguments. Where it listens is ours to choose."""
    spec = tiny_serving(home)
    with serving(
        home, engine_command(PoolView(spec, pool, VLLM)).args, served_name(spec), tmp_path_factory.mktemp(pool)
    ) as server:
        yield server
