"""gemma-operator top: what it shows at any width, and one clear line where there is nothing to show."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from rich.console import Console

from gemma_operator import cluster
from gemma_operator.cli import main
from gemma_operator.cli.board import History, replicas_from_events, serving, stepped
from gemma_operator.cli.board_text import BARS, board, spark
from tests.support.scripted_prometheus import Reply, scripted_prometheus

NOW = 1_800_000_000.0
CHAT = {
    "apiVersion": "gemmaserving.dev/v1alpha1",
    "kind": "GemmaServing",
    "metadata": {"name": "gemma4-e4b", "namespace": "team-a", "uid": "u"},
    "spec": {"model": {"id": "google/gemma-4-E4B-it"}, "pools": {"interactive": {}, "batch": {}}},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "PoolsReady", "message": "Every pool has its floor serving"},
            {"type": "SLOMet", "status": "False", "reason": "Missed", "message": "pool interactive: 90.0% of 200"},
        ],
        "pools": {
            "interactive": {
                "class": "interactive", "desired": 4, "ready": 3, "pending": 1, "p95Milliseconds": 412,
                "attainment": "90.1% (85.0% to 93.5%)",
                "lastDecision": {"replicas": 4, "reason": "Demand", "message": "3 -> 4 replicas: a load of 2.8 with its headroom needs 4"},
            },
            "batch": {"class": "batch", "desired": 1, "ready": 1, "pending": 0},
        },
    },
}  # fmt: skip
KEY = ("team-a", "gemma4-e4b", "interactive")
P95 = [(NOW - 3600 + 60 * n, 200.0 + 4 * n) for n in range(60)]
HISTORY = {KEY: History(P95, [(NOW - 1800, 2.0), (NOW - 900, 3.0), (NOW, 4.0)])}


def event(message: str, at: str = "2027-01-15T07:50:00Z", reason: str = "Scaled", name: str = "gemma4-e4b") -> Any:
    about = {"kind": "GemmaServing", "namespace": "team-a", "name": name}
    return {"reason": reason, "message": message, "lastTimestamp": at, "involvedObject": about}


def shown(width: int, *found: Any, namespaces: bool = False, note: str = "") -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    console.print(board([serving(one, HISTORY) for one in found], NOW, width, namespaces, note), soft_wrap=True)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_serving_in_forty_columns() -> None:
    assert shown(40, CHAT) == [
        "gemma4-e4b  Ready  SLO missed",
        "  pool interactive: 90.0% of 200",
        "  interactive  3/4 ready +1 starting",
        "    p95 412/300 ms  90.1% in time",
        "    p95 ▄▄▄▅▅▅▅▆▆  engines ▅▅▅▅▆▆▆▆█",
        "    Demand: 3 -> 4 replicas: a load of …",
        "  batch  1/1 ready",
    ]


def test_a_wide_terminal_has_it_in_a_line() -> None:
    lines = shown(120, CHAT, namespaces=True)
    assert lines[0] == "team-a/gemma4-e4b  Ready  SLO missed"
    assert lines[2].startswith("  interactive  3/4 ready +1 starting  p95 412/300 ms  90.1% in time  p95 ▄")
    assert lines[3].strip() == "Demand: 3 -> 4 replicas: a load of 2.8 with its headroom needs 4"


@pytest.mark.parametrize("width", [1, 10, 40, 79, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert (
        max(map(len, shown(width, CHAT, namespaces=True, note="as of 03:00: the API server can't be asked"))) <= width
    )


HALF: dict[str, tuple[Any, str]] = {
    "without a status": ({"metadata": {"name": "x", "namespace": "n"}}, "no status yet: does an operator watch"),
    "being deleted": (
        {
            **CHAT,
            "metadata": {
                **CHAT["metadata"],
                "deletionTimestamp": "2027-01-01T00:00:00Z",
                "finalizers": ["foregroundDeletion"],
            },
        },  # type: ignore[dict-item]
        "being deleted since 2027-01-01T00:00:00Z, held by foregroundDeletion",
    ),
    "with an empty status": ({**CHAT, "status": {}}, "no status yet"),
    "with pools that say nothing": ({**CHAT, "status": {"pools": {"interactive": {}}}}, "engines unknown"),
    "with a spec that breaks the rules": ({**CHAT, "spec": {"pools": 5}}, "p95 412 ms"),
    "of another version": (
        {"metadata": {"name": "x"}, "status": {"pools": [1], "conditions": "no"}},
        "no pools in its status yet",
    ),
}


@pytest.mark.parametrize(("found", "words"), HALF.values(), ids=HALF)
def test_half_an_object_shows_what_there_is(found: Any, words: str) -> None:
    assert words in "\n".join(shown(100, found))


names = st.sampled_from(["interactive", "desired", "lastDecision", "type"])
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"metadata": junk, "spec": junk, "status": st.fixed_dictionaries({"conditions": junk, "pools": junk})}
    )
)
def test_no_object_brings_it_down(found: Any) -> None:
    assert shown(60, found)


def test_events_tell_how_the_size_changed() -> None:
    events = [
        event("pool interactive: 3 -> 4 replicas: a load of 2.8", "2027-01-15T07:55:00Z"),
        event("pool interactive: 2 -> 3 replicas", "2027-01-15T07:45:00.123456Z"),
        event("pool interactive: 9 -> 8 replicas", reason="Other"),
        event("SLOMet is False: no replicas"),
    ]
    found = replicas_from_events(events, NOW)
    assert [value for _, value in found[KEY]] == [2, 3, 4, 4]
    assert found.keys() == {KEY}


def test_a_spark_is_of_so_many_cells_and_blank_where_nothing_is_known() -> None:
    assert spark([0, 150, 300, 600, None, 900], 600) == f"{BARS[0]}{BARS[2]}{BARS[4]}{BARS[7]} {BARS[7]}"
    assert spark([0, 0], 0) == BARS[0] * 2
    assert stepped([(10, 1.0), (20, 5.0)], 0, 40, 4) == [1.0, 5.0, 5.0, 5.0]
    assert stepped([(35, 1.0)], 0, 40, 4) == [None, None, None, 1.0]
    assert stepped([], 0, 40, 4) == []


# The command


class Api:
    """The API server as it answers."""

    def __init__(self, servings: Any, events: Any = ()) -> None:
        self.servings, self.events, self.asked = servings, events, []  # type: ignore[var-annotated]

    async def list(self, _: Any, kind: str, namespace: str, selector: str, fields: str = "") -> Any:
        self.asked.append((kind, namespace, fields))
        found = self.events if kind == "Event" else self.servings
        if isinstance(found, Exception):
            raise found
        return list(found)


def serve(monkeypatch: pytest.MonkeyPatch, servings: Any, events: Any = ()) -> Api:
    api = Api(servings, events)

    async def listed(self: Any, *arguments: Any) -> Any:
        return await api.list(self, *arguments)

    monkeypatch.setattr(cluster.Cluster, "list", listed)
    return api


def test_once(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    api = serve(monkeypatch, [CHAT], [event("pool interactive: 3 -> 4 replicas")])
    assert main(["top", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gemma4-e4b  Ready  SLO missed"
    assert max(map(len, lines)) <= 40
    assert api.asked == [
        ("GemmaServing", "team-a", ""),
        ("Event", "team-a", "involvedObject.kind=GemmaServing,reason=Scaled"),
    ]
    assert main(["top", "-A"]) == 0, "no terminal: once"
    assert capsys.readouterr().out.startswith("team-a/gemma4-e4b")
    assert api.asked[-1][1] == ""


def test_json_for_scripts(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, [CHAT], cluster.Refused("events is forbidden"))
    assert main(["top", "gemma4-e4b", "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["servings"]
    assert (found["namespace"], found["name"], found["state"], found["slo"]) == (
        "team-a",
        "gemma4-e4b",
        "Ready",
        "False",
    )
    pool = found["pools"][0]
    assert (pool["name"], pool["ready"], pool["p95"], pool["target"], pool["reason"]) == (
        "interactive",
        3,
        412,
        300,
        "Demand",
    )
    serve(monkeypatch, [])
    assert main(["top", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"servings": []}


@pytest.mark.parametrize(
    ("servings", "arguments", "code", "words"),
    [
        ([], ["--once"], 0, "there is no GemmaServing in namespace team-a"),
        ([], ["-A"], 0, "there is no GemmaServing in any namespace"),
        ([CHAT], ["other"], 2, "there is no GemmaServing other in namespace team-a"),
        (cluster.Refused('gemmaservings is forbidden: User "me" cannot list'), [], 2, "can't be read: gemmaservings is forbidden"),
    ],
)  # fmt: skip
def test_nothing_to_show_is_one_clear_line(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    servings: Any, arguments: list[str], code: int, words: str,
) -> None:  # fmt: skip
    serve(monkeypatch, servings)
    assert main(["top", *arguments]) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_a_cluster_without_the_chart(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    serve(monkeypatch, ResourceNotFoundError("No matches found"))
    assert main(["top"]) == 2
    assert "this cluster knows no GemmaServing: is the chart installed?" in capsys.readouterr().err


def test_without_an_api_server(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    err = capsys.readouterr().err
    assert "the API server can't be asked" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan", "inf"])
def test_an_interval_that_is_none(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", f"--interval={interval}"])
    assert f"'{interval}' is not a number of seconds from 1" in capsys.readouterr().err


def test_a_prometheus_that_is_none(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    serve(monkeypatch, [CHAT])
    for url in ("http://127.0.0.1:9", "nonsense"):
        assert main(["top", "--once", "--prometheus", url]) == 2
        err = capsys.readouterr().err
        assert "--prometheus: Prometheus at" in err
        assert err.count("\n") == 1


def test_history_from_prometheus(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    serve(monkeypatch, [CHAT])
    metric = dict(zip(("namespace", "serving", "pool"), KEY, strict=True))
    result = [{"metric": metric, "values": [[NOW, "250"], [NOW + 60, "500"]]}]
    with scripted_prometheus() as prometheus:
        prometheus.reply = Reply(
            body=json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
        )
        assert main(["top", "-o", "json", "--prometheus", prometheus.url]) == 0
        (found,) = json.loads(capsys.readouterr().out)["servings"]
        assert found["pools"][0]["history"]["p95"] == [[NOW, 250], [NOW + 60, 500]]
        prometheus.reply = Reply(
            body=b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}'
        )
        assert main(["top", "--once", "--prometheus", prometheus.url]) == 2
        assert "answered something else" in capsys.readouterr().err
