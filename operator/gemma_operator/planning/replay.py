"""Requests through engines in simulated time, by the step model: what clients would see."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gemma_operator.simulation.step_model import Costs, Engine, EngineConfig, FrontEnd, Media, Request, Step

IMAGE = Media(1, 280, 2)
"""An image of Gemma 4: 280 soft tokens, one token before and one after (vLLM)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: seconds of its arrival, and what it asks for."""

    at: float
    text_tokens: int
    output_tokens: int
    frames: int = 0
    """0: text only; 1: an image; more: a video of that many frames."""
    cached_tokens: int = 0
    """Of the text, what a prefix cache holds."""


def media_of(frames: int) -> tuple[Media, ...]:
    """The media item of so many frames, as the engine counts it."""
    if frames <= 0:
        return ()
    return (IMAGE,) if frames == 1 else (Media(frames),)


def ttfts(asks: Sequence[Ask], config: EngineConfig, costs: Costs | None = None, engines: int = 1) -> list[float]:
    """Seconds to the first token of each request; `asks` in order of arrival. Each goes to the engine with the fewest."""
    fleet = [_Lane(config, costs or Costs()) for _ in range(engines)]
    seen = [0.0] * len(asks)
    for number, ask in enumerate(asks):
        for lane in fleet:
            lane.run(ask.at, seen)
        min(fleet, key=lambda lane: lane.load).add(number, ask)
    for lane in fleet:
        lane.run(math.inf, seen)
    return seen


class _Lane:
    """One engine with its front end and its own clock."""

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        self._engine = Engine(config, costs)
        self._front_end = FrontEnd(costs)
        self._ready: list[tuple[float, int, Request]] = []
        self._numbers: dict[Request, int] = {}
        self._step: Step | None = None
        self._now = 0.0

    @property
    def load(self) -> int:
        """Requests that it has."""
        return len(self._numbers)

    def add(self, number: int, ask: Ask) -> None:
        request = Request(
            ask.at, ask.text_tokens, ask.output_tokens, media_of(ask.frames), cached_tokens=ask.cached_tokens
        )
        ready = self._front_end.ready_at(ask.at, [ask.frames] if ask.frames else [])
        self._numbers[request] = number
        heapq.heappush(self._ready, (ready, number, request))

    def run(self, until: float, seen: list[float]) -> None:
        """Compute until that time; a step that ends later is left under way."""
        while True:
            if self._step is None and not self._begin(until):
                return
            assert self._step is not None
            end = self._now + self._step.duration
            if end > until:
                return
            self._now = end
            for emission in self._engine.complete(self._step, end):
                if emission.first:
                    seen[self._numbers[emission.request]] = end - emission.request.arrival
                if emission.finished:
                    del self._numbers[emission.request]
            self._step = None

    def _begin(self, until: float) -> bool:
        """Start the next step; False where there is none before `until`."""
        while True:
            while self._ready and self._ready[0][0] <= self._now:
                ready, _, request = heapq.heappop(self._ready)
                self._engine.add(request, ready)
            self._step = self._engine.plan_step(self._now)
            if self._step is not None:
                return True
            if not self._ready or self._ready[0][0] > until:
                return False
            self._now = max(self._now, self._ready[0][0])
