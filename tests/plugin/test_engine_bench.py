"""The committed figures of `make engine-bench`: what they must say, and that the page shows them."""

from __future__ import annotations

import json

import pytest

from tools.engine_bench import DATA, DOCS, TOWERS, gaps, share, split, tables

FIGURES = json.loads(DATA.read_text())


@pytest.mark.parametrize("part", ["checks", "stall"])
def test_the_page_shows_the_committed_figures(part: str) -> None:
    shown = DOCS.read_text().split(f"<!-- {part} -->")[1].split(f"<!-- /{part} -->")[0].strip()
    assert shown.splitlines() == tables(FIGURES)[part]


def test_the_check_takes_less_than_two_seconds_beyond_warm_up_with_the_model_that_is_served() -> None:
    """By the clock, also at E4B's width on two cores."""
    checks = FIGURES["checks"]
    tiny, wide = (min(one["seconds"] for one in checks["towers"][name][1:]) for name in TOWERS)
    assert tiny < 1
    assert wide < 1.5
    assert all(one["seconds"] < 2 for one in checks["probe"][1:3])
    assert checks["probe"][0]["core_seconds"] - checks["unchecked"][0]["core_seconds"] < 2


def test_the_limit_divides_a_running_answers_longest_wait() -> None:
    none, two, one = (share(FIGURES["stall"]["limits"][limit]) for limit in ("none", "800", "400"))
    assert one < two < none / 1.7


def test_a_wait_that_a_burst_begins_in_counts() -> None:
    before, after = split([1.0, 2.0, 3.0, 9.0, 10.0], at=4.0)
    assert (before, after) == ([1.0, 2.0, 3.0], [3.0, 9.0, 10.0])
    assert gaps(after) == [6.0, 1.0]


def test_an_answer_that_has_not_begun_has_no_wait() -> None:
    assert split([5.0], at=4.0) == ([], [5.0])
