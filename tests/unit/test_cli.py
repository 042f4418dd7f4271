"""The command line: what each command prints, and what a mistake is told."""

from __future__ import annotations

import faulthandler
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator import __version__
from gemma_operator.cli import main
from tests.support.operator import free_port

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples/quick-start/serving.yaml").read_text()

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(autouse=True)
def _no_end_by_the_clock() -> Iterator[None]:
    """An operator that has ended ends its process half a minute later; here that is the tests'."""
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str | bytes], tuple[int, str, str]]:
    """Exit code, output and errors of `render` for a file with this content."""

    def run(content: str | bytes) -> tuple[int, str, str]:
        file = tmp_path / "serving.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return main(["render", str(file)]), *capsys.readouterr()

    return run


def test_crd_prints_the_crd_of_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    held = (ROOT / "charts/gemma-operator/crd/gemmaservings.yaml").read_text()
    assert capsys.readouterr().out == held, (
        "write it anew: gemma-operator crd > charts/gemma-operator/crd/gemmaservings.yaml"
    )


def test_render_prints_every_child_of_every_serving(render: Any) -> None:
    code, out, _ = render(EXAMPLE + "---\n" + EXAMPLE.replace("name: gemma4-e4b", "name: other") + "---\n")
    assert code == 0
    names = [(child["kind"], child["metadata"]["name"]) for child in yaml.safe_load_all(out)]
    assert len(names) == len(set(names)) == 14
    assert "&id" not in out


def test_render_takes_the_settings_of_the_installation(render: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMA_ENGINE_IMAGE", "mirror.example/vllm:v0.32.0")
    assert "mirror.example/vllm:v0.32.0" in render(EXAMPLE)[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must hold GemmaServings, and nothing else"),
        ("kind: Pod", "must hold GemmaServings, and nothing else"),
        ("- 1", "must hold GemmaServings, and nothing else"),
        (EXAMPLE + "---\nkind: Pod\n", "must hold GemmaServings, and nothing else"),
        ("kind: [", "while parsing a flow"),
        (b"\xff\xfe\xfa", "can't decode"),
        ("kind: GemmaServing\n", "metadata.name: required"),
        ("kind: GemmaServing\nmetadata: {name: a}\n", "spec.model: required"),
        (
            EXAMPLE.replace("min: 1, max: 4", "min: 5, max: 4"),
            "replicas: max is 4, min is 5: replicas.max must be at least replicas.min",
        ),
        (EXAMPLE + "  engine: {image: 'vllm:nightly'}\n", "set engine.version"),
        (EXAMPLE + "      extraArgs: [--port=1]\n", "pools.batch.extraArgs[0]: --port can't be set"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(render: Any, content: str | bytes, said: str) -> None:
    code, out, err = render(content)
    assert code == 2
    assert out == ""
    assert err.startswith("gemma-operator: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "why"), [("none.yaml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_told_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    assert main(["render", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"gemma-operator: {tmp_path / name}: can't be read: {why}\n"


def test_a_wrong_setting_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMMA_SCALING_TICK_SECONDS", "soon")
    assert main(["run"]) == 2
    assert (
        capsys.readouterr().err == "gemma-operator: GEMMA_SCALING_TICK_SECONDS is 'soon': it must be a number above 0\n"
    )


def test_without_a_cluster_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.setenv("GEMMA_METRICS_PORT", str(free_port()))
    assert main(["run"]) == 2
    assert "KUBECONFIG names none" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        monkeypatch.setenv("GEMMA_METRICS_PORT", str(taken.getsockname()[1]))
        assert main(["run"]) == 2
    assert "GEMMA_METRICS_PORT is" in capsys.readouterr().err


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "gemma_operator", "--version"]
    done = subprocess.run(command, cwd=ROOT / "operator", capture_output=True, text=True, check=True)
    assert done.stdout == f"{__version__}\n"
