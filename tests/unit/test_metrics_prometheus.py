"""Reading engine counters from Prometheus: the answers it gives, the faults it has, and the real program."""

import json
import math
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator.metrics.prometheus import (
    BUCKET,
    LOOKBACK_SECONDS,
    METRICS,
    RUNNING,
    WAITING,
    PrometheusSource,
    parse,
)
from gemma_operator.scaling import Missing, MissingReason, PoolKey
from tools.cluster.binaries import ensure_one

NOW = 1_800_000_000.0
TARGET = {"namespace": "ns", "serving": "chat", "pool": "interactive", "pod": "chat-1", "pod_uid": "u1", "engine": "0"}
KEY = PoolKey("ns", "chat", "interactive")


def series(name, value, at=NOW - 2, **labels):
    return {"metric": {**TARGET, "__name__": name, **labels}, "values": [[at - 5, "0"], [at, str(value)]]}


def scrape(*counts, edges=("0.25", "0.3", "+Inf"), waiting=1, running=2, at=NOW - 2, **labels):
    """All series of one scrape of one engine."""
    buckets = [series(BUCKET, count, at, le=edge, **labels) for edge, count in zip(edges, counts, strict=True)]
    return [*buckets, series(WAITING, waiting, at, **labels), series(RUNNING, running, at, **labels)]


def answer(result, result_type="matrix"):
    return json.dumps({"status": "success", "data": {"resultType": result_type, "result": result}}).encode()


