"""Reading engines from Prometheus: the answers it gives, the faults it has, and the real program."""

from __future__ import annotations

import gc
import json
import math
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.prometheus import COUNTERS_QUERY, UNLABELLED_QUERY, PrometheusSource
from gemma_operator.metrics.queries import PoolQueries
from gemma_operator.scaling.counters import Missing, MissingReason, PoolId, Scrape
from tests.support.scripted_prometheus import (
    Reply,
    ScriptedEngine,
    ScriptedPrometheus,
    refusal,
    scripted_prometheus,
    seen_twice,
    success,
)
from tools.cluster.binaries import ensure_one

NOW = 1_800_000_000.0


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        server.engines = [ScriptedEngine("u1", good=9, bad=1, running=2, waiting=1, at=NOW - 2)]
        yield server


def source(server: ScriptedPrometheus | str, timeout: float = 5, **access: Any) -> PrometheusSource:
    url = server if isinstance(server, str) else server.url
    return PrometheusSource(PrometheusClient(Access(url, **access), timeout))


def read(server: ScriptedPrometheus | PrometheusSource, now: float = NOW) -> Scrape:
    reader = source(server) if isinstance(server, ScriptedPrometheus) else server
    found = reader.read(now, {}, {})
    assert isinstance(found, Scrape), found
    return found


def missing(server: ScriptedPrometheus | PrometheusSource | str, now: float = NOW) -> Missing:
    reader = server if isinstance(server, PrometheusSource) else source(server)
    found = reader.read(now, {}, {})
    assert isinstance(found, Missing)
    assert len(found.message) < 600
    return found


def test_one_query_reads_all_engines_of_the_cluster(prometheus: ScriptedPrometheus) -> None:
    prometheus.engines += [ScriptedEngine(f"u{n}", good=n) for n in range(2, 50)]
    engines = read(prometheus).engines
    assert len(engines) == 49
    first = engines["u1"]
    assert (first.at, first.waiting, first.running, first.rejected) == (NOW - 2, 1, 2, 0)
    assert dict(first.ttft) == {0.1: 4.5, 0.25: 4.5, 0.3: 9, 0.5: 9, 1: 9, math.inf: 10}
    assert prometheus.asked == [COUNTERS_QUERY]


def test_an_engine_that_lacks_a_required_metric_is_left_out_and_others_stay(prometheus: ScriptedPrometheus) -> None:
    prometheus.engines.append(ScriptedEngine("u2", hidden=("vllm:num_requests_waiting",)))
    prometheus.engines.append(ScriptedEngine("u3", extra={"vllm:num_requests_running": "NaN"}))
    assert set(read(prometheus).engines) == {"u1"}


@pytest.mark.parametrize("order", [1, -1])
def test_an_engine_scraped_twice_counts_once_by_its_latest_scrape(prometheus: ScriptedPrometheus, order: int) -> None:
    old, new = ScriptedEngine("u1", good=5, waiting=8, at=NOW - 8), ScriptedEngine("u1", good=9, waiting=1, at=NOW - 2)
    prometheus.engines = [old, seen_twice(new)][::order]
    [engine] = read(prometheus).engines.values()
    assert (engine.at, engine.ttft[-1][1], engine.waiting) == (NOW - 2, 9, 1)
    prometheus.engines = [ScriptedEngine("u1", good=5, at=NOW), seen_twice(ScriptedEngine("u1", good=9, at=NOW))][
        ::order
    ]
    [engine] = read(prometheus).engines.values()
    assert engine.ttft[-1][1] == 9


