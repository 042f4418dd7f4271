"""Users' own PromQL: one value for one pool, and no text may cost another pool its number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.queries import MOST_QUERIES, PoolQueries, Queries, UserQueries
from gemma_operator.scaling.counters import Missing, MissingReason, PoolId
from tests.support.scripted_prometheus import Reply, Result, ScriptedPrometheus, refusal, scripted_prometheus

POOL = PoolId("ns", "chat", "batch")


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


class Reader:
    """One operator over that server."""

    def __init__(self, server: ScriptedPrometheus) -> None:
        self.server = server
        self.client = PrometheusClient(Access(server.url))
        self.queries = UserQueries(self.client)

    def read(self, queries: Queries) -> dict[str, float | Missing]:
        """Pool -> its backlog, after one tick."""
        self.server.asked.clear()
        self.client.begin()
        found = {pool.pool: answer for pool, answer in self.queries.read(queries).backlog.items()}
        assert len(self.server.asked) <= MOST_QUERIES
        assert found.keys() == {pool.pool for pool in queries}
        return found


def vector(*values: str) -> Result:
    return [{"metric": {"queue": str(n)}, "value": [1, value]} for n, value in enumerate(values)]


def of(*texts: str) -> Queries:
    """A pool per text, named by the text."""
    return {PoolId("ns", "chat", text): PoolQueries(backlog=text) for text in texts}


def test_nothing_is_asked_for_nobody(prometheus: ScriptedPrometheus) -> None:
    assert Reader(prometheus).read({}) == {}
    assert not prometheus.asked


def test_all_pools_are_asked_at_once(prometheus: ScriptedPrometheus) -> None:
    texts = [f"queue_{n}" for n in range(200)]
    prometheus.user_results = {text: vector(str(n)) for n, text in enumerate(texts)}
    assert Reader(prometheus).read(of(*texts)) == {text: n for n, text in enumerate(texts)}
    assert len(prometheus.asked) == 1


def test_backlog_and_offered_load_are_two_answers(prometheus: ScriptedPrometheus) -> None:
    prometheus.user_results = {"depth": vector("12"), "rate": vector("3.5")}
    reader = Reader(prometheus)
    reader.client.begin()
    found = reader.queries.read({POOL: PoolQueries("depth", "rate"), PoolId("ns", "a", "b"): PoolQueries()})
    assert (found.backlog, found.offered) == ({POOL: 12.0}, {POOL: 3.5})


@pytest.mark.parametrize(
    ("result", "reason", "words"),
    [
        ([], MissingReason.NO_SERIES, "gives no series"),
        (vector("1", "2"), MissingReason.QUERY_FAILED, "2 series"),
        (vector("NaN"), MissingReason.QUERY_FAILED, "gives NaN"),
        (vector("+Inf"), MissingReason.QUERY_FAILED, "gives +Inf"),
        (vector("-Inf"), MissingReason.QUERY_FAILED, "gives -Inf"),
        (vector("-1"), MissingReason.QUERY_FAILED, "gives -1"),
        (vector("many"), MissingReason.QUERY_FAILED, "gives many"),
        ("NaN", MissingReason.QUERY_FAILED, "gives NaN"),
        ("text", MissingReason.QUERY_FAILED, "gives text"),
        ([{"metric": {}, "values": [[1, "1"]]}], MissingReason.QUERY_FAILED, "neither a vector nor a scalar"),
        (refusal("parse error: unexpected"), MissingReason.QUERY_FAILED, "parse error: unexpected"),
    ],
)
def test_what_is_no_number_is_missing_and_the_query_is_named(
    prometheus: ScriptedPrometheus, result: Result | str | Reply, reason: MissingReason, words: str
) -> None:
    prometheus.user_results = {"depth": result}
    found = Reader(prometheus).read(of("depth"))["depth"]
    assert isinstance(found, Missing)
    assert found.reason is reason
    assert words in found.message


def test_a_scalar_is_a_value_alone_and_among_others(prometheus: ScriptedPrometheus) -> None:
    prometheus.user_results = {"depth": vector("7"), "const": "5", "other": vector("1")}
    reader = Reader(prometheus)
    for _ in range(3):
        found = reader.read(of("depth", "const", "other"))
    assert found == {"depth": 7, "const": 5, "other": 1}
    assert len(prometheus.asked) == 1, "once it is known for a scalar, it is asked with the others"


@pytest.mark.parametrize("bad", [{0}, {199}, {3, 90, 150}, {10, 11, 12, 13, 14, 15, 16}])
def test_one_bad_text_costs_no_other_pool_its_number(prometheus: ScriptedPrometheus, bad: set[int]) -> None:
    texts = [f"queue_{n:03}" for n in range(200)]
    prometheus.user_results = {t: refusal("parse error") if n in bad else vector("4") for n, t in enumerate(texts)}
    reader = Reader(prometheus)
    for _ in range(20):
        found = reader.read(of(*texts))
    for n, text in enumerate(texts):
        if n in bad:
            assert "parse error" in found[text].message  # type: ignore[union-attr]
        else:
            assert found[text] == 4


def test_a_mended_text_is_read_again(prometheus: ScriptedPrometheus) -> None:
    prometheus.user_results = {"depth": refusal("parse error"), "other": vector("1")}
    reader = Reader(prometheus)
    reader.read(of("depth", "other"))
    prometheus.user_results["depth"] = vector("2")
    for _ in range(2):
        found = reader.read(of("depth", "other"))
    assert found == {"depth": 2, "other": 1}
    assert len(prometheus.asked) == 1


@pytest.mark.parametrize(
    "text", ["sum(a", "a)", '{b="x', "a) or vector(1", 'vector(1), "gemma_ask", "1", "", "") or (a', "[(])"]
)
def test_a_text_can_not_reach_out_of_its_place(prometheus: ScriptedPrometheus, text: str) -> None:
    prometheus.user_results = {"other": vector("1")}
    found = Reader(prometheus).read(of(text, "other"))
    assert found["other"] == 1
    assert "doesn't close" in found[text].message  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ['a{b=")"}', "a{b='('}", "a{b=`)\\`}", "sum(a) # comment (", "# (\nsum(a)", r'a{b="\")"}']
)
def test_brackets_in_strings_and_comments_are_no_brackets(prometheus: ScriptedPrometheus, text: str) -> None:
    prometheus.user_results = {text: vector("1"), "other": vector("2")}
    assert Reader(prometheus).read(of(text, "other")) == {text: 1, "other": 2}


def test_a_server_that_fails_is_not_asked_on(prometheus: ScriptedPrometheus) -> None:
    prometheus.reply = Reply(503)
    found = Reader(prometheus).read(of("a", "b", "c"))
    assert all(isinstance(answer, Missing) and "503" in answer.message for answer in found.values())
    assert len(prometheus.asked) == 1


def test_without_a_prometheus_the_message_says_what_to_set() -> None:
    found = UserQueries(None).read({POOL: PoolQueries("depth")}).backlog[POOL]
    assert isinstance(found, Missing)
    assert found.reason is MissingReason.NOT_CONFIGURED
    assert "metrics.prometheusUrl" in found.message
