"""llm-d's two autoscalers besides V1 (research/autoscaling.md 1.6): by tokens (WVA V2), and by latency over the SLO.

Sources: llm-d-workload-variant-autoscaler, internal/engines/analyzers/saturation_v2 (0.9); llm-d,
guides/workload-autoscaling/README.slo-aware.md. Defaults are theirs.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gemma_operator.scaling.counters import Reading
from gemma_operator.scaling.pool import Fleet
from gemma_operator.simulation.peers import Seen


@dataclass(frozen=True, slots=True)
class Replica:
    """What V2 knows of one engine."""

    tokens: float
    """In the KV cache."""
    room: float
    """Tokens that it has room for."""
    queue: float
    prompt_tokens: float
    """Mean of its requests."""
    output_tokens: float


@dataclass(slots=True)
class SaturationV2:
    """Tokens in use and in queues, over what an engine holds before its queue grows.

    An engine's capacity is the least of 80 % of its KV cache and of the tokens that it was seen to hold with a queue
    (mean of ten such sights, apart by length of answers), else of what its step budget can keep busy.
    """

    room: float = 1_000_000
    """KV cache of an engine, in tokens (`vllm:cache_config_info`)."""
    batched_tokens: float = 4096
    sequences: float = 64
    kv_threshold: float = 0.8
    queue_threshold: float = 5.0
    up: float = 0.85
    """Demand is planned at this share of the capacity ..."""
    down: float = 0.70
    """... and given up where it would still be under this one."""
    seen: Seen = field(default_factory=Seen)
    history: dict[str, deque[float]] = field(default_factory=dict)
    lengths: tuple[float, float] = (0.0, 0.0)

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        newest = self.seen.take(now, reading)
        if not newest:
            return max(1, fleet.desired)
        self._learn_lengths()
        engines = [
            Replica((engine.kv_usage or 0.0) * self.room, self.room, engine.waiting, *self.lengths)
            for engine in newest.values()
        ]
        return max(1, fleet.desired + self.proposal(engines, len(fleet.members), fleet.pending))

    def proposal(self, engines: Sequence[Replica], ready: int, pending: int) -> int:
        """Engines more, or fewer."""
        each = statistics.median(self.capacity(engine) for engine in engines)
        demand = sum(engine.tokens + engine.queue * int(engine.prompt_tokens) for engine in engines)
        if each <= 0:
            return 0
        required = demand / self.up - (ready + pending) * each
        if required > 0:
            return math.ceil(required / each)
        spare = ready * each - demand / self.down
        return -math.floor(spare / each) if spare > 0 else 0

    def capacity(self, engine: Replica) -> float:
        """Tokens that one engine carries."""
        by_memory = float(int(engine.room * self.kv_threshold))
        return min(by_memory, self._by_compute(engine) or by_memory)

    def _by_compute(self, engine: Replica) -> float:
        out = engine.output_tokens
        bucket = "short" if out < 100 else "medium" if out < 500 else "long"
        sights = self.history.setdefault(bucket, deque(maxlen=10))
        if engine.queue >= self.queue_threshold and engine.tokens > 0:
            sights.append(engine.tokens)
            return engine.tokens
        if sights:
            return float(int(statistics.fmean(sights)))
        if out <= 0:
            return 0.0
        busy = min(self.batched_tokens * out / (engine.prompt_tokens + out), self.sequences)
        return float(int(busy * (engine.prompt_tokens + out / 2)))

    def _learn_lengths(self) -> None:
        """Mean prompt and answer of the last minute; what was known stays where nothing came."""
        rate = self.seen.rate
        began = rate(lambda engine: engine.ttft[-1][1])
        ended = rate(lambda engine: sum(engine.finished.values()))
        prompt, output = self.lengths
        if began:
            prompt = rate(lambda engine: engine.prompt_tokens or 0.0) / began
        if ended:
            output = rate(lambda engine: engine.generated_tokens or 0.0) / ended
        self.lengths = (prompt, output)


@dataclass(slots=True)
class SloGuide:
    """KEDA's formula on p90 of TTFT over the SLO, as the guide for SLO-aware autoscaling has it, under an HPA.

    Up in proportion where the smoothed ratio is over 0.55, of which engines that still start are credited; down in
    proportion where it is under 0.40. The HPA: up by all or 4 in 60 s, to the least wanted in 30 s; down by 1 in 120 s,
    to the most wanted in 180 s.
    """

    slo: float = 0.3
    up: float = 0.55
    down: float = 0.40
    most_signal: float = 2.0
    tolerance: float = 0.1
    most: int = 64
    seen: Seen = field(default_factory=Seen)
    signals: deque[tuple[float, float]] = field(default_factory=deque)
    wanted: deque[tuple[float, int]] = field(default_factory=deque)
    changes: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, now: float, reading: Reading, fleet: Fleet) -> int:
        if self.seen.take(now, reading) is None:
            return max(1, fleet.desired)
        signal = self._signal(now)
        wanted = self.proposal(signal, fleet.desired, len(fleet.members))
        if abs(wanted / max(fleet.desired, 1) - 1) <= self.tolerance:
            wanted = fleet.desired
        replicas = max(1, min(self.limited(now, wanted, fleet.desired), self.most))
        if replicas != fleet.desired:
            self.changes.append((now, replicas - fleet.desired))
        return replicas

    def proposal(self, signal: float, provisioned: int, ready: int) -> int:
        """The guide's formula."""
        n = provisioned
        credit = ready / n if 0 < ready < n else 1.0
        if signal > self.up:
            return n + math.ceil(n * (signal * credit / self.up - 1))
        return n - math.floor(n * (1 - signal / self.down)) if signal < self.down else n

    def limited(self, now: float, wanted: int, current: int) -> int:
        """The HPA's behaviour; the size that it finds is its first recommendation."""
        if not self.wanted:
            self.wanted.append((now, current))
        self.wanted.append((now, wanted))
        while now - self.wanted[0][0] > 180:
            self.wanted.popleft()
        while self.changes and now - self.changes[0][0] >= 120:
            self.changes.popleft()
        low = min(number for at, number in self.wanted if now - at <= 30)
        high = max(number for _, number in self.wanted)
        if low > current:
            added = sum(change for at, change in self.changes if change > 0 and now - at < 60)
            before = current - added
            return max(current, min(low, max(2 * before, before + 4)))
        if high < current:
            removed = -sum(change for _, change in self.changes if change < 0)
            return max(high, current - max(0, 1 - removed))
        return current

    def _signal(self, now: float) -> float:
        """Over the last 45 s, of what a rule records every 15 s; no traffic is 0."""
        ttft = self.seen.quantile(0.90)
        self.signals.append((now, min((ttft or 0.0) / self.slo, self.most_signal)))
        while now - self.signals[0][0] >= 45:
            self.signals.popleft()
        return statistics.fmean(value for _, value in self.signals)