class FakePrometheus(ThreadingHTTPServer):
    """Answers every query with what the test puts here, and keeps the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body, self.headers = 200, answer([]), {"Content-Type": "application/json"}
        self.hold = threading.Event()
        self.hold.set()
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self)
        self.server.hold.wait()
        if self.server.body is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(self.server.status)
        for header, value in self.server.headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args):
        pass


@pytest.fixture
def prometheus():
    with FakePrometheus() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.hold.set()
        server.shutdown()


def test_one_query_reads_all_pools(prometheus):
    prometheus.body = answer(
        scrape(7, 9, 10)
        + scrape(1, 2, 3, pod="chat-2", pod_uid="u2")
        + scrape(0, 0, 0, pool="batch", pod="b-1", pod_uid="u3")
        + scrape(4, 4, 4, namespace="other", pod_uid="u4")
    )
    reading = PrometheusSource(prometheus.url).read(NOW)
    assert set(reading) == {KEY, PoolKey("ns", "chat", "batch"), PoolKey("other", "chat", "interactive")}
    first, second = reading[KEY]
    assert (first.pod, first.pod_uid, first.at, first.waiting, first.running) == ("chat-1", "u1", NOW - 2, 1, 2)
    assert first.ttft_buckets == ((0.25, 7), (0.3, 9), (math.inf, 10))
    assert second.pod_uid == "u2"
    [request] = prometheus.requests
    url = urlsplit(request.path)
    assert url.path == "/api/v1/query"
    assert parse_qs(url.query)["query"][0].endswith(f'pod_uid!=""}}[{LOOKBACK_SECONDS}s]')


def test_edges_are_numbers_however_they_are_spelled():
    [sample] = parse(scrape(1, 2, 3, 4, edges=("3e-1", "0.50", "1", "Inf")))[KEY]
    assert [edge for edge, _ in sample.ttft_buckets] == [0.3, 0.5, 1, math.inf]


def test_data_parallel_engines_of_a_pod_add_up():
    [sample] = parse(scrape(1, 2, 3, engine="0", at=NOW - 3) + scrape(4, 5, 6, engine="1"))[KEY]
    assert sample.ttft_buckets == ((0.25, 5), (0.3, 7), (math.inf, 9))
    assert (sample.waiting, sample.running, sample.at) == (2, 4, NOW - 3)


@pytest.mark.parametrize("order", [1, -1])
def test_an_engine_scraped_twice_counts_once(order):
    """Two jobs, or two Prometheus replicas: the later scrape counts; of two at once, the one that counted more."""
    later = scrape(5, 6, 7, job="a", at=NOW - 8) + scrape(8, 9, 10, job="b", at=NOW - 2)
    [sample] = parse(later[::order])[KEY]
    assert (sample.ttft_buckets[-1][1], sample.at, sample.waiting) == (10, NOW - 2, 1)
    same_time = scrape(5, 6, 7, job="a") + scrape(8, 9, 10, job="b", waiting=4)
    [sample] = parse(same_time[::order])[KEY]
    assert (sample.ttft_buckets[-1][1], sample.waiting) == (10, 4)


def test_names_escaped_for_openmetrics_are_the_same_metrics():
    plain = scrape(1, 2, 3)
    escaped = [
        {**item, "metric": {**item["metric"], "__name__": item["metric"]["__name__"].replace(":", "_")}}
        for item in plain
    ]
    assert parse(escaped) == parse(plain) == parse(plain + escaped)


def test_real_vllm_exposes_what_is_read():
    """Recorded from vLLM 0.32 with an edge at the SLO."""
    exposition = (Path(__file__).parent / "data" / "vllm-0.32-metrics.txt").read_text()
    samples = [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]
    result = [series(sample.name, sample.value, **sample.labels) for sample in samples if sample.name in METRICS]
    [sample] = parse(result)[KEY]
    assert 0.3 in dict(sample.ttft_buckets)
    assert sample.ttft_buckets[-1] == (math.inf, 21)


@pytest.mark.parametrize("missing", [BUCKET, WAITING, RUNNING])
def test_an_engine_without_one_of_the_metrics_is_left_out(missing):
    result = [item for item in scrape(1, 2, 3) if item["metric"]["__name__"] != missing]
    assert parse(result) == {}
    outdated = [item for item in scrape(1, 2, 3, at=NOW - 20) if item["metric"]["__name__"] == missing]
    assert parse([*result, *outdated]) == {}


def test_values_that_are_no_numbers_are_passed_on_for_the_window_to_drop():
    [sample] = parse(scrape(1, "NaN", 3, waiting="+Inf"))[KEY]
    assert math.isnan(sample.ttft_buckets[1][1])
    assert math.isinf(sample.waiting)


def missing_of(source, now=NOW):
    reading = source.read(now)
    assert isinstance(reading, Missing)
    assert len(reading.message) < 500
    return reading


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}', "parse error"),
        (401, b"Unauthorized", "401"),
        (403, b"<html>forbidden</html>", "403"),
        (404, b"404 page not found", "404"),
        (422, b'{"status":"error","errorType":"execution","error":"query processing would load too many"}', "too many"),
        (503, b"x" * 100_000, "503"),
        (204, b"", "204"),
        (200, b"", "Expecting value"),
        (200, b"<html><title>Sign in</title></html>", "Expecting value"),
        (200, b'{"status":"success","data":{"resultType":"matrix","res', "JSONDecodeError"),
        (200, b'{"status":"error"}', "data"),
        (200, b"null", "TypeError"),
        (200, b"[]", "TypeError"),
        (200, b"[" * 100_000, "Recursion"),
        (200, b"\xff\xfe\x00", "Error"),
        (200, answer([1_800_000_000, "5"], "scalar"), "range vector"),
        (200, answer([1_800_000_000, "text"], "string"), "range vector"),
        (200, answer([{"metric": TARGET, "value": [1, "1"]}], "vector"), "range vector"),
        (200, answer(None), "range vector"),
        (200, answer([{"metric": {"__name__": BUCKET}, "values": [[NOW, "1"]]}]), "range vector"),
        (200, answer([series(BUCKET, 1, le="wide")]), "range vector"),
        (200, answer([series(BUCKET, "many", le="1")]), "range vector"),
        (200, answer([{"metric": {**TARGET, "__name__": BUCKET, "le": "1"}, "values": []}]), "range vector"),
        (None, None, "Connection"),
    ],
)
def test_faults_become_missing_with_a_readable_message(prometheus, status, body, words):
    prometheus.status, prometheus.body = status, body
    missing = missing_of(PrometheusSource(prometheus.url))
    assert missing.reason is MissingReason.QUERY_FAILED
    assert words in missing.message
    assert prometheus.url in missing.message
    assert len(prometheus.requests) == 1, "a failed query is not repeated within the tick"


def test_no_series_says_what_to_look_at(prometheus):
    missing = missing_of(PrometheusSource(prometheus.url))
    assert missing.reason is MissingReason.NO_SERIES
    assert "does it scrape the engine Pods" in missing.message


def test_a_clock_ahead_is_told_apart(prometheus):
    prometheus.body = answer(scrape(1, 2, 3, at=NOW + 45))
    missing = missing_of(PrometheusSource(prometheus.url))
    assert missing.reason is MissingReason.CLOCK_SKEW
    assert "45 s ahead" in missing.message


def test_a_prometheus_that_does_not_answer_is_given_up(prometheus):
    prometheus.hold.clear()
    missing = missing_of(PrometheusSource(prometheus.url, timeout_seconds=0.2))
    assert missing.reason is MissingReason.QUERY_FAILED
    assert "timed out" in missing.message


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "http://no-such-host.invalid", "ftp://127.0.0.1", "prometheus:9090", "http://"]
)
def test_a_prometheus_that_is_not_there(url):
    missing = missing_of(PrometheusSource(url, timeout_seconds=2))
    assert missing.reason is MissingReason.QUERY_FAILED
    assert "__name__" not in missing.message


def test_recovers_with_the_next_read(prometheus):
    source = PrometheusSource(prometheus.url + "/")
    prometheus.status = 503
    missing_of(source)
    prometheus.status, prometheus.body = 200, answer(scrape(1, 2, 3))
    assert set(source.read(NOW)) == {KEY}
    assert prometheus.requests[-1].path.startswith("/api/v1/query?")


def test_the_token_is_read_again_each_time_and_never_shown(prometheus, tmp_path):
    token_file = tmp_path / "token"
    source = PrometheusSource(prometheus.url, token_file=token_file)
    assert "FileNotFoundError" in missing_of(source).message
    for token in ("first-secret", "second-secret"):
        token_file.write_text(token + "\n")
        prometheus.status = 401
        assert token not in missing_of(source).message
        assert prometheus.requests[-1].headers["Authorization"] == f"Bearer {token}"


def test_credentials_in_the_url_are_never_shown(prometheus):
    prometheus.status = 401
    for url in (prometheus.url, "http://127.0.0.1:9"):
        missing = missing_of(PrometheusSource(url.replace("//", "//me:hunter2@"), timeout_seconds=2))
        assert "hunter2" not in missing.message


def await_condition(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, f"gave up waiting, last saw {met}"
        time.sleep(0.1)
    return met


@contextmanager
def real_prometheus(folder, target_port):
    binary = str(ensure_one("prometheus"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = {name: value for name, value in TARGET.items() if name != "engine"}
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
        "scrape_configs": [
            {"job_name": "engines", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"], "labels": target}]}
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
def test_a_real_prometheus_scraping_a_real_exporter(tmp_path):
    registry = CollectorRegistry()
    ttft = Histogram(
        BUCKET.removesuffix("_bucket"), "TTFT", ["engine"], registry=registry, buckets=(0.1, 0.3, 0.5)
    ).labels("0")
    waiting = Gauge(WAITING, "waiting", ["engine"], registry=registry).labels("0")
    running = Gauge(RUNNING, "running", ["engine"], registry=registry).labels("0")
    for seconds in (0.05, 0.3, 0.4, 9):
        ttft.observe(seconds)
    waiting.set(3)
    running.set(5)
    exporter, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with real_prometheus(tmp_path, exporter.server_port) as url:
            source = PrometheusSource(url)
            reading = await_condition(lambda: None if isinstance(got := source.read(time.time()), Missing) else got)
            [sample] = reading[KEY]
            assert sample.ttft_buckets == ((0.1, 1), (0.3, 2), (0.5, 3), (math.inf, 4))
            assert (sample.pod_uid, sample.waiting, sample.running) == ("u1", 3, 5)
            assert abs(time.time() - sample.at) < 30
            ttft.observe(0.2)
            await_condition(lambda: source.read(time.time())[KEY][0].ttft_buckets[-1][1] == 5)
    finally:
        exporter.shutdown()
        thread.join()
