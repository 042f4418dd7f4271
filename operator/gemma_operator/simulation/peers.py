"""Other autoscalers' formulas as policies (research/autoscaling.md section 1), each with its own defaults.

They read what they read in the field: rates over a minute from the engines' counters, gauges of the newest scrape.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemma_operator.scaling.counters import EngineCounters, Missing, Reading
from gemma_operator.scaling.pool import Fleet
from gemma_operator.scaling.verdict import add, quantile

WINDOW_SECONDS = 60.0
FAILURE_THRESHOLD = 3
"""Of KEDA's fallback, as its documentation's example sets it."""


@dataclass(slots=True)
class Seen:
    """The engines' samples of the last minute."""

    kept: deque[tuple[float, Mapping[str, EngineCounters]]] = field(default_factory=deque)

    def take(self, now: float, reading: Reading) -> Mapping[str, EngineCounters] | None:
        """The newest samples; None where there is no reading."""
        if isinstance(reading, Missing):
            return None
        self.kept.append((now, reading.engines))
        while len(self.kept) > 2 and now - self.kept[1][0] >= WINDOW_SECONDS:
            self.kept.popleft()
        return reading.engines

    def rate(self, value: Callable[[EngineCounters], float]) -> float:
        """Sum of the engines' growth per second, as `sum(rate(x[1m]))`."""
        first, newest = self.kept[0][1], self.kept[-1][1]
        total = 0.0
        for uid, new in newest.items():
            old = first.get(uid)
            if old and new.at > old.at:
                total += max(0.0, value(new) - value(old)) / (new.at - old.at)
        return total

    def p95(self, edges: tuple[float, ...] | None = None) -> float | None:
        """The 95th percentile of TTFT in seconds, over some of the edges; None without samples."""
        return self.quantile(0.95, edges)

    def quantile(self, share: float, edges: tuple[float, ...] | None = None) -> float | None:
        """`histogram_quantile(share, sum by (le)(rate(…[1m])))`, over some of the edges; None without samples."""
        first, newest = self.kept[0][1], self.kept[-1][1]
        grown = []
        for uid, new in newest.items():
            if old := first.get(uid):
                pairs = zip(new.ttft, old.ttft, strict=True)
                grown.append(tuple((edge, count - before) for (edge, count), (_, before) in pairs))
        total = add(grown)
        if edges:
            total = tuple((edge, count) for edge, count in total if edge in edges or math.isinf(edge))
        return quantile(total, share)


DEFAULT_EDGES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""vLLM's own around the SLO, of those that the simulated engines have: 0.25 and 0.5, nothing between."""


@dataclass(slots=True)
class Hpa:
    """The horizontal Pod autoscaler (1.1): ratio and tolerance, scale-up and scale-down behaviour of its defaults."""

    metric: Callable[[Seen], float | None]
    target: float
    absolute: bool = False
    """AverageValue: the metric's sum over the target; else a ratio on the Ready Pods."""
    least: int = 1
    most: int = 64
    tolerance: float = 0.1
    window: float = 300.0
    seen: Seen = field(default_factory=Seen)
    wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        found = self.value(now, reading, fleet.desired)
        if not self.wanted:  # The controller takes the size it finds for its first recommendation.
            self.wanted.append((now, fleet.desired))
        if found is None:  # Without a value there is no recommendation, and nothing moves.
            return max(self.least, min(fleet.desired, self.most))
        wanted = self.proposal(found, fleet.desired, len(fleet.members))
        self.wanted.append((now, wanted))
        while now - self.wanted[0][0] > self.window:
            self.wanted.popleft()
        if wanted < fleet.desired:  # The highest of the last five minutes.
            wanted = min(fleet.desired, max(number for _, number in self.wanted))
        limit = max(2 * fleet.desired, fleet.desired + 4)
        return max(self.least, min(wanted, limit, self.most))

    def value(self, now: float, reading: Reading, current: int) -> float | None:
        """What the metrics API answers at so many replicas; None for an error."""
        return None if self.seen.take(now, reading) is None else self.metric(self.seen)

    def proposal(self, value: float, current: int, ready: int) -> int:
        """Replicas by the formula, before stabilisation."""
        ratio = value / (self.target * max(current, 1)) if self.absolute else value / self.target
        if abs(ratio - 1) <= self.tolerance:
            return current
        return math.ceil(value / self.target) if self.absolute else math.ceil(ratio * ready)


def hpa_p95(slo: float = 0.3, *, exact: bool) -> Hpa:
    """An HPA on the p95 of TTFT, with vLLM's edges or with one at the SLO."""
    return Hpa(lambda seen: seen.p95(None if exact else DEFAULT_EDGES), slo)


@dataclass(slots=True)
class Keda(Hpa):
    """KEDA before an HPA (1.2): with a fallback, so many replicas are reported after four errors in a row.

    Only errors are counted: an empty result that is taken for 0 is none.
    """

    fallback: int | None = None
    falls_back_to_current: bool = False
    """`behavior: currentReplicas`: as many as there are, instead."""
    failures: int = 0

    def value(self, now: float, reading: Reading, current: int) -> float | None:
        # super() without arguments doesn't know a dataclass with slots.
        found = Hpa.value(self, now, reading, current)
        self.failures = self.failures + 1 if found is None else 0
        fallback = current if self.falls_back_to_current else self.fallback
        if fallback is not None and self.failures > FAILURE_THRESHOLD:
            return self.target * fallback
        return found


