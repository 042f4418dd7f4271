"""What a tick costs, as counts: seconds are for `make bench`."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.scaling import Pool, seen
from tools.bench_scaling import tick_figures

MOST_CALLS = 4000
"""Of Python functions in one decision; a thousand of them are about 0.1 ms."""


def calls(work: Any) -> int:
    """Calls of Python functions while `work` runs."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_decision_looks_at_a_history_that_stops_growing() -> None:
    pool = Pool(3)
    pool.run(seen(60), 1500)
    full = calls(lambda: pool.tick(seen(60)))
    pool.run(seen(60), 3000)
    assert calls(lambda: pool.tick(seen(60))) <= full * 1.2
    assert full < MOST_CALLS


def test_a_tick_asks_as_much_for_many_pools_as_for_one() -> None:
    few, many = tick_figures(2), tick_figures(60)
    assert few["queries"] == many["queries"] == 1
    assert many["series"] == 30 * few["series"]
