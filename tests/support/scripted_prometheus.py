"""A Prometheus by script: a real HTTP server on loopback that answers the operator's queries from engines made up by a test.

It evaluates nothing: it knows the operator's queries by their texts, and what their results look like (the form was
checked against the real program, see test_metrics_prometheus.py).
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gemma_operator.metrics import names
from gemma_operator.metrics.prometheus import COUNTERS_QUERY, UNLABELLED_QUERY, WITHOUT_ITL_QUERY

EDGES = ("0.1", "0.25", "0.3", "0.5", "1.0", "+Inf")
Result = list[dict[str, Any]]


@dataclass
class ScriptedEngine:
    """One engine as a Prometheus has it. `good` requests were at most 0.3 s from their first token, `bad` ones over 1 s."""

    pod_uid: str
    good: float = 0
    bad: float = 0
    running: float = 1
    waiting: float = 0
    rejected: float = 0
    unanswered: float | None = None
    """As our plugin counts them; None where the engine hasn't it."""
    prompt_tokens: float = 0
    at: float | None = None
    """Time of the scrape; the server's clock where None."""
    started_at: float = 1_700_000_000
    labels: dict[str, str] = field(default_factory=lambda: {"job": "gemma-engines"})
    extra: dict[str, str] = field(default_factory=dict)
    """Values that stand in place of what the engine would say, by name of the metric: "NaN", "+Inf"."""
    hidden: tuple[str, ...] = ()
    """Metrics that it doesn't export."""
    slow_tokens: float | None = None
    """Tokens that came over 0.1 s after the one before; as many came at once as `good` says. Not exported where None."""
    renamed: Callable[[str], str] = str

    def series(self, now: float) -> Result:
        """What the operator's query gives of this engine."""
        at = now if self.at is None else self.at
        shared = {"pod_uid": self.pod_uid, **self.labels}
        found: Result = [{"metric": {**shared, "of": "scraped_at"}, "value": [now, str(at)]}]

        def add(name: str, value: float, **labels: str) -> None:
            if name not in self.hidden:
                metric = {"__name__": self.renamed(name), "engine": "0", **shared, **labels}
                found.append({"metric": metric, "value": [now, self.extra.get(name, str(value))]})

        for edge in EDGES:
            low = float(edge) < 0.3
            count = self.good * 0.5 if low else self.good + (self.bad if edge == "+Inf" else 0)
            add("vllm:time_to_first_token_seconds_bucket", count, le=edge)
        if self.slow_tokens is not None:
            add("vllm:inter_token_latency_seconds_bucket", self.good, le="0.1")
            add("vllm:inter_token_latency_seconds_bucket", self.good + self.slow_tokens, le="+Inf")
        add("vllm:num_requests_running", self.running)
        add("vllm:num_requests_waiting", self.waiting)
        add("vllm:request_success_total", self.good + self.bad, finished_reason="stop")
        add("vllm:admission_rejections_total", self.rejected, reason="max_num_queued_reqs")
        add("vllm:prompt_tokens_by_source_total", self.prompt_tokens, source="local_compute")
        add("vllm:prompt_tokens_by_source_total", 0, source="local_cache_hit")
        if self.unanswered is not None:
            add("gemma_engine_unanswered_requests", self.unanswered)
            add("gemma_engine_answered_requests_total", self.good + self.bad)
        add("process_start_time_seconds", self.started_at)
        return found


@dataclass(frozen=True)
class Reply:
    """What the server says in place of its script."""

    status: int = 200
    body: bytes | None = b""
    """None: the connection is cut."""
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def success(result: Any, kind: str = "vector") -> Reply:
    """A good answer of Prometheus's API."""
    return Reply(body=json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode())


def refusal(error: str, status: int = 400) -> Reply:
    """Prometheus's answer to a query that it can't carry out."""
    return Reply(status, json.dumps({"status": "error", "errorType": "bad_data", "error": error}).encode())


class ScriptedPrometheus(ThreadingHTTPServer):
    """Answers from `engines` and `user_results`, unless `reply` says something else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.now = 1_800_000_000.0
        self.engines: list[ScriptedEngine] = []
        self.distort: Callable[[list[ScriptedEngine]], list[ScriptedEngine]] | None = None
        """What a fault makes of the engines."""
        self.unlabelled = False
        self.user_results: dict[str, Result | str | Reply] = {}
        """A user's query -> its vector, its scalar, or how it is refused."""
        self.reply: Reply | None = None
        self.asked: list[str] = []
        self.requests: list[BaseHTTPRequestHandler] = []
        self.open = threading.Event()
        """While it is not set, no request is answered."""
        self.open.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error here."""

    def answer(self, query: str) -> Reply:
        """The reply to one query."""
        if self.reply is not None:
            return self.reply
        if query in (COUNTERS_QUERY, WITHOUT_ITL_QUERY):
            engines = self.distort(self.engines) if self.distort else self.engines
            unasked = names.ITL if query == WITHOUT_ITL_QUERY else ()
            series = [item for engine in engines for item in engine.series(self.now)]
            return success([item for item in series if item["metric"].get("__name__") not in unasked])
        if query == UNLABELLED_QUERY:
            return success([{"metric": {}, "value": [self.now, "1"]}] if self.unlabelled else [])
        if query in self.user_results:
            found = self.user_results[query]
            if isinstance(found, Reply):
                return found
            return success([self.now, found], "scalar") if isinstance(found, str) else success(found)
        return self._joined(query)

    def _joined(self, query: str) -> Reply:
        parts = re.findall(r'label_replace\((vector\()?\n(.*?)\n\)?, "gemma_ask", "(\d+)", "", ""\)', query, re.DOTALL)
        if not parts:
            return refusal(f"unknown query {query}")
        joined: Result = []
        for as_vector, text, number in parts:
            found = self.user_results.get(text, [])
            if isinstance(found, Reply):
                return found
            if isinstance(found, str) and not as_vector:
                return refusal("expected type instant vector in call to function label_replace, got scalar")
            listed: Result = [{"metric": {}, "value": [self.now, found]}] if isinstance(found, str) else found
            joined += [{**item, "metric": {**item["metric"], "gemma_ask": number}} for item in listed]
        return success(joined)


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedPrometheus

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        query = asked["query"][0]
        assert re.fullmatch(r"\d+ms", asked["timeout"][0]), "what Prometheus takes as a duration"
        self.server.asked.append(query)
        self.server.requests.append(self)
        self.server.open.wait()
        reply = self.server.answer(query)
        if reply.body is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(reply.status)
        for header, value in reply.headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def scripted_prometheus() -> Iterator[ScriptedPrometheus]:
    """A server that runs until the end of the block."""
    with ScriptedPrometheus() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.open.set()
            server.shutdown()


def seen_twice(engine: ScriptedEngine, **changes: Any) -> ScriptedEngine:
    """The same engine as a second scrape job has it."""
    return replace(engine, labels={**engine.labels, "job": "another"}, **changes)
