"""The work queue, on a clock that jumps to the next moment at which something is due."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest

from gemma_operator.workqueue import Key, WorkQueue

A, B = ("ns", "a"), ("ns", "b")


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a time, moves the clock on by it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing is due and nothing can happen any more"
            self.now += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on that clock."""

    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulate(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(story())


class Recorder:
    """A reconcile that keeps when it ran for what, takes `takes` seconds, and answers what the test says."""

    def __init__(self, takes: float = 0.0, answers: Iterator[float | Exception | None] | None = None) -> None:
        self.runs: list[tuple[float, Key]] = []
        self.together = 0
        self.most_together = 0
        self._takes, self._answers = takes, answers

    async def __call__(self, key: Key) -> float | None:
        self.runs.append((asyncio.get_running_loop().time(), key))
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        await asyncio.sleep(self._takes)
        self.together -= 1
        answer = next(self._answers, None) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def times(self) -> list[float]:
        return [round(at, 3) for at, _ in self.runs]


class Working:
    """A queue with workers, for the length of a `with`."""

    def __init__(self, reconcile: Recorder, workers: int = 1, **options: float) -> None:
        self.queue = WorkQueue(reconcile, **options)
        self._tasks = [asyncio.create_task(self.queue.work()) for _ in range(workers)]

    async def __aenter__(self) -> WorkQueue:
        await asyncio.sleep(0)
        return self.queue

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma_operator.workqueue.random.uniform", lambda low, high: (low + high) / 2)


def test_a_burst_of_events_is_one_run() -> None:
    async def story() -> None:
        reconcile = Recorder()
        async with Working(reconcile, workers=4) as queue:
            for _ in range(100):
                await queue.add(A)
            await asyncio.sleep(1)
        assert reconcile.runs == [(0.0, A)]

    simulate(story)


def test_several_workers_serve_several_keys_at_once_but_one_key_never_twice() -> None:
    async def story() -> None:
        reconcile = Recorder(takes=10)
        async with Working(reconcile, workers=4) as queue:
            for second in range(8):
                await queue.add(A)
                await queue.add(B, delay_seconds=second / 2)
                await asyncio.sleep(1)
            await asyncio.sleep(100)
        assert reconcile.most_together == 2
        for key in (A, B):
            starts = [at for at, ran in reconcile.runs if ran == key]
            assert all(later - sooner >= 10 for sooner, later in pairwise(starts))

    simulate(story)


def test_a_change_during_a_run_is_one_more_run_right_after_it() -> None:
    async def story() -> None:
        reconcile = Recorder(takes=10)
        async with Working(reconcile, workers=2) as queue:
            await queue.add(A)
            await asyncio.sleep(1)
            for _ in range(5):
                await queue.add(A)
            await asyncio.sleep(100)
        assert reconcile.times == [0, 10]

    simulate(story)


def test_a_later_run_asked_for_during_a_run_waits_for_its_end() -> None:
    async def story() -> None:
        reconcile = Recorder(takes=10)
        async with Working(reconcile, workers=2) as queue:
            await queue.add(A)
            await asyncio.sleep(1)
            await queue.add(A, delay_seconds=2)
            await asyncio.sleep(11)
            await queue.add(A, delay_seconds=50)
            await asyncio.sleep(100)
        assert reconcile.times == [0, 10, 62]

    simulate(story)


def test_failures_back_off_up_to_a_cap_and_success_forgets_them() -> None:
    async def story() -> None:
        fails = [RuntimeError("no")] * 4
        reconcile = Recorder(answers=iter([*fails, None, RuntimeError("no"), None]))
        async with Working(reconcile, backoff_seconds=1, backoff_cap_seconds=5) as queue:
            await queue.add(A)
            await asyncio.sleep(100)
            await queue.add(A)
            await asyncio.sleep(100)
        assert reconcile.times == [0, 1, 3, 7, 12, 100, 101]

    simulate(story)


def test_one_failing_key_holds_up_no_other() -> None:
    async def story() -> None:
        reconcile = Recorder(answers=iter([RuntimeError("no"), None]))
        async with Working(reconcile, backoff_seconds=30) as queue:
            await queue.add(A)
            await queue.add(B)
            await asyncio.sleep(1)
            assert [key for _, key in reconcile.runs] == [A, B]
            assert queue.depth == 1

    simulate(story)


def test_an_event_comes_before_a_back_off() -> None:
    async def story() -> None:
        reconcile = Recorder(answers=iter([RuntimeError("no"), None]))
        async with Working(reconcile, backoff_seconds=300) as queue:
            await queue.add(A)
            await asyncio.sleep(5)
            await queue.add(A)
            await asyncio.sleep(1000)
        assert reconcile.times == [0, 5]

    simulate(story)


def test_a_run_is_repeated_after_what_the_last_one_asked_for() -> None:
    async def story() -> None:
        reconcile = Recorder(answers=iter([300.0, 20.0, None]))
        async with Working(reconcile) as queue:
            await queue.add(A)
            await asyncio.sleep(1000)
            assert queue.depth == 0
        assert reconcile.times == [0, 300, 320]

    simulate(story)


@pytest.mark.parametrize(("delays", "times"), [((10, 5), [5]), ((5, 10), [5]), ((10, 0), [0]), ((7, 7), [7])])
def test_of_two_planned_runs_the_sooner_wins(delays: tuple[float, float], times: list[float]) -> None:
    async def story() -> None:
        reconcile = Recorder()
        async with Working(reconcile, workers=2) as queue:
            for delay in delays:
                await queue.add(A, delay)
            await asyncio.sleep(100)
        assert reconcile.times == times

    simulate(story)


def test_a_queue_is_stuck_where_keys_are_due_and_no_worker_moves() -> None:
    async def story() -> None:
        reconcile = Recorder(takes=30)
        async with Working(reconcile, workers=1) as queue:
            assert queue.stuck_seconds() == 0
            await queue.add(A)
            await asyncio.sleep(1)
            await queue.add(B)
            await asyncio.sleep(20)
            assert queue.stuck_seconds() == 20
            await asyncio.sleep(10)
            assert queue.stuck_seconds() == 0

    simulate(story)


def test_a_long_queue_is_not_stuck() -> None:
    """A cold start of a thousand servings keeps the last key waiting for minutes, and must not be taken for a dead loop."""

    async def story() -> None:
        async with Working(Recorder(takes=10), workers=1) as queue:
            for number in range(100):
                await queue.add(("ns", f"s{number}"))
            for _ in range(98):
                await asyncio.sleep(10)
                assert queue.stuck_seconds() <= 10

    simulate(story)


def test_what_failed_is_told_in_the_words_of_who_knows(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        queue = WorkQueue(
            Recorder(answers=iter([RuntimeError("two\nlines")])), lambda error: f"told: {str(error).split()}"
        )
        work = asyncio.create_task(queue.work())
        await queue.add(A)
        await asyncio.sleep(0.5)
        work.cancel()

    simulate(story)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "reconcile of ns/a failed (1 in a row), again in 1.0 s: told: ['two', 'lines']"
    ]
