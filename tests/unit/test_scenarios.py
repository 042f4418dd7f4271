"""The scenes of docs/autoscaling.md: their servings are sound, and their figures are what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma_operator.desired import desired
from tests.unit.builders import DEFAULTS, serving
from tools.demo.load import Outcome
from tools.scenarios.picture import draw
from tools.scenarios.play import table
from tools.scenarios.recording import Recording, Sample, figures
from tools.scenarios.scenes import scenes


@pytest.mark.parametrize("short", [False, True])
def test_every_serving_of_a_scene_is_sound_and_lends_where_it_says_so(short: bool) -> None:
    for scene in scenes(short).values():
        for run in scene.runs:
            found = desired(serving(dict(run.pools)), DEFAULTS)
            assert found.lenders == (frozenset({"batch"}) if "with donors" in run.name else frozenset())
            assert not found.warnings


def test_the_short_ones_last_less_than_the_time_that_tests_have() -> None:
    short, whole = (
        {
            name: sum(part.seconds for run in scene.runs for part in run.parts)
            for name, scene in scenes(is_short).items()
        }
        for is_short in (True, False)
    )
    assert all(short[name] < whole[name] for name in whole)
    assert short["step"] + short["infeasible"] <= 120


def recording() -> Recording:
    """Ten seconds at one engine, ten at two of which one is lent; every tenth request is late, the last one fails."""
    found = Recording("with donors", 0.3, [("before", 2.0, 0.0, 10.0), ("peak", 4.0, 10.0, 20.0)])
    outcomes = [Outcome(1000 + n / 2, "text", True, 0.9 if n % 10 == 0 else 0.1, 1.0) for n in range(40)]
    outcomes[-1] = Outcome(1019.5, "text", False, None, 1.0, error="gone")
    found.take(outcomes, 1000.0)
    for at in range(0, 21, 2):
        own = 1 if at < 10 else 2
        found.samples.append(
            Sample(
                at,
                {"interactive": own, "batch": 3},
                {"interactive": 1, "batch": 3},
                own - 1,
                {},
                "because",
                {"interactive": own},
            )
        )
    return found


def test_figures_are_what_was_recorded() -> None:
    found = recording()
    before, peak = (figures(found, part) for part in ("before", "peak"))
    assert before == {
        "part": "before", "requests": 20, "attainment": 0.9, "seconds_over_slo": 10, "gpu_seconds": 32,
        "most_interactive": 1, "most_borrowed": 0, "writes_of_interactive": 0,
    }  # fmt: skip
    assert (peak["attainment"], peak["gpu_seconds"], peak["most_borrowed"]) == (0.85, 40, 1)
    assert "85.0%" in table(found)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    draw("Three times the load", [recording(), recording()], file)
    assert file.read_bytes().startswith(b"\x89PNG")
