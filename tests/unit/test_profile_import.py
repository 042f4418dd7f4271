"""gemma-operator profile import: the twelve rules of an importer, on real results of three tools and on broken ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.api.parse import stored_profile
from gemma_operator.api.scaling import MeasuredWith
from gemma_operator.cli import main
from gemma_operator.planning.measured import capacity_profile, point_load
from gemma_operator.planning.operating import interval, operating_point
from gemma_operator.planning.results import read_results
from gemma_operator.planning.stages import CLOSED, CONSTANT, POISSON, UNKNOWN, Mix, Process
from gemma_operator.scaling.policy import profile_of
from gemma_operator.scaling.profile import DEFAULT_PROFILE
from tests.support.loadtests import (
    GUIDELLM,
    INFERENCE_PERF,
    SLO,
    aiperf,
    found_in,
    guidellm,
    judge,
    only,
    poisson,
    stage,
    write,
)


def test_guidellm_says_milliseconds():
    stages = read_results([GUIDELLM / "poisson_text_clean.json"], SLO)
    assert [(s.requested, round(s.ttft or 0, 3)) for s in stages] == [
        (2, 0.215), (4, 0.401), (5, 0.568), (6, 0.558), (8, 0.722), (12, 4.466),
    ]  # fmt: skip
    assert stages[0].process == POISSON
    assert stages[0].model == "tiny-gemma"


@pytest.mark.parametrize(
    ("folder", "last", "first"), [("batch_size", 0.053, 0.345), ("chunking", 0.039, 0.306), ("vllm", 0.080, 3.187)]
)
def test_inference_perf_says_seconds(folder, last, first):
    stages = sorted(read_results([INFERENCE_PERF / folder], SLO), key=lambda s: s.requested)
    crossing = next(number for number, s in enumerate(stages) if (s.ttft or 0) > 0.3)
    assert [round(s.ttft or 0, 3) for s in stages[crossing - 1 : crossing + 1]] == [last, first]


def test_stages_of_a_folder_are_sorted_by_rate_not_by_name(tmp_path):
    for number, name in enumerate([3, 0, 4, 2, 1]):
        text = (INFERENCE_PERF / f"vllm/stage_{name}_lifecycle_metrics.json").read_text()
        (tmp_path / f"stage_{number}_lifecycle_metrics.json").write_text(text)
    point = only(tmp_path)
    assert [round(s.requested) for s in point.stages] == [1, 31, 62, 92, 123]
    assert point.measured == pytest.approx(92.19)


@pytest.mark.parametrize("unit", ["ms", "s"])
def test_aiperf_says_its_unit(tmp_path, unit):
    point = only(write(tmp_path, aiperf(10, 100, unit), aiperf(12, 200, unit), aiperf(14, 400, unit)))
    assert point.model == "google/gemma-4-E4B-it"
    assert point.process == POISSON
    assert point.mix == Mix(512, 100)
    assert point.rate == pytest.approx(12 + 2 * math.log(1.5) / math.log(2))


def test_aiperf_sweep(tmp_path):
    def combination(rate: float, p95: float) -> dict[str, Any]:
        values = {"time_to_first_token_p95": p95, "request_throughput_avg": rate, "request_count_avg": 1000.0}
        metrics = {name: {"mean": value, "unit": "ms"} for name, value in values.items()}
        return {"parameters": {"phases.profiling.rate": rate}, "metrics": metrics}

    sweep = {"per_combination_metrics": [combination(20, 900), combination(10, 100), combination(12, 250)]}
    path = write(tmp_path, sweep, name="profile_export_aiperf_sweep.json")
    point = only(path)
    assert point.measured == 12
    assert any("test a rate or two between" in note for note in point.notes)


@pytest.mark.parametrize(("pattern", "cv"), [({"smoothness": 0.25}, 2.0), ({}, 1.0), ({"smoothness": 4}, 0.5)])
def test_gamma_arrivals_have_their_burstiness(tmp_path, pattern, cv):
    run = aiperf(10, 100)
    run["input_config"]["phases"] = [{"type": "gamma", "rate": 10, **pattern}]
    assert only(write(tmp_path, run)).burstiness == pytest.approx(cv)


# --- rule 2: a client at its limit measures itself ---


def test_a_client_at_its_limit_is_told_and_never_a_pass():
    point = only(INFERENCE_PERF / "vllm")
    assert point.measured == pytest.approx(92.19)
    assert point.breaks == pytest.approx(105.6, abs=1)  # what was sent, not the 122.6 that were asked for
    assert any("the stage of 123 requests/s sent 106: the client was at its limit" in note for note in point.notes)
    passed = judge(stage(10, 0.1), stage(20, 0.1, achieved=15))
    assert passed.tested == (10, 10)


def test_random_arrivals_may_be_fewer_by_chance():
    assert judge(stage(10, 0.1, 40, achieved=8.5)).rate == 8.5
    assert operating_point([stage(10, 0.1, 40, achieved=8.5, process=CONSTANT)], SLO) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"delay": 0.05}, "is left out: the client was late by 50 ms at p95"),
        ({"delay": 0.02}, "20 requests/s: the client was late by 20 ms at p95"),
        ({"flaws": ("it was cancelled",)}, "is left out: it was cancelled"),
        ({"incomplete": 500}, "500 of 2500 requests were cut off, so it is left out"),
        ({"incomplete": 25, "share": 0.99}, "25 of 2025 requests were cut off; it holds either way"),
    ],
)
def test_what_speaks_against_a_stage_is_said(more, said):
    point = judge(stage(10, 0.1), stage(20, 0.2, **more))
    assert any(said in note for note in point.notes), point.notes
    assert point.rate == (10 if "left out" in said else 20)


def test_flaws_of_the_tools_are_read(tmp_path):
    late = guidellm(poisson)
    late["benchmarks"][0]["warnings"] = [{"code": "generation_delay_ttft"}]
    cancelled = [aiperf(5, 100, was_cancelled=True), aiperf(6, 100, is_complete=False, incomplete_reason="timeout")]
    (tmp_path / "g.json").write_text(json.dumps(late))
    flaws = [s.flaws for s in read_results([tmp_path / "g.json", write(tmp_path, *cancelled)], SLO) if s.flaws]
    assert flaws == [
        ("guidellm warns of generation_delay_ttft",), ("it was cancelled",), ("it is incomplete (timeout)",),
    ]  # fmt: skip


# --- rule 3: failures are breaches ---


def failing(folder: Path, failures: int) -> Path:
    found = json.loads((INFERENCE_PERF / "vllm/stage_1_lifecycle_metrics.json").read_text())
    found["failures"]["count"] = failures
    path = folder / "stage_0_lifecycle_metrics.json"
    path.write_text(json.dumps(found))
    return path


@pytest.mark.parametrize(("failures", "holds"), [(0, True), (50, True), (150, False)])
def test_failures_count_as_breaches(tmp_path, failures, holds):
    """1,884 answers, all of them fast."""
    point = only(failing(tmp_path, failures))
    assert (point.rate is not None) == holds
    assert bool(point.notes and any("failed, which counts as misses" in note for note in point.notes)) == bool(failures)


def test_a_stage_that_only_failed_is_a_breach(tmp_path):
    empty = {"count": 0, "latency": {"time_to_first_token": None}, "throughput": {}, "output_len": None}
    found = {
        "load_summary": {"requested_rate": 5.0, "achieved_rate": 5.0},
        "successes": empty,
        "failures": {"count": 30},
    }
    path = tmp_path / "stage_0_lifecycle_metrics.json"
    path.write_text(json.dumps(found))
    assert only(path).rate is None


# --- rule 4: the number of requests matters ---


def test_few_requests_prove_nothing():
    point = judge(stage(10, 0.1, 40, share=1.0), stage(12, 0.5, 40, share=0.9))
    assert (point.holds, point.breaks) == (None, None)
    assert "proven: nothing, too few requests" in interval(point)
    assert any("52 without a miss prove it" in note for note in point.notes)


def test_higher_rates_prove_lower_ones():
    """Three stages of 40 requests, all fast: together they prove that the lowest rate holds, one alone can't."""
    point = judge(*(stage(rate, 0.1, 40, share=1.0) for rate in (10, 11, 12)), stage(14, 0.9, 400, share=0.5))
    assert (point.holds, point.breaks) == (11, 14)