def keda_waiting(threshold: float = 5.0, *, null_is_zero: bool = True, fallback: int | None = None) -> Keda:
    """KEDA's Prometheus scaler on the waiting requests (1.2): AverageValue; no result is 0 unless told otherwise."""

    def waiting(seen: Seen) -> float | None:
        newest = seen.kept[-1][1]
        if not newest:
            return 0.0 if null_is_zero else None
        return sum(engine.waiting for engine in newest.values())

    return Keda(waiting, threshold, absolute=True, fallback=fallback)


@dataclass(slots=True)
class Knative:
    """The Knative Pod autoscaler on concurrency (1.4): stable 60 s, panic 6 s, at most 1000 times up and half down."""

    target: float
    """Requests in flight for each engine."""
    seen: Seen = field(default_factory=Seen)
    history: deque[tuple[float, float]] = field(default_factory=deque)
    panic_until: float = -math.inf
    panic_most: int = 0

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        newest = self.seen.take(now, reading)
        if not newest:
            return max(1, fleet.desired)
        self.history.append((now, sum(engine.running + engine.waiting for engine in newest.values())))
        while now - self.history[0][0] >= WINDOW_SECONDS:
            self.history.popleft()
        stable = sum(value for _, value in self.history) / len(self.history)
        return self.proposal(now, stable, self.history[-1][1], max(1, len(fleet.members)))

    def proposal(self, now: float, stable: float, panic: float, ready: int) -> int:
        """Replicas from the means of both windows."""
        lowest = ready // 2
        by_stable, by_panic = (max(lowest, math.ceil(value / self.target)) for value in (stable, panic))
        if by_panic / ready >= 2:
            self.panic_until = now + WINDOW_SECONDS
        if now < self.panic_until:
            self.panic_most = max(self.panic_most, by_stable, by_panic, ready)
            return self.panic_most
        self.panic_most = 0
        return max(1, by_stable)


@dataclass(slots=True)
class SaturationV1:
    """llm-d's workload variant autoscaler, V1 (1.6): one up where spare room is short, one down where N - 1 would do."""

    queue_full: float = 5.0
    queue_spare: float = 3.0
    seen: Seen = field(default_factory=Seen)

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        newest = self.seen.take(now, reading)
        if not newest or fleet.pending:
            return max(1, fleet.desired)
        return fleet.desired + self.proposal([engine.waiting for engine in newest.values()])

    def proposal(self, queues: list[float]) -> int:
        """One more, one less or neither, by the queues of the replicas. KV use is no limit here: it stays under 10 %."""
        free = [queue for queue in queues if queue < self.queue_full]
        if not free or sum(self.queue_full - queue for queue in free) / len(free) < self.queue_spare:
            return 1
        if len(free) >= 2 and self.queue_full - sum(free) / (len(free) - 1) >= self.queue_spare:
            return -1
        return 0


@dataclass(slots=True)
class RateFeedForward:
    """Requests per second over what a replica carries; down after 300 s in which fewer were enough (section 6)."""

    per_replica: float
    down: float = 300.0
    seen: Seen = field(default_factory=Seen)
    wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        if self.seen.take(now, reading) is None:
            return fleet.desired
        rate = self.seen.rate(lambda engine: engine.ttft[-1][1] + (engine.rejected or 0.0) + engine.waiting)
        self.wanted.append((now, max(1, math.ceil(rate / self.per_replica))))
        while now - self.wanted[0][0] > self.down:
            self.wanted.popleft()
        highest = max(number for _, number in self.wanted)
        has_history = now - self.wanted[0][0] > self.down - 30
        return max(highest, fleet.desired if not has_history else 0)


@dataclass(slots=True)
class Dynamo:
    """NVIDIA Dynamo's planner (1.7): every 180 s a floor by throughput; in between one up where the queue's TTFT is over
    the target, one down where N - 1 would keep it under 80 % of it."""

    per_replica: float
    """Requests per second at which the profile still meets the target."""
    seconds_per_request: float
    slo: float = 0.3
    seen: Seen = field(default_factory=Seen)
    floor: int = 1
    floor_at: float = -math.inf

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        newest = self.seen.take(now, reading)
        if not newest:
            return max(1, fleet.desired)
        if now - self.floor_at >= 180:
            rate = self.seen.rate(lambda engine: engine.ttft[-1][1])
            self.floor, self.floor_at = max(1, math.ceil(rate / self.per_replica)), now
        if fleet.pending:
            return max(fleet.desired, self.floor)
        step = self.proposal([engine.waiting for engine in newest.values()])
        return max(fleet.desired + step, self.floor)

    def proposal(self, queues: list[float]) -> int:
        """By the time that what waits will take."""
        own = self.seconds_per_request
        times = [own + queue * self.seconds_per_request for queue in queues]
        if max(times) > self.slo:
            return 1
        count = len(queues)
        if count > 1 and all((time - own) * count / (count - 1) < 0.8 * (self.slo - own) for time in times):
            return -1
        return 0
