"""Events come with turns of a condition and changes of a size, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.events import events_of

OTHERS = ("MetricsAvailable", "CapacityAvailable", "ScalingSound", "UpdateAvailable", "SoleOperator")


def told(
    ready: str, stalled: str = "False", slo: str = "Unknown", desired: int = 1, why: str = "too slow"
) -> dict[str, Any]:
    statuses = {"Ready": ready, "Stalled": stalled, "SLOMet": slo, **dict.fromkeys(OTHERS, "Unknown")}
    rows = [{"type": kind, "status": value, "reason": "R", "message": "m"} for kind, value in statuses.items()]
    decision = {"replicas": desired, "reason": "SloMissed", "message": why}
    return {"conditions": rows, "pools": {"interactive": {"desired": desired, "lastDecision": decision}}}


@pytest.mark.parametrize(
    ("old", "new", "events"),
    [
        ({}, told("False"), []),
        ({}, told("False", "True"), [("Warning", "R", "Stalled is True: m")]),
        (told("False"), told("True"), [("Normal", "R", "Ready is True: m")]),
        (told("True"), told("False"), [("Warning", "R", "Ready is False: m")]),
        (told("True", "True"), told("True"), []),
        (told("True"), told("True", slo="False"), [("Warning", "R", "SLOMet is False: m")]),
        (told("True", slo="False"), told("True"), []),
        (told("True"), told("True"), []),
        (told("True"), told("True", desired=3), [("Normal", "Scaled", "pool interactive: 1 -> 3 replicas")]),
        (
            told("True"),
            told("True", desired=3, why="1 -> 3 replicas: too slow"),
            [("Normal", "Scaled", "pool interactive: 1 -> 3 replicas: too slow")],
        ),
    ],
)
def test_an_event_for_each_turn_and_none_for_standing_still(old: Any, new: Any, events: list[Any]) -> None:
    assert events_of(old, new) == events