def test_the_interval_holds_the_answer():
    point = only(INFERENCE_PERF / "batch_size")
    assert (point.holds, point.breaks) == (pytest.approx(74.94), pytest.approx(111.92))
    assert "proven: at least 74.9, less than 112" in interval(point)


# --- rule 5: curves that aren't monotone ---


def test_a_curve_that_is_not_monotone_is_said():
    point = judge(stage(10, 0.1), stage(12, 0.35), stage(14, 0.2), stage(16, 0.9))
    assert not point.monotone
    assert 10 < (point.rate or 0) < 12
    assert any("monotone: false" in note for note in point.notes)
    assert judge(stage(10, 0.036), stage(12, 0.032), stage(14, 0.5)).monotone  # noise far below the SLO


# --- rule 6: between the last rate that holds and the first that doesn't ---


def test_a_narrow_gap_is_interpolated_on_the_logarithm():
    point = judge(stage(10, 0.15), stage(12, 0.6))
    assert point.rate == pytest.approx(11)


def test_a_wide_gap_asks_for_a_finer_stage():
    point = only(INFERENCE_PERF / "batch_size")
    assert point.measured == pytest.approx(74.94)
    assert any("between 74.9 (holds) and 112 requests/s (doesn't) nothing was tested" in note for note in point.notes)


