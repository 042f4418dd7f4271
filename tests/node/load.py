"""Load on a serving of the node, and what became of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tools.demo.load import Body, Client, Outcome


def ask(url: str, *bodies: Body, seconds: float = 10) -> list[Outcome]:
    """Send requests one after the other, each with so much time for its answer; returns what became of each."""

    async def send() -> list[Outcome]:
        async with Client(url, timeout=seconds) as client:
            return [await client.send(body) for body in bodies]

    return asyncio.run(send())


async def load_until(url: str, bodies: Any, rate: float, done: Any, what: str, seconds: float) -> list[Outcome]:
    """Open-loop load until `done()` is true."""
    stop = asyncio.Event()
    async with Client(url) as client:
        offering = asyncio.create_task(client.offer(bodies, rate, seconds, stop=stop))
        end = time.monotonic() + seconds
        try:
            while not await asyncio.to_thread(done):
                assert time.monotonic() < end, f"waited {seconds:.0f} s for: {what}"
                await asyncio.sleep(0.5)
        finally:
            stop.set()
            await offering
    return list(client.outcomes)


def failures(outcomes: list[Outcome]) -> list[str]:
    """Errors of the requests that failed."""
    return [f"{o.kind}: {o.error}" for o in outcomes if not o.ok]
