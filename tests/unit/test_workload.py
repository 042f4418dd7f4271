"""Workloads: columns and what is done with them, made-up arrivals, and logs good and bad."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.workload.arrivals import Arrivals, WorkloadError, merged
from gemma_operator.workload.logs import read_csv, read_jsonl
from gemma_operator.workload.servegen import read_servegen
from gemma_operator.workload.source import read_workload
from gemma_operator.workload.synthetic import arrivals_at, constant, sine, spike, step

DATA = Path(__file__).parent / "data/traces"


def poisson(rate: float = 20.0, seconds: float = 600.0, seed: int = 0) -> Arrivals:
    return Arrivals.of(arrivals_at(constant(rate), seconds, seed=seed))


# --- columns ---


def test_arrivals_are_sorted_with_all_their_columns():
    found = Arrivals.of([3.0, 1.0, 2.0], [30, 10, 20], [3, 1, 2], [0, 6, 1])
    assert found.at.tolist() == [1, 2, 3]
    assert found.prompt_tokens.tolist() == [10, 20, 30]
    assert found.output_tokens.tolist() == [1, 2, 3]
    assert found.frames.tolist() == [6, 1, 0]
    assert (found.seconds, found.media_share) == (3.0, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"at": [0.0, float("nan")]}, "time of 0 seconds or more"),
        ({"at": [-1.0]}, "time of 0 seconds or more"),
        ({"at": [0.0], "prompt_tokens": [-5]}, "prompt_tokens must be 0 to 2147483647; found -5"),
        ({"at": [0.0], "frames": [40_000]}, "frames must be 0 to 32767"),
        ({"at": [0.0, 1.0], "output_tokens": [1, 2, 3]}, "3 values for 2 arrivals"),
        ({"at": [0.0], "output_tokens": [float("nan")]}, "no number"),
    ],
)
def test_columns_that_are_none_are_refused(columns, said):
    with pytest.raises(WorkloadError, match=said):
        Arrivals.of(**columns)


def test_a_crop_starts_at_zero_and_leaves_out_its_end():
    found = Arrivals.of([0.0, 1.0, 2.0, 3.0], [1, 2, 3, 4]).crop(1.0, 3.0)
    assert found.at.tolist() == [0.0, 1.0]
    assert found.prompt_tokens.tolist() == [2, 3]


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.5, 8.0])
def test_scaling_multiplies_the_requests_and_keeps_the_time(factor):
    one = poisson()
    found = one.scaled(factor, seed=3)
    assert len(found) == pytest.approx(factor * len(one), rel=0.03)
    assert 0 <= found.at[0] <= found.at[-1] <= one.seconds
    assert found.prompt_tokens.sum() == pytest.approx(factor * one.prompt_tokens.sum(), rel=0.03)


def test_scaling_and_media_repeat_with_their_seed_and_differ_with_another():
    one = poisson()
    assert np.array_equal(one.scaled(3, 1).at, one.scaled(3, 1).at)
    assert not np.array_equal(one.scaled(3, 1).at, one.scaled(3, 2).at)
    assert not np.array_equal(one.with_media(0.5, 1).frames, one.with_media(0.5, 2).frames)


def test_media_come_on_top_of_the_same_requests():
    one = poisson(100.0)
    found = one.with_media(0.1, seed=1, frames=8)
    assert set(found.frames) == {0, 8}
    assert found.media_share == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(found.at, one.at)


@pytest.mark.parametrize(("share", "frames"), [(1.5, 6), (-0.1, 6), (0.1, 0), (0.1, 33)])
def test_media_that_are_none_are_refused(share, frames):
    with pytest.raises(WorkloadError, match="none: give"):
        poisson().with_media(share, 1, frames)


def test_workloads_merge_on_one_clock():
    found = merged([Arrivals.of([1.0, 3.0], 1), Arrivals.of([2.0], 2)])
    assert found.prompt_tokens.tolist() == [1, 2, 1]
    assert len(merged([])) == 0


@given(st.lists(st.floats(0, 1e6), max_size=50), st.floats(0.1, 5), st.integers(0, 2**32))
def test_scaled_is_always_a_workload(at, factor, seed):
    one = Arrivals.of(at)
    found = one.scaled(factor, seed)
    assert len(found) == 0 or 0 <= found.at[0] <= found.at[-1] <= one.seconds


# --- made up ---


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(cv):
    at = arrivals_at(constant(10.0), 7200.0, cv=cv, seed=1)
    gaps = np.diff(at)
    assert len(at) / 7200 == pytest.approx(10, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.05 + 0.08 * cv)


def test_rates_change_as_said():
    def between(at, start, end):
        return np.count_nonzero((at >= start) & (at < end)) / (end - start)

    stepped = arrivals_at(step(10, 30, 1000), 2000.0, seed=1)
    assert between(stepped, 0, 1000) == pytest.approx(10, rel=0.1)
    assert between(stepped, 1000, 2000) == pytest.approx(30, rel=0.1)
    spiked = arrivals_at(spike(10, 100, 1000, 30), 2000.0, seed=1)
    assert between(spiked, 1000, 1030) == pytest.approx(100, rel=0.1)
    day = arrivals_at(sine(2, 20), 86_400.0, seed=1)
    assert between(day, 0, 3600) < 2.5 < 18 < between(day, 41_400, 45_000)


@pytest.mark.parametrize(
    "source",
    ["poisson", "constant:rate=3", "gamma:cv=3", "step:at=60,seconds=120", "ramp", "sine:seconds=7200", "spike"],
)
def test_every_kind_can_be_described(source):
    assert len(read_workload(source, seed=1).arrivals) > 100


def test_a_day_of_no_load_is_an_empty_workload():
    assert len(read_workload("poisson:rate=0").arrivals) == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("poisson:speed=3", "poisson has no 'speed': it takes seconds, cv, prompt_tokens, output_tokens, rate"),
        ("poisson:rate=fast", "write rate=NUMBER"),
        ("poisson:rate", "write rate=NUMBER"),
        ("poisson:rate=-1", "rates must be numbers of 0 or more"),
        ("poisson:rate=nan", "rates must be numbers of 0 or more"),
        ("poisson:seconds=0", "length above 0"),
        ("gamma:cv=99", "CV of 99 is out of range"),
        ("weird", "neither a file or folder nor a description"),
        ("", "neither a file or folder nor a description"),
    ],
)
def test_descriptions_that_are_none_are_refused(source, said):
    with pytest.raises(WorkloadError, match=said):
        read_workload(source)


# --- logs ---


def test_the_azure_trace():
    log = read_workload(str(DATA / "azure_conv.csv"))
    assert len(log.arrivals) == 200
    assert log.arrivals.at[:2].tolist() == pytest.approx([0.0, 4.314579])
    assert (log.arrivals.prompt_tokens[0], log.arrivals.output_tokens[0]) == (374, 44)
    assert log.notes == ()


def test_the_mooncake_trace():
    arrivals = read_workload(str(DATA / "mooncake.jsonl")).arrivals
    assert len(arrivals) == 30
    assert (arrivals.at[2], arrivals.prompt_tokens[2], arrivals.output_tokens[2]) == (0.04, 23_769, 3)
    assert arrivals.repeated_tokens.sum() == 0


def test_prefixes_that_came_before_are_counted(tmp_path):
    path = tmp_path / "log.jsonl"
    shapes = [(2000, [1, 2, 3, 4]), (2000, [1, 2, 7, 8]), (600, [1, 2]), (900, [9, 1]), (900, None)]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": ids}) for n, ids in shapes
        )
    )
    assert read_jsonl(path).arrivals.repeated_tokens.tolist() == [0, 1024, 600, 0, 0]


def test_servegen_clients():
    arrivals = read_servegen(DATA / "servegen", seed=1)
    assert len(arrivals) == 673 + 915  # the sum of the recorded rates
    assert set(arrivals.prompt_tokens) == {50, 53} or arrivals.prompt_tokens.min() > 0
    assert 0 < arrivals.media_share <= 1
    assert arrivals.seconds < 86_400
    assert np.array_equal(arrivals.at, read_servegen(DATA / "servegen", seed=1).at)
    assert not np.array_equal(arrivals.at, read_servegen(DATA / "servegen", seed=2).at)


LOG = "timestamp,prompt_tokens,output_tokens,frames\n"


@pytest.mark.parametrize(
    "text",
    [
        LOG + "0,5,7,6\n1.5,6,8,0\n",
        LOG.upper() + "2026-11-30T08:00:00Z,5,7,6\n2026-11-30T08:00:01.5Z,6,8,\n",
        "\ufeff" + LOG.replace("\n", "\r\n") + "2026-11-30 08:00:00,5,7,6\r\n\r\n2026-11-30 09:00:01.5+01:00,6,8,0\r\n",
        "frames,note,Time,Request tokens,Response tokens\n6,a,10,5,7\n0,b,11.5,6,8\n",
    ],
)
def test_logs_of_users_are_read_as_they_come(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    found = read_csv(path).arrivals
    assert found.at.tolist() == [0.0, 1.5]
    assert found.prompt_tokens.tolist() == [5, 6]
    assert found.output_tokens.tolist() == [7, 8]
    assert found.frames.tolist() == [6, 0]


def test_a_gzipped_log_with_image_counts(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(
        gzip.compress(b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n0,0,1,1\n1,1,1,1\n2,2,1,1\n3,16,1,1\n")
    )
    assert read_workload(str(path)).arrivals.frames.tolist() == [0, 1, 8, 32]


def test_a_few_bad_lines_and_a_wrong_order_are_said(tmp_path):
    path = tmp_path / "log.csv"
    lines = [f"{second},5,7" for second in range(300)]
    lines[10], lines[20] = lines[20], "20,NaN,7"
    lines[30] = "30,-4,7"
    path.write_text("timestamp,prompt_tokens,output_tokens\n" + "\n".join(lines))
    log = read_csv(path)
    assert len(log.arrivals) == 298
    assert log.notes[0].startswith("log.csv: 2 of 300 lines left out (line 22: 'NaN' is no number of 0 or more)")
    assert "sorted by time" in log.notes[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column timestamp and prompt_tokens and output_tokens .its first line holds: nothing"),
        ("a,b\n1,2\n", "its first line holds: a, b"),
        ("timestamp,prompt_tokens\n0,1\n", "no column output_tokens"),
        (LOG, "holds no request"),
        (LOG + "0,1\n", "columns are missing"),
        (LOG + "yesterday,1,1,0\n", "'yesterday' is neither a time nor seconds"),
        (LOG + "0,-1,1,0\n" * 9 + "0,1,1,0\n", "9 of 10 lines can't be read; line 2: '-1' is no number"),
        (LOG + "inf,1,1,0\n", "neither a time nor seconds"),
        (LOG + "0,99999999999,1,0\n", "more than any engine takes"),
        (LOG + '0,"' + "x" * 200_000 + '",1,0\n', "is no CSV: field larger"),
    ],
)
def test_logs_that_are_none_are_refused(tmp_path, text, said):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=said):
        read_csv(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ("[1]", "line 1"),
        ('{"timestamp": 0, "input_length": 4}', "output_length is missing"),
        ('{"timestamp": "x", "input_length": 4, "output_length": 1}', "'x' is no number of 0 or more"),
        ('{"timestamp": 0, "input_length": null, "output_length": 1}', "'None' is no number"),
        ('{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": 7}', "line 1"),
    ],
)
def test_json_lines_that_are_none_are_refused(tmp_path, line, said):
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(WorkloadError, match=said):
        read_jsonl(path)


@pytest.mark.parametrize("read", [read_csv, read_jsonl])
def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path, read):
    """A gigabyte of zeros takes no room on the disk."""
    path = tmp_path / "zeros.csv"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    with pytest.raises(WorkloadError, match="line 1 has no end in a million characters"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_a_large_log_takes_no_more_memory_than_its_numbers(tmp_path):
    lines, path = 200_000, tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("timestamp,prompt_tokens,output_tokens,comment\n")
        file.writelines(f"{number / 100},500,100,{'x' * 80}\n" for number in range(lines))
    tracemalloc.start()
    assert len(read_csv(path).arrivals) == lines
    assert tracemalloc.get_traced_memory()[1] < 120 * lines, "the file is 105 bytes a line"
    tracemalloc.stop()


def test_files_that_cannot_be_opened_are_refused(tmp_path):
    for read in (read_csv, read_jsonl):
        with pytest.raises(WorkloadError, match="can't be read: No such file"):
            read(tmp_path / "gone.csv")
        with pytest.raises(WorkloadError, match="is a folder"):
            read(tmp_path)
    with pytest.raises(WorkloadError, match=r"holds no chunk-\*-trace.csv"):
        read_workload(str(tmp_path))


@pytest.mark.parametrize(
    ("trace", "dataset", "said"),
    [
        ("0,fast,1,Gamma,1,1\n", "", "line 1: '0,fast,1,Gamma,1,1' is not t,rate,cv"),
        ("0,1,1,Cauchy,1,1\n", "", "Gamma|Weibull|Exponential"),
        ("0,-1,1,Gamma,1,1\n", "", "line 1"),
        ("0,1\n", "", "line 1"),
        ("0,1,1,Gamma,1,1\n", "{}", "is not {"),
        ("0,1,1,Gamma,1,1\n", "[]", "is not {"),
        ("0,1,1,Gamma,1,1\n", '{"0": {"text_tokens": "{5: 1}"}}', "is not {"),
        (
            "0,1,1,Gamma,1,1\n",
            '{"0": {"text_tokens": "{5: -1}", "image_count": "{0: 1}", "output_tokens": "{}"}}',
            "is not {",
        ),
        ("0,1,1,Gamma,1,1\n", None, "can't be read"),
    ],
)
def test_servegen_clients_that_are_none_are_refused(tmp_path, trace, dataset, said):
    good = {"0": dict.fromkeys(("text_tokens", "image_count", "output_tokens"), "{1: 1.0}")}
    (tmp_path / "chunk-0-trace.csv").write_text(trace)
    if dataset is not None:
        (tmp_path / "chunk-0-dataset.json").write_text(dataset or json.dumps(good))
    with pytest.raises(WorkloadError, match=said):
        read_servegen(tmp_path)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_workload_or_a_clear_error(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    for name, start in (("log.csv", LOG.encode() + b"0,1,1,0\n"), ("log.jsonl", b""), ("raw.csv", b"")):
        path = folder / name
        path.write_bytes(start + content)
        with suppress(WorkloadError):
            read_workload(str(path))


def test_the_operator_runs_without_numpy():
    """It is for the simulator and the planner only."""
    code = (
        "import sys; import gemma_operator.app, gemma_operator.cli; "
        "sys.exit(', '.join({'numpy', 'numba', 'matplotlib'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr.strip() == ""
    )