def test_a_stage_too_short_for_a_queue_is_said():
    """Seen on a real vLLM: at 30 requests/s 60 requests were over before its queue grew, and all of them held."""
    point = judge(stage(30, 0.1, 60), stage(45, 0.9, 60, share=0.7))
    assert any("lasted 2 s: a queue takes longer" in note and "300 requests" in note for note in point.notes)
    assert not any("lasted" in note for note in judge(stage(30, 0.1, 600), stage(45, 0.9, 600, share=0.7)).notes)


# --- rule 7: constant rates overstate ---


def test_constant_rates_are_derated_and_it_is_said():
    point = only(GUIDELLM / "constant_text.json")
    assert point.measured == pytest.approx(13.7, abs=0.1)
    assert 0.25 < (point.rate or 0) / (point.measured or 1) < 0.45
    assert any("a constant rate hides what bursts do" in note for note in point.notes)


def test_the_derating_of_the_toy_server():
    """Service 106 ms: constant arrivals hold to 9, Poisson ones to about 4.5 (research/practice.md, rule 7)."""
    stages = [stage(rate, 0.106, process=CONSTANT, share=1.0) for rate in (2, 4, 6, 8, 9)]
    point = judge(*stages, stage(10, 2.0, process=CONSTANT, share=0.1))
    assert 0.75 * 4.5 < (point.rate or 0) < 4.5


@pytest.mark.parametrize(("process", "said"), [(CLOSED, "wait for their answers"), (UNKNOWN, "give --arrivals")])
def test_what_is_not_known_to_be_random_is_derated_too(process, said):
    point = judge(stage(10, 0.1, process=process))
    assert (point.rate or 0) < 10
    assert any(said in note for note in point.notes)


def test_poisson_and_gamma_arrivals_are_taken_as_they_are():
    for process in (POISSON, Process("gamma", 2.0)):
        assert judge(stage(10, 0.1, process=process)).rate == 10


def test_inference_perf_has_its_arrivals_in_its_configuration(tmp_path):
    failing(tmp_path, 0)
    assert read_results([tmp_path], SLO)[0].process == UNKNOWN
    for name, process in (("poisson", POISSON), ("constant", CONSTANT), ("concurrent", CLOSED), ("trace", UNKNOWN)):
        (tmp_path / "config.yaml").write_text(f"load: {{type: {name}}}")
        assert read_results([tmp_path], SLO)[0].process == process
    (tmp_path / "config.yaml").write_text("load: [")
    assert read_results([tmp_path], SLO)[0].process == UNKNOWN


# --- rule 8: mixes are not joined ---


def test_text_and_video_are_curves_of_their_own():
    text, video = found_in(GUIDELLM / "constant_text.json", GUIDELLM / "constant_video.json")
    assert (text.mix.media_share, video.mix.media_share) == (0, 1)
    assert video.mix.units == 6
    assert video.mix.prompt_tokens == 64 + 6 * 78  # the toy server doesn't count the video's


def test_folders_are_sweeps_of_their_own():
    assert [
        round(point.measured or 0) for point in found_in(INFERENCE_PERF / "vllm", INFERENCE_PERF / "batch_size")
    ] == [92, 75]


def test_other_lengths_are_another_mix():
    assert Mix(500, 200).like(Mix(510, 190))
    for other in (Mix(800, 200), Mix(500, 20), Mix(500, 200, 0.1, 6), Mix(500, 200, 1.0, 6)):
        assert not Mix(500, 200).like(other)
    assert not Mix(500, 200, 1.0, 6).like(Mix(500, 200, 1.0, 32))
    assert not Mix(500, 200, 0.1, 6).like(Mix(500, 200, 0.5, 6))


