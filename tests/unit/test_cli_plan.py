"""`gemma-operator plan`: what it prints, and what it says of wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_operator.cli import main

DATA = Path(__file__).parent / "data"


QUICK = "poisson:rate=30,seconds=600,output-tokens=10"


def test_the_table(capsys, tmp_path):
    page = tmp_path / "plan.html"
    options = [
        "--media-share",
        "0.2",
        "--gpu",
        "h100",
        "--gpu-hour-price",
        "2",
        "--batch-share",
        "0.2",
        "--plot",
        str(page),
    ]
    assert main(["plan", QUICK, *options]) == 0
    shown = capsys.readouterr().out
    for part in (
        "clients see",
        "interactive",
        "batch",
        "cost",
        "Replicas over time",
        "encoder not batched",
        "MTP with 4",
        "Memory of h100",
    ):
        assert part in shown, part
    assert "<svg" in page.read_text()
    assert "What would change" in page.read_text()


def test_json_has_the_same_figures(capsys, tmp_path):
    picture = tmp_path / "plan.png"
    assert main(["plan", QUICK, "-o", "json", "--gpu-hour-price", "3", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fleet"]["cost"] == pytest.approx(3 * found["fleet"]["gpuHours"])
    assert len(found["replicas"]["interactive"]) == 20
    assert found["workload"]["requests"] == pytest.approx(18_000, rel=0.05)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_log_a_profile_and_a_crop(capsys, tmp_path):
    profile = tmp_path / "profile.yaml"
    profile.write_text("points: [{mediaShare: 0, load: 3}]\n")
    log = str(DATA / "traces/azure_conv.csv")
    assert main(["plan", log, "--scale", "10", "--crop", "10:60", "--profile", str(profile), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "profile.yaml"
    assert found["workload"]["seconds"] <= 50


def test_the_profile_of_an_import_is_taken(capsys, tmp_path):
    assert main(["profile", "import", str(DATA / "loadtests/inference-perf/batch_size"), "--arrivals", "poisson"]) == 0
    path = tmp_path / "profile.yaml"
    path.write_text(capsys.readouterr().out)
    assert (
        main(
            [
                "plan",
                "poisson:rate=60,seconds=60,prompt-tokens=201,output-tokens=63",
                "--profile",
                str(path),
                "-o",
                "json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["requestsPerSecondPerEngine"] == pytest.approx(74.9, rel=0.02)
    assert told["maxQueuedTokens"] == pytest.approx(74.9 * 201 * 0.3, rel=0.02), "prompt tokens each, 300 ms"


def test_work_without_a_target_has_no_limit_of_its_queue(capsys):
    batch_only = ["plan", "poisson:rate=5,seconds=120,output-tokens=4", "--batch-share", "1"]
    assert main(batch_only) == 0
    assert "maxQueuedTokens" not in capsys.readouterr().out
    assert main([*batch_only, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["maxQueuedTokens"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "neither a file or folder nor a description"),
        (["poisson:rate=0"], "the workload holds no request"),
        (["poisson:rate=5,seconds=60", "--slo", "20ms"], "no fleet holds p95 TTFT within 20 ms"),
        (["poisson:rate=5,seconds=60", "--profile", "nowhere"], "--profile nowhere can't be read"),
        (["poisson:rate=5,seconds=60", "--model", "llama", "--gpu", "h100"], "isn't in the catalog as a model"),
        (
            ["poisson:rate=5,seconds=60", "--model", "google/gemma-4-E4B-it", "--precision", "nvfp4", "--gpu", "h100"],
            "in this precision",
        ),
        (
            ["poisson:rate=5,seconds=60,output-tokens=4", "--plot", "/nowhere/x.png"],
            "--plot /nowhere/x.png can't be written",
        ),
    ],
)
def test_wrong_input_is_one_clear_line(capsys, arguments, said):
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gemma-operator: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h99"], "'h99' is no known GPU: gb200"),
        (["--crop", "9:3"], "'9:3' holds nothing"),
        (["--crop", "x"], "'x' is no number"),
        (["--scale", "0"], "no number from 0.001"),
        (["--media-share", "7"], "no number from 0 to 1"),
        (["--plot", "x.pdf"], "'x.pdf' is no .png, .svg, .html"),
        (["--deadline", "1s"], "give 60s to 604800s"),
        (["--gpu-hour-price", "-1"], "no number from 0"),
    ],
)
def test_wrong_options_are_one_clear_line(capsys, arguments, said):
    with pytest.raises(SystemExit):
        main(["plan", "poisson", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a: [", "speed: 3", "kind: ConfigMap", "kind: ConfigMap\ndata: {a: x, b: y}", "- 1"])
def test_profiles_that_are_none_are_refused(capsys, tmp_path, text):
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    assert main(["plan", QUICK, "--profile", str(path)]) == 2
    assert f"--profile {path} is none: " in capsys.readouterr().err


def test_without_numpy_it_says_what_to_install():
    code = (
        "import sys; sys.modules['numpy'] = None; from gemma_operator.cli import main; "
        "sys.exit(main(['plan', 'poisson']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "gemma-operator: plan needs numpy: pip install 'gemma-operator[simulator]'\n"
