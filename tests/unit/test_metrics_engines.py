"""Reading the engines themselves: side by side, each with its own failures."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gemma_operator.metrics import engines as module
from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.metrics.queries import PoolQueries
from gemma_operator.scaling.counters import Missing, MissingReason, PoolId, Scrape
from tests.support.scripted_prometheus import scripted_prometheus

NOW = 1_800_000_000.0
EXPOSITION = (Path(__file__).parent / "data" / "vllm-0.32-metrics.txt").read_bytes()
POOL = PoolId("ns", "chat", "batch")


class Engines(ThreadingHTTPServer):
    """Several engines behind one port, told apart by the path; `open` lets the slow one answer."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.open = threading.Event()
        self.busy, self.busiest = 0, 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error here."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: Engines

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        name = self.path.strip("/").split("-")[0]
        if name == "slow":
            self.server.open.wait()
        with self.server.lock:
            self.server.busy -= 1
        if name == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        bodies = {
            "html": b"<html>",
            "renamed": EXPOSITION.replace(b"vllm:num_requests_waiting", b"vllm:waiting"),
            "binary": b"vllm:num_requests_running \xff\xfe\n",
            "broken": b'vllm:num_requests_running{engine="0" 1.0\nvllm:num_requests_waiting\n',
            "endless": b"#" * (module.MOST_BYTES + 1),
            "nan": EXPOSITION.replace(b'm_requests_running{engine="0",model_name="google/gemma-4-E4B-it"} 0.0',
                                      b'm_requests_running{engine="0",model_name="google/gemma-4-E4B-it"} NaN'),
        }  # fmt: skip
        self.send_response({"error": 500, "redirect": 302}.get(name, 200))
        self.send_header("Location", "/good")
        self.end_headers()
        self.wfile.write(bodies.get(name, EXPOSITION))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.open.set()
        server.shutdown()


def test_engines_are_read_as_they_are(engines: Engines) -> None:
    found = EngineSource().read(NOW, {f"u{n}": engines.url(f"good-{n}") for n in range(50)}, {})
    assert isinstance(found, Scrape)
    assert len(found.engines) == 50
    engine = found.engines["u7"]
    assert (engine.pod_uid, engine.prompt_tokens, engine.ttft[-1][1]) == ("u7", 8714, 21)
    assert NOW <= engine.at < NOW + 60
    assert engines.busiest <= module.MOST_AT_ONCE


@pytest.mark.parametrize(
    "name", ["error", "redirect", "html", "renamed", "binary", "broken", "endless", "nan", "reset", "nobody"]
)
def test_an_engine_that_fails_is_left_out(engines: Engines, name: str) -> None:
    url = "http://127.0.0.1:9/metrics" if name == "nobody" else engines.url(name)
    found = EngineSource().read(NOW, {"u1": engines.url("good"), "u2": url}, {})
    assert isinstance(found, Scrape)
    assert set(found.engines) == {"u1"}


def test_an_engine_that_does_not_answer_costs_no_other_its_turn(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENGINE_SECONDS", 0.3)
    found = EngineSource().read(NOW, {"u1": engines.url("slow"), "u2": engines.url("good")}, {})
    assert isinstance(found, Scrape)
    assert set(found.engines) == {"u2"}


def test_a_read_ends_in_its_time_whatever_the_engines_do(engines: Engines) -> None:
    slow = {f"u{n}": engines.url(f"slow-{n}") for n in range(100)}
    found = EngineSource(timeout_seconds=0.3).read(NOW, slow, {})
    assert isinstance(found, Missing)
    assert "its turn did not come" in found.message


def test_where_none_can_be_reached_the_network_policy_is_named() -> None:
    found = EngineSource().read(NOW, {f"u{n}": "http://127.0.0.1:9/metrics" for n in range(3)}, {})
    assert isinstance(found, Missing)
    assert found.reason is MissingReason.QUERY_FAILED
    assert "none of 3 engines" in found.message
    assert "NetworkPolicy" in found.message


def test_where_all_lack_a_metric_it_is_named(engines: Engines) -> None:
    found = EngineSource().read(NOW, {"u1": engines.url("renamed")}, {})
    assert isinstance(found, Missing)
    assert found.reason is MissingReason.NO_SERIES
    assert "vllm:num_requests_waiting is missing" in found.message


def test_no_engine_is_no_fault() -> None:
    assert EngineSource().read(NOW, {}, {}) == Scrape({})


def test_queries_of_users_go_to_the_prometheus_if_there_is_one(engines: Engines) -> None:
    queries = {POOL: PoolQueries(backlog="depth")}
    targets = {"u1": engines.url("good")}
    without = EngineSource().read(NOW, targets, queries)
    assert isinstance(without, Scrape)
    assert isinstance(without.backlog[POOL], Missing)
    with scripted_prometheus() as prometheus:
        prometheus.user_results = {"depth": "3"}
        found = EngineSource(PrometheusClient(Access(prometheus.url))).read(NOW, targets, queries)
        assert isinstance(found, Scrape)
        assert found.backlog == {POOL: 3}
        unauthorised = PrometheusClient(Access(prometheus.url, token_file=Path("/nowhere/token")))
        found = EngineSource(unauthorised).read(NOW, targets, queries)
    assert isinstance(found, Scrape)
    assert found.backlog[POOL].reason is MissingReason.UNAUTHORIZED  # type: ignore[union-attr]
    assert set(found.engines) == {"u1"}
