"""The committed figures of `make engine-bench`: what they must say, and that the page shows them."""

from __future__ import annotations

import json

import pytest

from tools.engine_bench import DATA, DOCS, gaps, share, split, tables

FIGURES = json.loads(DATA.read_text())


@pytest.mark.parametrize("part", ["checks", "stall"])
def test_the_page_shows_the_committed_figures(part: str) -> None:
    shown = DOCS.read_text().split(f"<!-- {part} -->")[1].split(f"<!-- /{part} -->")[0].strip()
    assert shown.splitlines() == tables(FIGURES)[part]


def test_two_cores_of_its_own_check_an_engine_in_less_than_two_seconds_beyond_warm_up() -> None:
    """The machine of the figures is shared, so its clock tells of others' work too: what counts is what the check computes."""
    runs = [*FIGURES["checks"]["towers"].values(), FIGURES["checks"]["probe"][:3]]
    assert all(min(one["core_seconds"] for one in later) / 2 < 2 for _, *later in runs)


def test_the_limit_divides_a_running_answers_longest_wait() -> None:
    none, two, one = (share(FIGURES["stall"]["limits"][limit]) for limit in ("none", "800", "400"))
    assert one < two < none / 1.7


def test_a_wait_that_a_burst_begins_in_counts() -> None:
    before, after = split([1.0, 2.0, 3.0, 9.0, 10.0], at=4.0)
    assert (before, after) == ([1.0, 2.0, 3.0], [3.0, 9.0, 10.0])
    assert gaps(after) == [6.0, 1.0]


def test_an_answer_that_has_not_begun_has_no_wait() -> None:
    assert split([5.0], at=4.0) == ([], [5.0])