# --- rule 9: no crossing ---


def test_no_breach_is_a_lower_bound(capsys):
    path = str(GUIDELLM / "constant_text.json")
    assert main(["profile", "import", path]) == 3
    shown = capsys.readouterr()
    assert "at least 13.7 requests/s, the highest rate tested" in shown.err
    assert yaml.safe_load(shown.out)["kind"] == "ConfigMap"


def test_nothing_that_holds_is_an_upper_bound(capsys):
    assert main(["profile", "import", str(GUIDELLM / "constant_video.json")]) == 3
    shown = capsys.readouterr()
    assert "less than 0.5 requests/s, the lowest rate tested" in shown.err
    assert "test lower rates" in shown.err
    assert shown.out == ""


# --- what comes out ---


def test_the_profile_goes_through_what_was_measured():
    points = [
        judge(stage(20, 0.1, mix=Mix(500, 10))),
        judge(stage(9, 0.1, mix=Mix(500, 10, 1.0, 6), process=Process("gamma", 2.0))),
    ]
    profile = profile_of(capacity_profile(points, engines=1, measured_with=MeasuredWith()))
    assert profile.operating_point(0.0) == pytest.approx(point_load(points[0]), rel=1e-3)
    assert profile.operating_point(0.3) == pytest.approx(0.96 * point_load(points[0]), rel=1e-3)
    bursty = profile_of(capacity_profile(points, 1, MeasuredWith()).model_copy(update={"burstiness": 2.0}))
    assert bursty.operating_point(1.0) == pytest.approx(point_load(points[1]), rel=1e-3)


def test_engines_share_what_was_measured():
    point = judge(stage(20, 0.1))
    one, four = (capacity_profile([point], engines, MeasuredWith()).points[0].load for engines in (1, 4))
    assert one == pytest.approx(4 * four, rel=1e-3)


def test_the_lowest_of_two_curves_of_one_kind_counts(capsys):
    assert (
        main(
            [
                "profile",
                "import",
                str(INFERENCE_PERF / "vllm"),
                str(INFERENCE_PERF / "batch_size"),
                "--arrivals",
                "poisson",
            ]
        )
        == 0
    )
    shown = capsys.readouterr()
    assert "the lowest load counts" in shown.err
    profile = profile_of(stored_profile(yaml.safe_load(shown.out)["data"]["profile.yaml"]))
    assert profile.operating_point(0.0) == pytest.approx(DEFAULT_PROFILE.work(Mix(201, 63).rates(74.94)), rel=0.01)


def test_the_config_map_is_what_the_operator_reads(capsys):
    options = [
        "--name",
        "e4b-h100",
        "-n",
        "models",
        "--gpu",
        "h100",
        "--engine-version",
        "0.32.0",
        "--arrivals",
        "poisson",
    ]
    assert main(["profile", "import", str(INFERENCE_PERF / "batch_size"), *options]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["metadata"] == {"name": "e4b-h100", "namespace": "models"}
    read = stored_profile(found["data"]["profile.yaml"])
    assert (read.measured_with.gpu, read.measured_with.engine_version) == ("h100", "0.32.0")
    assert "# operating point for p95 TTFT within 300 ms: 74.9 requests/s" in found["data"]["profile.yaml"]


def test_figures_as_json(capsys):
    assert main(["profile", "import", str(INFERENCE_PERF / "batch_size"), "-o", "json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)
    assert point["provenToHold"] == pytest.approx(74.94)
    assert point["monotone"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "300"], "'300' is not a duration such as 300ms"),
        (["--slo", "20m"], "give 0.01s to 600s"),
        (["--percentile", "99.99"], "no number from 50 to 99.9"),
        (["--engines", "0"], "no whole number from 1"),
        (["--arrivals", "chaotic"], "invalid choice: 'chaotic'"),
    ],
)
def test_wrong_options_are_one_clear_line(capsys, arguments, said):
    with pytest.raises(SystemExit):
        main(["profile", "import", str(INFERENCE_PERF / "vllm"), *arguments])
    assert said in capsys.readouterr().err


def test_results_without_a_usable_stage_are_one_clear_line(tmp_path, capsys):
    run = aiperf(10, 100, was_cancelled=True)
    assert main(["profile", "import", str(write(tmp_path, run))]) == 2
    assert "no stage of these results says anything of the engine" in capsys.readouterr().err


# --- generated ---
