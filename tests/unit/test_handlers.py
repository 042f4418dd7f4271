"""What tells a living operator from a dead one."""

from __future__ import annotations

import kopf
import pytest

from gemma_operator.handlers import STUCK_SECONDS, register
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import WorkQueue


async def nothing(_: tuple[str, str]) -> None:
    return None


@pytest.mark.parametrize(("stuck", "lives"), [(0, True), (STUCK_SECONDS, True), (STUCK_SECONDS + 1, False)])
async def test_the_liveness_probe_fails_once_nothing_goes_on(stuck: float, lives: bool) -> None:
    registry = kopf.OperatorRegistry()
    register(registry, WorkQueue(nothing), read_settings({}), lambda: stuck)
    (probe,) = [one for one in registry._activities.get_all_handlers() if one.id == "stuck_seconds"]
    if lives:
        assert await probe.fn() == stuck
    else:
        with pytest.raises(kopf.PermanentError, match=f"for {stuck} s no worker moved"):
            await probe.fn()


def test_a_dead_loop_is_told_within_a_minute() -> None:
    """The chart's probe: three failures, ten seconds apart."""
    period, failures = 10, 3
    assert STUCK_SECONDS + (failures - 1) * period < 60