def test_a_scrape_that_broke_off_does_not_hide_a_whole_one(prometheus: ScriptedPrometheus) -> None:
    broken = ScriptedEngine("u1", good=9, at=NOW, hidden=("vllm:num_requests_running",))
    prometheus.engines = [seen_twice(broken), ScriptedEngine("u1", good=5, at=NOW - 5)]
    assert read(prometheus).engines["u1"].at == NOW - 5


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refusal("parse error: unexpected end"), "parse error"),
        (Reply(404, b"404 page not found"), "404"),
        (refusal("query processing would load too many", 422), "too many"),
        (Reply(503, b"x" * 100_000), "503"),
        (Reply(500), "500"),
        (Reply(204), "204"),
        (Reply(200), "EOF while parsing"),
        (Reply(200, b"<html><title>Sign in</title></html>"), "expected value"),
        (Reply(200, b'{"status":"success","data":{"resultType":"vector","res'), "EOF while parsing"),
        (Reply(200, b'{"status":"error"}'), "data"),
        (Reply(200, b"null"), "TypeError"),
        (Reply(200, b"[]"), "TypeError"),
        (Reply(200, b"[" * 100_000), "recursion limit"),
        (Reply(200, b"\xff\xfe\x00"), "Error"),
        (success([NOW, "5"], "scalar"), "else than a vector"),
        (success([NOW, "text"], "string"), "else than a vector"),
        (success("text", "string"), "else than a vector"),
        (success([{"metric": {"pod_uid": "u1"}, "values": [[1, "1"]]}], "matrix"), "else than a vector"),
        (success(None), "else than a vector"),
        (success([{"metric": {}, "value": [1, "1"]}]), "else than a vector"),
        (success([{"metric": {"pod_uid": "u1", "__name__": "x"}, "value": [1, "many"]}]), "else than a vector"),
        (success([{"metric": {"pod_uid": "u1"}, "value": [1, "1"]}]), "else than a vector"),
        (success([{"metric": {"pod_uid": "u1", "__name__": "x"}, "value": []}]), "else than a vector"),
        (Reply(200, None), "Connection"),
    ],
)
def test_faults_become_missing_with_a_readable_message(
    prometheus: ScriptedPrometheus, reply: Reply, words: str
) -> None:
    prometheus.reply = reply
    found = missing(prometheus)
    assert found.reason is MissingReason.QUERY_FAILED
    assert words in found.message
    assert prometheus.url in found.message
    assert len(prometheus.asked) == 1, "a failed query is not repeated within the tick"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_told_apart(prometheus: ScriptedPrometheus, status: int) -> None:
    prometheus.reply = Reply(status, b"<html>no</html>")
    found = missing(prometheus)
    assert found.reason is MissingReason.UNAUTHORIZED
    assert str(status) in found.message
    assert "metrics.prometheusTokenFile" in found.message


def test_where_nothing_is_scraped_the_podmonitor_is_named(prometheus: ScriptedPrometheus) -> None:
    prometheus.engines = []
    found = missing(prometheus)
    assert found.reason is MissingReason.NO_SERIES
    assert "podMonitor.enabled" in found.message
    assert "vllm:time_to_first_token_seconds_bucket" in found.message
    assert prometheus.asked == [COUNTERS_QUERY, UNLABELLED_QUERY]


def test_where_no_engine_runs_the_users_queries_are_asked_all_the_same(prometheus: ScriptedPrometheus) -> None:
    """What waits outside of a pool that was scaled to zero is all that can wake it."""
    prometheus.engines, pool = [], PoolId("ns", "chat", "batch")
    prometheus.user_results = {"sum(queue)": [{"metric": {}, "value": [NOW, "7"]}]}
    found = source(prometheus).read(NOW, {}, {pool: PoolQueries("sum(queue)")})
    assert isinstance(found, Scrape)
    assert (found.engines, found.backlog) == ({}, {pool: 7})
    assert found.missing
    assert found.missing.reason is MissingReason.NO_SERIES


def test_engines_without_the_label_are_told_apart_from_none(prometheus: ScriptedPrometheus) -> None:
    prometheus.engines, prometheus.unlabelled = [], True
    found = missing(prometheus)
    assert found.reason is MissingReason.NO_SERIES
    assert "without the target label pod_uid" in found.message


@pytest.mark.parametrize("name", ["vllm:time_to_first_token_seconds_bucket", "vllm:num_requests_waiting"])
def test_a_renamed_metric_is_named(prometheus: ScriptedPrometheus, name: str) -> None:
    prometheus.engines = [ScriptedEngine("u1", renamed=lambda n: n.replace(name, "vllm:new"))]
    found = missing(prometheus)
    assert found.reason is MissingReason.NO_SERIES
    assert f"{name} is missing" in found.message


