"""Which engines hang: requests are in them, and nothing of them moves. Pure; works with any engine's counters.

The engine's own health check goes on answering then (vllm#39734, #39914, #45388). vLLM counts a request with its first step, so
that an engine which hangs in the first step after it was idle is found by our plugin's count of unanswered requests alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gemma_operator.scaling.counters import EngineCounters
from gemma_operator.scaling.observation import FRESH_SECONDS
from gemma_operator.scaling.pool import Fleet

COOL_SECONDS = 600.0
"""From one restart to the next: if restarts don't help, they must not eat up the pools."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What is kept of an engine between ticks. Times are epoch seconds, by the source's clock."""

    sample: EngineCounters
    since: float
    """When it last moved, or had nothing to do."""

    @property
    def seconds(self) -> float:
        """How long it has stood still."""
        return self.sample.at - self.since


Beats = Mapping[str, Beat]
"""By Pod UID."""


@dataclass(frozen=True, slots=True)
class Hung:
    """An engine that hangs."""

    uid: str
    pod: str
    since: float


def follow(beats: Beats, engines: Mapping[str, EngineCounters], now: float) -> dict[str, Beat]:
    """The beats after a reading. An engine without a fresh sample is forgotten: what isn't seen doesn't hang."""
    new = {uid: beat for uid, beat in beats.items() if now - beat.sample.at <= FRESH_SECONDS}
    for uid, sample in engines.items():
        before = new.get(uid)
        if before and sample.at <= before.sample.at:
            continue
        new[uid] = Beat(sample, before.since if before and _stands(before.sample, sample) else sample.at)
    return new


def _stands(before: EngineCounters, sample: EngineCounters) -> bool:
    """Whether requests are there, and nothing has moved since the sample before.

    A refusal needs no step. It counts only where no step has told of a request: whatever waits there may be refused next.
    """
    if _signs(sample) != _signs(before):
        return False
    return sample.running + sample.waiting > 0 or (bool(sample.unanswered) and sample.answered == before.answered)


def _signs(sample: EngineCounters) -> tuple[object, ...]:
    """What moves with every step or two. A long prompt takes many steps without a token, and fills the KV cache meanwhile."""
    done = sample.ttft[-1][1], sample.generated_tokens, sample.prompt_tokens, sum(sample.finished.values())
    return (*done, sample.kv_usage, sample.started_at)


def may_restart(hung: Iterable[Hung], fleets: Iterable[Fleet], last: float, now: float) -> Hung | None:
    """The engine to restart now: the one that hangs for longest, while every other one of the serving that has a node is Ready."""
    waits = now - last < COOL_SECONDS
    starts = any(
        fleet.pending > fleet.unschedulable
        or sum(not member.lent for member in fleet.members) + fleet.away + fleet.pending < fleet.desired
        for fleet in fleets
    )
    return None if waits or starts else min(hung, key=lambda one: one.since, default=None)
