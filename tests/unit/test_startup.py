"""How far an engine is in its start, from its Pod and the log that a real vLLM writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.engine.progress import marks
from gemma_operator.startup import PHASES, Startup, startup, wants_log


def at(seconds: int) -> str:
    """A time of Kubernetes, so many seconds after noon."""
    return f"2026-01-01T12:{seconds // 60:02}:{seconds % 60:02}Z"


def nano(seconds: int, nanos: int = 123456789) -> str:
    """A time as the kubelet puts it before each line of a log."""
    return at(seconds).replace("Z", f".{nanos:09}Z")


def log(*lines: tuple[int, str]) -> str:
    return "".join(f"{nano(seconds)} {line}\n" for seconds, line in lines)


# vLLM 0.32 on CPU (the first lines as it wrote them), and the same places of 0.32's sources for a GPU.
PREFIX = "(EngineCore pid=7) INFO 11-30 00:30:46"
BAR = "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]"
DOWNLOADED = (
    f"{PREFIX} [weight_utils.py:532] Time spent downloading weights for google/gemma-4-E4B-it: 93.401183 seconds"
)
LOADED = f"{PREFIX} [default_loader.py:501] Loading weights took 1.26 seconds"
MODEL = f"{PREFIX} [gpu_model_runner.py:5149] Model loading took 15.21 GiB memory and 98.112233 seconds"
WARMS_UP = f"{PREFIX} [cpu_model_runner.py:87] Warming up model for the compilation..."
STARTING = f"{PREFIX} [cpu_model_runner.py:68] Starting to load model /models..."
READY_SOON = "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (BAR, "Loading"),
        ("Loading safetensors checkpoint shards (eager):  50% Completed | 1/2 [00:02<00:02,  2.1s/it]", "Loading"),
        ("Loading pt checkpoint shards: 100% Completed | 1/1 [00:01<00:00,  1.25s/it]", "Loading"),
        ("Multi-thread loading shards:   0% Completed | 0/4 [00:00<?, ?it/s]", "Loading"),
        ("Loading safetensors using Runai Model Streamer:   0% Completed | 0/663 [00:00<?, ?it/s]", "Loading"),
        ("Loading safetensors using Fastsafetensor loader:   0% Completed | 0/2 [00:00<?, ?it/s]", "Loading"),
        ("Loading safetensors using InstantTensor loader: 100% Completed | 9/9", "Loading"),
        (DOWNLOADED, "Loading"),
        (LOADED, "Loading"),
        (MODEL, "Compiling"),
        (f"{PREFIX} [model_runner.py:292] Model loading took 15.21 GiB and 98.112233 seconds", "Compiling"),
        (WARMS_UP, "Compiling"),
        (STARTING, None),
        (f"{PREFIX} [api_utils.py:347]   model   google/gemma-4-E4B-it", None),
        (f"{PREFIX} [weight_utils.py:1108] Filesystem type for checkpoints: EXT4. Checkpoint size: 0.02 GiB.", None),
        (READY_SOON, None),
        ("", None),
    ],
)
def test_a_line_of_vllm_tells_the_phase(line: str, phase: str | None) -> None:
    assert marks(log((5, line))) == (((phase, nano(5)),) if phase else ())


def test_the_first_word_of_a_phase_is_its_beginning() -> None:
    written = log((10, STARTING), (40, DOWNLOADED), (41, BAR), (50, LOADED), (60, MODEL), (70, MODEL), (99, READY_SOON))
    assert marks(written) == (("Loading", nano(40)), ("Compiling", nano(60)))
    assert marks("") == ()


@given(st.text(max_size=200))
def test_any_log_can_be_read(text: str) -> None:
    assert len(marks(text)) <= 2


def pod(
    scheduled: int | None = None,
    runs: int | None = None,
    ready: int | None = None,
    started: bool | None = None,
    name: str = "p1",
    **more: Any,
) -> dict[str, Any]:
    """A Pod made at noon; seconds after which it was scheduled, its engine ran, and it was Ready."""
    conditions = [
        {
            "type": "PodScheduled",
            "status": str(scheduled is not None),
            **({"lastTransitionTime": at(scheduled)} if scheduled is not None else {}),
        },
        {"type": "Ready", "status": str(ready is not None), "lastTransitionTime": at(ready or 0)},
    ]
    engine: dict[str, Any] = {"name": "engine", "started": bool(ready) if started is None else started}
    engine["state"] = (
        {"running": {"startedAt": at(runs)}} if runs is not None else {"waiting": {"reason": "ContainerCreating"}}
    )
    proxy = {"name": "proxy", "started": True, "state": {"running": {"startedAt": at(1)}}}
    status = {"conditions": conditions, "containerStatuses": [proxy, engine | more]}
    return {"metadata": {"name": name, "creationTimestamp": at(0)}, "status": status}


LOGGED = marks(log((80, DOWNLOADED), (100, MODEL)))
LOADING = marks(log((80, DOWNLOADED)))


@pytest.mark.parametrize(
    ("found", "logged", "phase", "seconds"),
    [
        ({"metadata": {"name": "p1", "creationTimestamp": at(0)}}, (), "Scheduling", {}),
        (pod(), (), "Scheduling", {}),
        (pod(3), (), "Pulling", {"Scheduling": 3}),
        (pod(3, 20), (), "Downloading", {"Scheduling": 3, "Pulling": 17}),
        (pod(3, 20), LOADING, "Loading", {"Scheduling": 3, "Pulling": 17, "Downloading": 60}),
        (pod(3, 20), LOGGED, "Compiling", {"Scheduling": 3, "Pulling": 17, "Downloading": 60, "Loading": 20}),
        (
            pod(3, 20, 130),
            LOGGED,
            "Ready",
            {"Scheduling": 3, "Pulling": 17, "Downloading": 60, "Loading": 20, "Compiling": 30},
        ),
        (pod(3, 20, 130), (), "Ready", {"Scheduling": 3, "Pulling": 17, "Downloading": 110}),
        (pod(3, 20), marks(log((80, MODEL))), "Compiling", {"Scheduling": 3, "Pulling": 17, "Downloading": 60}),
    ],
    ids=[
        "without a status",
        "no node yet",
        "pulls",
        "runs",
        "loads",
        "compiles",
        "Ready",
        "Ready without a log",
        "without a word of weights",
    ],
)
def test_a_start_goes_through_its_phases(
    found: dict[str, Any], logged: Any, phase: str, seconds: dict[str, int]
) -> None:
    assert startup(found, logged) == Startup("p1", phase, seconds)
    said = {"pod": "p1", "phase": phase} | ({"seconds": seconds} if seconds else {})
    assert startup(found, logged).as_status() == said


def test_an_engine_that_misses_a_probe_later_on_is_not_starting_again() -> None:
    busy = pod(3, 20, started=True)
    assert startup(busy, ()).phase == "Ready"
    assert not wants_log(busy)


def test_a_restarted_engine_starts_anew_from_its_new_container() -> None:
    again = pod(
        3, 200, restartCount=1, lastState={"terminated": {"exitCode": 1, "startedAt": at(20), "finishedAt": at(190)}}
    )
    new = marks(log((260, DOWNLOADED)))
    assert startup(again, new).phase == "Loading"
    assert startup(again, new).seconds["Downloading"] == 60
    assert wants_log(again)


def test_times_out_of_order_never_count_below_zero() -> None:
    """Clocks of node and control plane differ."""
    assert startup(pod(30, 20), marks(log((10, DOWNLOADED)))).seconds == {
        "Scheduling": 30,
        "Pulling": 0,
        "Downloading": 0,
    }


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T12:01:20.5Z", "2026-01-01T12:01:20.499999999Z", "2026-01-01T12:01:20Z", "2026-01-01T12:01:20.000001Z"],
)
def test_times_of_every_precision_are_read(text: str) -> None:
    assert startup(pod(3, 20), (("Loading", text),)).seconds["Downloading"] == 60


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pod(), False),
        (pod(3), False),
        (pod(3, 20), True),
        (pod(3, 20, 130), False),
        ({"metadata": {"name": "p"}}, False),
    ],
    ids=["no node", "pulls", "starts", "Ready", "without a status"],
)
def test_a_log_is_read_only_while_it_says_more(found: dict[str, Any], wanted: bool) -> None:
    assert wants_log(found) is wanted


def test_phases_are_in_their_order() -> None:
    everything = startup(pod(3, 20, 130), LOGGED)
    assert [*everything.seconds, everything.phase] == list(PHASES)