def test_a_clock_ahead_is_told_apart(prometheus: ScriptedPrometheus) -> None:
    found = missing(prometheus, now=NOW - 47)
    assert found.reason is MissingReason.CLOCK_SKEW
    assert "45 s ahead" in found.message
    assert read(prometheus, now=NOW - 31).engines


def test_a_prometheus_that_does_not_answer_is_given_up(prometheus: ScriptedPrometheus) -> None:
    prometheus.open.clear()
    found = missing(source(prometheus, timeout=0.2))
    assert found.reason is MissingReason.QUERY_FAILED
    assert "timed out" in found.message


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "could not be read: ConnectionError: Connection refused"),
        ("http://no-such-host.invalid", "could not be read: ConnectionError: Name or service not known"),
        ("ftp://127.0.0.1", "Not supported URL scheme ftp"),
        ("prometheus:9090", "No host specified"),
        ("http://", "InvalidURL"),
    ],
)
def test_a_prometheus_that_is_not_there(url: str, said: str) -> None:
    found = missing(source(url, timeout=2))
    assert found.reason is MissingReason.QUERY_FAILED
    assert said in found.message
    assert "__name__" not in found.message


def test_recovers_with_the_next_read(prometheus: ScriptedPrometheus) -> None:
    reader = source(prometheus.url + "/")
    prometheus.reply = Reply(503)
    missing(reader)
    prometheus.reply = None
    assert set(read(reader).engines) == {"u1"}
    assert prometheus.requests[-1].path.startswith("/api/v1/query?")


def test_the_token_is_read_again_each_time_and_never_shown(prometheus: ScriptedPrometheus, tmp_path: Path) -> None:
    file = tmp_path / "token"
    reader = source(prometheus, token_file=file)
    assert missing(reader).reason is MissingReason.UNAUTHORIZED
    for bad in ("", "two\nlines-secret", "schlüssel-secret"):
        file.write_text(bad)
        assert "secret" not in missing(reader).message
    assert not prometheus.asked
    for token in ("first-secret", "second-secret"):
        file.write_text(token + "\n")
        prometheus.reply = Reply(401)
        assert token not in missing(reader).message
        assert prometheus.requests[-1].headers["Authorization"] == f"Bearer {token}"


def test_further_headers_are_sent(prometheus: ScriptedPrometheus) -> None:
    read(source(prometheus, headers={"X-Scope-OrgID": "team-a"}))
    assert prometheus.requests[-1].headers["X-Scope-OrgID"] == "team-a"


def test_credentials_in_the_url_are_never_shown(prometheus: ScriptedPrometheus) -> None:
    prometheus.reply = Reply(401)
    for url in (prometheus.url, "http://127.0.0.1:9"):
        assert "hunter2" not in missing(source(url.replace("//", "//me:hunter2@"), timeout=2)).message


@pytest.mark.parametrize(("access", "works"), [({}, False), ({"ca": True}, True), ({"skip_tls_verify": True}, True)])
def test_tls_is_checked_by_the_certificates_given(
    prometheus: ScriptedPrometheus, tls: Callable[[Any], Path], access: dict[str, Any], works: bool
) -> None:
    ca = tls(prometheus)
    options = {"ca_file": str(ca)} if access.pop("ca", False) else access
    reader = source(prometheus.url.replace("http:", "https:"), **options)
    if works:
        assert read(reader).engines
    else:
        assert "certificate verify failed" in missing(reader).message


@pytest.fixture
def tls(tmp_path: Path) -> Callable[[ScriptedPrometheus], Path]:
    """Gives a server a certificate for 127.0.0.1; returns the file to check it against."""

    def serve(server: ScriptedPrometheus) -> Path:
        import ssl

        key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", key, "-out", certificate, "-subj", "/CN=prometheus", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        return certificate

    return serve


