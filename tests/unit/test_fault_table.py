"""Every fault of the log of practice is held by a test, or there is a reason why not."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tools.fault_docs import PAGE, TABLE, page, places

ROWS: dict[str, dict[str, Any]] = tomllib.loads(TABLE.read_text())
# How many rows each part of the log has, and its highest number.
PARTS = {
    "A": (13, 21),
    "B": (5, 7),
    "C": (8, 11),
    "D": (13, 17),
    "E": (12, 17),
    "F": (9, 11),
    "G": (11, 15),
    "H": (4, 5),
}


def test_no_row_is_missing() -> None:
    for part, (count, highest) in PARTS.items():
        numbers = [int(row[1:]) for row in ROWS if row.startswith(part)]
        assert (len(numbers), max(numbers)) == (count, highest), part
    assert len(ROWS) == 75


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_tests_that_exist_or_a_reason(row: str) -> None:
    told = ROWS[row].keys() - {"fault"}
    assert len(told) == 1
    assert told <= {"tests", "reason", "pending"}
    for name in ROWS[row].get("tests", ["-"]):
        assert name == "-" or name in places()


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text() == page(ROWS, places()), "run `make generate`"


CHECKLIST = {"B": 5, "C": 16, "D": 9, "E": 6, "F": 4}


def test_every_point_of_the_gitops_checklist_is_held_by_tests_that_exist() -> None:
    rows: dict[str, list[str]] = tomllib.loads((TABLE.parent / "gitops.toml").read_text())
    assert list(rows) == [f"{part}{number + 1}" for part, count in CHECKLIST.items() for number in range(count)]
    assert [name for names in rows.values() for name in names if name not in places()] == []
    assert all(rows.values())
