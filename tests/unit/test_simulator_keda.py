"""The simulator's KEDA takes the path that KEDA 2.21 itself took, recorded with a real HPA controller (docs/simulator.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma_operator.simulation.peers import Hpa, Keda
from tests.support.hpa import Sync, model_of

RECORDED = json.loads((Path(__file__).parents[2] / "docs/data/keda-live.json").read_text())


@pytest.mark.parametrize("course", RECORDED["courses"], ids=lambda course: course["fallback"])
def test_the_simulated_keda_takes_kedas_own_path(course: dict[str, Any]) -> None:
    syncs = [
        Sync(row["at"], row["value"], row["replicas"], (row["ready"][0], row["ready"][1])) for row in course["syncs"]
    ]

    def keda(told: list[float]) -> Hpa:
        return Keda(
            lambda _: told[0],
            RECORDED["threshold"],
            absolute=True,
            most=RECORDED["most"],
            window=RECORDED["stabilisation_seconds"],
            fallback=4,
            falls_back_to_current=course["fallback"] == "currentReplicas",
        )

    path = [sync.replicas for sync in syncs[1:]]
    assert model_of(syncs, keda) == path
    assert max(path) >= 9, "it goes up"
    assert path[-1] < max(path), "and down again"
    assert sum(sync.value is None for sync in syncs) >= 8, "through errors and empty answers"
