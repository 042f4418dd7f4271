"""Results that lack something, and any JSON at all: stages, or one clear line."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.planning.errors import ResultError
from gemma_operator.planning.operating import curves, interval, operating_point
from gemma_operator.planning.results import read_results
from gemma_operator.planning.stages import CLOSED, CONSTANT, POISSON, UNKNOWN, Process, share_within
from tests.support.loadtests import (
    GUIDELLM,
    INFERENCE_PERF,
    P95,
    SLO,
    aiperf,
    guidellm,
    poisson,
    stage,
    without,
    write,
)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("benchmarks", [], "holds no benchmark"),
        ("benchmarks", [{"type_": "other"}], "holds no benchmark"),
        ("benchmarks", [{"config": {"strategy": {"type_": "throughput"}}}], "holds only throughput benchmarks"),
        ("metadata.version", 1, "guidellm before 0.7"),
        ("benchmarks.0.metrics.time_to_first_token_ms", None, "has no TTFT: run the test with streaming"),
        (P95, {"p50": 1.0, "p90": 2.0}, None),
        (P95, dict.fromkeys(("p50", "p95"), 0.0), "has no TTFT"),
        (P95, {"p95": float("nan")}, "has no TTFT"),
        (P95, {"p95": -5}, "is -5, which can't be"),
        ("benchmarks.0.metrics.slo_attainment", 1.5, "slo_attainment is 1.5, and a share is at most 1"),
    ],
)
def test_guidellm_results_that_lack_something(tmp_path, path, value, said):
    document = without(guidellm(poisson), path, value)
    if said is None:
        document["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]["max"] = None
        said = "no percentile of TTFT as high as the SLO's 95th"
    (tmp_path / "result.json").write_text(json.dumps(document))  # NaN as Python writes it
    with pytest.raises(ResultError, match=said):
        read_results([tmp_path / "result.json"], SLO)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("successes.latency.time_to_first_token", None, "run the test with streaming"),
        ("successes.latency.time_to_first_token", {"median": 0.1}, "set report.request_lifecycle.percentiles"),
        ("load_summary", {}, "no load_summary.requested_rate"),
    ],
)
def test_inference_perf_results_that_lack_something(tmp_path, path, value, said):
    document = json.loads((INFERENCE_PERF / "vllm/stage_1_lifecycle_metrics.json").read_text())
    document["successes"]["throughput"] = {}
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps(without(document, path, value)))
    with pytest.raises(ResultError, match=said):
        read_results([tmp_path], SLO)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_to_first_token": None}, "run the test with --streaming"),
        ({"time_to_first_token": {"unit": "parsec", "p95": 1}}, "unit 'parsec', known are ms"),
        ({"time_to_first_token": {"unit": "ms", "p50": 1}}, "no percentile of TTFT as high"),
        ({"per_combination_metrics": []}, "holds no combination"),
        ({"per_combination_metrics": [{"parameters": {}, "metrics": {}}]}, "has no time_to_first_token_p95"),
    ],
)
def test_aiperf_results_that_lack_something(tmp_path, changes, said):
    with pytest.raises(ResultError, match=said):
        read_results([write(tmp_path, aiperf(10, 100, **changes))], SLO)


# --- rules 11 and 12 ---


def test_streams_become_a_rate_by_what_was_measured(tmp_path):
    document = guidellm(poisson)
    for benchmark in document["benchmarks"]:
        benchmark["config"]["strategy"] = {"type_": "concurrent", "streams": 64, "rate": 64}
    (tmp_path / "result.json").write_text(json.dumps(document))
    stages = read_results([tmp_path / "result.json"], SLO)
    assert [s.process for s in stages] == [CLOSED] * 6
    assert [round(s.requested, 2) for s in stages] == [2.17, 4.44, 5.33, 6.11, 7.94, 8.94]


def test_csv_is_not_read(tmp_path):
    (tmp_path / "benchmarks.csv").write_text("a,b\n")
    with pytest.raises(ResultError, match="give the JSON"):
        read_results([tmp_path / "benchmarks.csv"], SLO)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.json", None, "can't be read: No such file"),
        ("x.json", "{", "is no JSON"),
        ("x.json", "[" * 10_000, "is no JSON"),
        ("x.yaml", "a: [", "is no YAML"),
        ("x.json", "[]", "is no result of guidellm"),
        ("summary_lifecycle_metrics.json", "{}", "is the sum over all rates"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ResultError, match=said):
        read_results([tmp_path / name], SLO)


def test_a_file_given_twice_counts_once():
    path = GUIDELLM / "poisson_text_clean.json"
    assert len(read_results([path, path.parent / "." / path.name], SLO)) == 6


RATES = st.lists(
    st.tuples(st.floats(0.1, 500), st.floats(0.001, 60), st.integers(0, 5000), st.floats(0, 1)), min_size=1, max_size=12
)


@settings(max_examples=300)
@given(RATES, st.sampled_from([POISSON, CONSTANT, CLOSED, UNKNOWN, Process("gamma", 3.0)]))
def test_any_curve_has_an_answer_within_what_was_tested(rows, process):
    stages = [stage(rate, ttft, requests, share, process=process) for rate, ttft, requests, share in rows]
    point = operating_point(stages, SLO)
    if point is None:
        assert all(requests == 0 for _, _, requests, _ in rows)
        return
    assert interval(point)
    if point.rate is not None:
        assert 0 <= point.rate <= (point.measured or 0) * (1 + 1e-9) <= point.tested[1] * (1 + 1e-9)
    if point.holds is not None and point.breaks is not None:
        assert point.tested[0] <= point.holds <= point.tested[1]


@settings(max_examples=300)
@given(st.dictionaries(st.floats(0, 1), st.floats(0, 10), max_size=8))
def test_a_share_is_a_share(percentiles):
    try:
        assert 0 <= share_within(percentiles, SLO) <= 1
    except ValueError as error:
        assert "no percentile" in str(error)  # noqa: PT017


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths_of(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    return [path, *(found for key, value in keys for found in paths_of(value, (*path, key)))]


SEEDS = [
    guidellm(poisson),
    json.loads((INFERENCE_PERF / "video/stage_3_lifecycle_metrics.json").read_text()),
    aiperf(10, 100),
    {
        "per_combination_metrics": [
            {"parameters": {"rate": 3}, "metrics": {"time_to_first_token": {"mean": 3, "unit": "ms"}}}
        ]
    },
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_broken_results_are_stages_or_one_clear_error(tmp_path_factory, data):
    """Any part of a real result replaced by anything."""
    document = copy.deepcopy(data.draw(st.sampled_from(SEEDS)))
    path = data.draw(st.sampled_from([path for path in paths_of(document) if path]))
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = data.draw(JSON)
    file = tmp_path_factory.mktemp("fuzz") / "result.json"
    file.write_text(json.dumps(document))
    try:
        for curve in curves(read_results([file], SLO)):
            operating_point(curve, SLO)
    except ResultError as error:
        assert "result.json" in str(error)  # noqa: PT017