def await_condition(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, f"gave up waiting, last saw {met}"
        time.sleep(0.1)
    return met


@contextmanager
def real_prometheus(folder: Path, target_port: int, jobs: tuple[str, ...], labels: dict[str, str]) -> Iterator[str]:
    binary = str(ensure_one("prometheus"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{target_port}"], "labels": labels}]}
            for job in jobs
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([binary, *flags, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=10)


@pytest.mark.slow
def test_a_real_prometheus_scraping_a_real_exporter_by_two_jobs(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    edges = (0.1, 0.3, 0.5)
    ttft = Histogram("vllm:time_to_first_token_seconds", "TTFT", ["engine"], registry=registry, buckets=edges).labels(
        "0"
    )
    gauges = {
        name: Gauge(f"vllm:num_requests_{name}", name, ["engine"], registry=registry).labels("0")
        for name in ("waiting", "running")
    }
    rejected = Counter("vllm:admission_rejections", "rejected", ["reason"], registry=registry)
    for seconds in (0.05, 0.3, 0.4, 9):
        ttft.observe(seconds)
    gauges["waiting"].set(3)
    gauges["running"].set(5)
    for reason in ("requests", "tokens"):
        rejected.labels(reason).inc(2)
    exporter, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    labels = {"namespace": "ns", "pod": "chat-1", "pod_uid": "u1"}
    pool = PoolId("ns", "chat", "batch")
    queries = {
        pool: PoolQueries(backlog="sum(vllm:num_requests_waiting{job='a'}) # a comment", offered="scalar(vector(2))")
    }
    queries[PoolId("ns", "chat", "bad")] = PoolQueries(backlog="sum by (nothing")
    queries[PoolId("ns", "chat", "worse")] = PoolQueries(backlog="nonsense(1)")
    queries[PoolId("ns", "chat", "two")] = PoolQueries(backlog="vllm:num_requests_waiting")
    queries[PoolId("ns", "chat", "range")] = PoolQueries(backlog="vllm:num_requests_waiting[1m]")
    try:
        with real_prometheus(tmp_path, exporter.server_port, ("a", "b"), labels) as url:
            reader = source(url)

            def scraped() -> Scrape | None:
                return got if isinstance(got := reader.read(time.time(), {}, {}), Scrape) else None

            scrape = await_condition(scraped)
            [engine] = scrape.engines.values()
            assert engine.ttft == ((0.1, 1), (0.3, 2), (0.5, 3), (math.inf, 4))
            assert (engine.pod_uid, engine.waiting, engine.running, engine.rejected) == ("u1", 3, 5, 4)
            assert abs(time.time() - engine.at) < 30
            ttft.observe(0.2)
            await_condition(lambda: (got := scraped()) and got.engines["u1"].ttft[-1][1] == 5)
            for _ in range(4):  # the search for the texts at fault takes a few ticks
                scrape = reader.read(time.time(), {}, queries)
            assert (scrape.backlog[pool], scrape.offered[pool]) == (3, 2)
            said = {name.pool: found.message for name, found in scrape.backlog.items() if isinstance(found, Missing)}
            assert "doesn't close" in said["bad"]
            assert "unknown function" in said["worse"]
            assert "2 series" in said["two"]
            assert "neither a vector" in said["range"]
            said_by_type = reader.read(time.time(), {}, {}).engines["u1"]
            assert said_by_type.itl is None
    finally:
        exporter.shutdown()
        thread.join()


def test_an_answer_goes_with_its_last_reader() -> None:
    """Each of a large fleet's is 20 MB: what waits for the collector is dozens of them."""
    seen: list[weakref.ref[Any]] = []
    with scripted_prometheus() as server:
        client = PrometheusClient(Access(server.url))
        client._connection._session.hooks["response"].append(
            lambda response, *_, **__: seen.append(weakref.ref(response))
        )
        client.begin()
        gc.collect()
        gc.disable()
        try:
            client.query(COUNTERS_QUERY)
            assert [answer() for answer in seen] == [None]
        finally:
            gc.enable()
