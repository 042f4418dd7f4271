"""What tells a living operator from a dead one."""

from __future__ import annotations

import kopf
import pytest

from gemma_operator.handlers import CHILD_SECONDS, STUCK_SECONDS, register
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


async def test_a_write_of_its_own_asks_for_no_look_and_a_childs_events_for_one_together() -> None:
    asked: list[tuple[tuple[str, str], float]] = []

    class Queue(WorkQueue):
        async def add(self, key: tuple[str, str], delay_seconds: float = 0.0) -> None:
            asked.append((key, delay_seconds))

    registry = kopf.OperatorRegistry()
    register(registry, Queue(nothing), read_settings({}), lambda: 0, {"7"}.__contains__)
    on_serving, on_child = [
        next(one.fn for one in registry._watching.get_all_handlers() if one.id.endswith(name))
        for name in ("on_serving", "on_child")
    ]
    marks = {"annotations": {"gemmaserving.dev/serving": "chat"}}
    for version in ("7", "8"):
        await on_serving(meta={"namespace": "ns", "name": "chat", "resourceVersion": version})
        await on_child(meta={"namespace": "ns", "name": "chat-batch", "resourceVersion": version, **marks})
    await on_child(meta={"namespace": "ns", "name": "stranger", "resourceVersion": "9"})
    assert asked == [(("ns", "chat"), 0.0), (("ns", "chat"), CHILD_SECONDS)]
