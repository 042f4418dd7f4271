"""gemma-operator explain: the sum in words, and one clear line where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma_operator import cluster
from gemma_operator.api.serving import KIND
from gemma_operator.cli import main
from gemma_operator.cli.explain import text_of
from gemma_operator.scaling.counters import Missing, MissingReason
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Policy, Slo
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling_status import PoolScaling, pool_status

POLICY = Policy(1, 5, Slo(95, 0.3))


def decided() -> Decision:
    gap = Missing(MissingReason.QUERY_FAILED, "Prometheus at http://p can't be reached")
    decision, _ = decide(POLICY, Fleet(desired=3), Observation(Metrics.BLIND, missing=gap), Memory(), 1000.0)
    return decision


def status(**pools: Any) -> dict[str, Any]:
    return {"status": {"pools": json.loads(json.dumps(pools))}}


def answer(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[tuple[str, str, str]]:
    """The API server as it answers; returns what is asked of it."""
    asked: list[tuple[str, str, str]] = []

    async def get(_: Any, kind: str, namespace: str, name: str) -> Any:
        asked.append((kind, namespace, name))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cluster.Cluster, "get", get)
    return asked


def test_the_sum_of_each_pool_is_printed(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = pool_status(PoolScaling(POLICY, decided()))
    asked = answer(monkeypatch, status(interactive=shown, batch={"desired": 0}))
    assert main(["explain", "chat"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pool interactive: held at 3: Prometheus at http://p can't be reached")
    assert "bounds       1 to 5" in out
    assert out.endswith("pool batch: no decision has been made yet\n")
    assert asked == [(KIND, "team-a", "chat")]
    assert main(["explain", "chat", "-n", "other", "--pool", "batch"]) == 0
    assert capsys.readouterr().out == "pool batch: no decision has been made yet\n"
    assert asked[-1] == (KIND, "other", "chat")


@pytest.mark.parametrize(
    ("found", "arguments", "words"),
    [
        (None, [], "there is no GemmaServing chat in namespace team-a"),
        ({}, [], "has no status yet"),
        (status(batch={}), ["--pool", "interactive"], "has no pool interactive: it has batch"),
        ({}, ["--pool", "interactive"], "its status shows none yet"),
        (cluster.Refused('gemmaservings "chat" is forbidden'), [], "can't be read: gemmaservings"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    found: Any, arguments: list[str], words: str,
) -> None:  # fmt: skip
    answer(monkeypatch, found)
    assert main(["explain", "chat", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_without_an_api_server(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "chat"]) == 2
    err = capsys.readouterr().err
    assert "the API server can't be asked" in err
    assert err.count("\n") == 1


def test_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "none")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", nowhere)
    assert main(["explain", "chat"]) == 2
    assert "no cluster to work for" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["not: [valid", "hello", "{}", "- 1", "\x00", "current-context: c"])
@pytest.mark.parametrize("command", [["explain", "chat"], ["top"]], ids=" ".join)
def test_a_kubeconfig_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: list[str], content: str,
) -> None:  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "no cluster to work for" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("record", [{}, {"record": {"at": "x"}}, {"record": {"unknown": 1}}])
def test_a_record_of_another_version_is_told_by_its_message(record: dict[str, Any]) -> None:
    pool = {"lastDecision": {"replicas": 3, "reason": "Steady", "message": "held at 3: all is well", **record}}
    assert text_of("interactive", pool) == "pool interactive: held at 3: all is well (Steady)"
