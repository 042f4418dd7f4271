"""The check with real vLLM: text, image and video answered through both Services, and counted all the way to status."""

import asyncio
import time
from collections.abc import Callable

from tools.demo import traffic
from tools.demo.console import say
from tools.demo.load import Body, Client, Outcome
from tools.demo.recording import milliseconds
from tools.demo.watch import Watch

POOLS = ("interactive", "batch")
KINDS: tuple[Callable[[str, int], Body], ...] = (traffic.text_body, traffic.image_body, traffic.video_body)
REQUEST_TIMEOUT_SECONDS = 120.0
SEEN_WITHIN_SECONDS = 120.0


async def check_answers(watch: Watch) -> list[str]:
    """What failed: requests, or their count on its way to Prometheus and the status. Nothing: all is well."""
    outcomes = {pool: await _ask(watch, pool) for pool in POOLS}
    say(_table(outcomes))
    failed = [
        f"the {pool} pool failed on a {outcome.kind} request: {outcome.error}"
        for pool, answers in outcomes.items()
        for outcome in answers
        if not outcome.ok
    ]
    return failed or await _await_counted(watch, {pool: len(answers) for pool, answers in outcomes.items()})


async def _ask(watch: Watch, pool: str, rounds: int = 3) -> list[Outcome]:
    url = await watch.url(pool)
    model = await watch.model(url)
    say(f"{pool}: {rounds} texts, images and videos to {url}, one after the other")
    async with Client(url, timeout=REQUEST_TIMEOUT_SECONDS) as client:
        for number in range(rounds):
            for make in KINDS:
                await client.send(make(model, number))
    return client.outcomes


async def _await_counted(watch: Watch, sent: dict[str, int]) -> list[str]:
    """The operator looks back on a window of traffic only, so requests go on until its status shows some."""
    deadline = time.monotonic() + SEEN_WITHIN_SECONDS
    url = await watch.url("interactive")
    model = await watch.model(url)
    async with Client(url, timeout=REQUEST_TIMEOUT_SECONDS) as client:
        while missing := await _not_seen(watch, sent):
            if time.monotonic() > deadline:
                return missing
            await client.send(traffic.text_body(model, len(client.outcomes)))
            await asyncio.sleep(1)
    pool = (await watch.status())["pools"]["interactive"]
    say(f"status: interactive p95 {pool.get('p95Milliseconds')} ms over {pool.get('samples')} requests, Ready=True")
    return []


async def _not_seen(watch: Watch, sent: dict[str, int]) -> list[str]:
    status = await watch.status()
    missing = []
    for pool, count in sent.items():
        answered = await watch.answered(pool)
        if answered is None or answered < count:
            missing.append(f"Prometheus counts {answered or 0:.0f} of {count} requests of the {pool} pool")
    if not status["pools"]["interactive"].get("samples"):
        missing.append("the status of the interactive pool has no samples")
    states = {condition["type"]: condition["status"] for condition in status["conditions"]}
    missing += [
        f"condition {kind} is {states.get(kind, 'absent')}"
        for kind in ("Ready", "MetricsAvailable")
        if states.get(kind) != "True"
    ]
    return missing


def _table(outcomes: dict[str, list[Outcome]]) -> str:
    lines = [f"{'pool':<12} {'request':<8} {'answered':>8}  TTFT (fastest, slowest)"]
    for pool, answers in outcomes.items():
        for kind in dict.fromkeys(outcome.kind for outcome in answers):
            of_kind = [outcome for outcome in answers if outcome.kind == kind]
            times = [outcome.ttft for outcome in of_kind if outcome.ok and outcome.ttft is not None]
            good = sum(outcome.ok for outcome in of_kind)
            spread = f"{milliseconds(min(times))}, {milliseconds(max(times))}" if times else "-"
            lines.append(f"{pool:<12} {kind:<8} {good:>4} of {len(of_kind)}  {spread}")
    return "\n".join(lines)
