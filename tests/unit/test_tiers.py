"""Which test tiers run side by side."""

import re
from pathlib import Path

import pytest

from tools.tiers import HOLDS, LANES, PROGRAMS, startable

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        (["unit", "chart"], [], "unit"),
        (["chart", "node"], ["unit"], "chart"),
        (["monitoring"], ["unit", "chart"], None),
        (["argocd", "engine"], ["node"], "engine"),
        (["argocd", "demo"], ["node"], None),
        (["demo", "apiserver"], ["engine"], "apiserver"),
        (["plugin"], ["engine"], None),
        ([], ["unit"], None),
    ],
)
def test_a_tier_waits_only_for_what_another_holds(waiting: list[str], running: list[str], expected: str | None) -> None:
    assert startable(waiting, running) == expected


def test_every_tier_of_the_makefile_gets_its_turn() -> None:
    found = re.search(r"^TIERS := (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert found
    waiting, turns = found[1].split(), []
    assert set(waiting) >= {*HOLDS, *PROGRAMS}
    running: list[str] = []
    while waiting or running:
        while tier := startable(waiting, running):
            waiting.remove(tier)
            running.append(tier)
            assert len(running) <= LANES
        turns.append(running.pop(0))
    assert sorted(turns) == sorted(found[1].split())
