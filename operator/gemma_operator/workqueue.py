"""A keyed work queue: bursts collapse, one run per key at a time, failures back off (as client-go's workqueue)."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)
Key = tuple[str, str]
"""(namespace, name)"""


class WorkQueue:
    """`add(key)` asks for a run of `reconcile(key)`, which returns in how many seconds to run again, or None for never.

    `tell` gives the one line that the log has of what failed.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        tell: Callable[[Exception], str] = str,
        backoff_seconds: float = 1,
        backoff_cap_seconds: float = 300,
    ) -> None:
        self._reconcile = reconcile
        self._tell = tell
        self._backoff = backoff_seconds
        self._cap = backoff_cap_seconds
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._running: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._moved = 0.0
        """When a worker last took or finished a key, in the loop's time."""
        self._changed = asyncio.Condition()
        self._is_closing = False

    @property
    def depth(self) -> int:
        """Keys that wait for a run, now or later."""
        return len(self._due)

    def stuck_seconds(self) -> float:
        """For how long a key has been due without that any worker took or finished one; a long queue alone is no fault."""
        if not self._due:
            return 0.0
        return max(0.0, asyncio.get_running_loop().time() - max(self._moved, min(self._due.values())))

    async def add(self, key: Key, delay_seconds: float = 0.0) -> None:
        """Run `key` after the delay, never after an infinite one; a sooner run that is already planned stays.

        A key that runs now waits for its end.
        """
        if delay_seconds == math.inf:
            return
        due = asyncio.get_running_loop().time() + delay_seconds
        if key in self._running:
            self._again[key] = min(due, self._again.get(key, due))
        elif due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            async with self._changed:
                self._changed.notify_all()

    async def close(self) -> None:
        """Let every worker end after the key that it runs."""
        self._is_closing = True
        async with self._changed:
            self._changed.notify_all()

    async def work(self) -> None:
        """Serve keys until the queue is closed; start it several times for several workers."""
        while not self._is_closing:
            key = await self._take()
            if key is None:
                return
            again = await self._run(key)
            self._moved = asyncio.get_running_loop().time()
            self._running.discard(key)
            changed = self._again.pop(key, None)
            if changed is not None:
                await self.add(key, changed - asyncio.get_running_loop().time())
            if again is not None:
                await self.add(key, again)

    async def _run(self, key: Key) -> float | None:
        try:
            again = await self._reconcile(key)
        except Exception as error:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(self._cap, self._backoff * 2.0 ** min(count - 1, 30)) * random.uniform(0.8, 1.2)
            log.warning(
                "reconcile of %s/%s failed (%d in a row), again in %.1f s: %s", *key, count, delay, self._tell(error)
            )
            log.debug("traceback", exc_info=True)
            return delay
        self._failures.pop(key, None)
        return again

    async def _take(self) -> Key | None:
        loop = asyncio.get_running_loop()
        while not self._is_closing:
            while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            wait = self._heap[0][0] - loop.time() if self._heap else None
            if wait is not None and wait <= 0:
                key = heapq.heappop(self._heap)[1]
                del self._due[key]
                self._running.add(key)
                self._moved = loop.time()
                return key
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait(), wait)
                except TimeoutError:
                    continue
        return None
