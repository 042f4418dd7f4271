"""One pool under load, the real scaler over a metrics source, and a Kubernetes that does what is decided. No clock runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.prometheus import PrometheusSource
from gemma_operator.metrics.queries import Queries
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaler import Scaler
from gemma_operator.scaling.counters import Reading
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling_status import PoolScaling
from gemma_operator.settings import read_settings
from tests.support.scripted_prometheus import ScriptedEngine, ScriptedPrometheus
from tests.unit.builders import serving

TICK = 15
START = 1_800_000_000.0
KEY = ("ns", "chat")
PROMPT_TOKENS = 500


class World:
    """Engines share `rate` requests per second; of each engine's share, `late` (0 to 1) miss the SLO."""

    def __init__(
        self,
        prometheus: ScriptedPrometheus,
        source: MetricsSource,
        engines: int = 3,
        minimum: int = 1,
        maximum: int = 6,
        cold_start: float = 330,
        **pool: Any,
    ) -> None:
        self.prometheus, self.source = prometheus, source
        self.now = self.prometheus.now = START
        self.skew = 0.0
        self.rate, self.late = 34.0, 0.0
        self.cold_start, self.most_ready = cold_start, 1000
        self.desired, self.rolling_out = engines, False
        self.created: dict[str, float] = {}
        self.starts: dict[str, float] = {}
        """Pod UID -> seconds that its start takes."""
        self.unready: set[str] = set()
        """Pods that fail their readiness probe."""
        self.ready_since: dict[str, float] = {}
        self.born = 0
        self.serving: GemmaServing = serving({"interactive": {"replicas": {"min": minimum, "max": maximum}, **pool}})
        self.minimum, self.maximum = minimum, maximum
        self.status: dict[str, Any] = {}
        self.sizes: list[int] = []
        self.follow(START - 3600)
        self.ready_since = {uid: at + cold_start for uid, at in self.created.items()}
        self.restart()

    def restart(self) -> None:
        """The operator starts anew: only the status survives."""
        self.scaler = Scaler(self.source, read_settings({}), clock=lambda: self.now + self.skew)
        self.track()

    def follow(self, created_at: float) -> None:
        """What the Deployment's controllers do: Pods are made and removed until there are as many as desired."""
        while len(self.created) < self.desired:
            self.born += 1
            uid = f"u{self.born}"
            self.created[uid], self.starts[uid] = created_at, self.cold_start
        for uid in list(self.created)[self.desired :]:
            del self.created[uid]
        for uid in self.created:
            if uid not in self.ready:
                self.ready_since.pop(uid, None)
            elif uid not in self.ready_since:
                self.ready_since[uid] = max(self.now - TICK / 2, self.created[uid] + self.starts[uid])
        known = {engine.pod_uid: engine for engine in self.prometheus.engines}
        self.prometheus.engines = [
            known.get(uid) or ScriptedEngine(uid) for uid in self.created if uid in known or uid in self.ready
        ]

    @property
    def ready(self) -> list[str]:
        up = [uid for uid, at in self.created.items() if at + self.starts[uid] <= self.now]
        return [uid for uid in up[: self.most_ready] if uid not in self.unready]

    def track(self) -> None:
        """What a reconcile tells the scaler."""
        ready = self.ready
        engines = tuple(
            EnginePod(
                uid=uid,
                name=f"chat-{uid}",
                created_at=at,
                ready_at=self.ready_since[uid] if uid in ready else None,
                unschedulable=uid not in [*ready, *self.unready] and at + self.starts[uid] <= self.now,
                metrics_url=f"http://engine/{uid}",
            )
            for uid, at in self.created.items()
        )
        state = PoolState(True, self.desired, len(ready), self.desired, int(self.rolling_out), True, engines)
        self.scaler.track(self.serving, {"interactive": state}, self.status)

    async def tick(self, count: int = 1) -> None:
        """Some ticks: traffic, scrape, decision, and Kubernetes."""
        for _ in range(count):
            self.now += TICK
            self.prometheus.now += TICK
            self.follow(self.now)
            self.serve()
            self.track()
            await self.scaler.tick()
            target = self.known.target
            self.desired = self.desired if target is None else min(max(target, self.minimum), self.maximum)
            self.status = {"interactive": {"memory": dict(self.known.memory)}}
            self.sizes.append(self.desired)

    def serve(self) -> None:
        """A tick's requests, spread over the Ready engines."""
        ready = self.ready
        for at, engine in enumerate(self.prometheus.engines):
            if engine.pod_uid in ready:
                requests = self.rate * TICK / len(ready)
                self.prometheus.engines[at] = replace(
                    engine,
                    good=engine.good + requests * (1 - self.late),
                    bad=engine.bad + requests * self.late,
                    prompt_tokens=engine.prompt_tokens + requests * PROMPT_TOKENS,
                )

    @property
    def known(self) -> PoolScaling:
        return self.scaler.scaling(KEY)["interactive"]

    @property
    def decision(self) -> Decision:
        """The newest decision, shown or not."""
        pool = self.scaler._servings[KEY].pools["interactive"]
        assert pool.decision
        return pool.decision


class Switch:
    """A source that a test can change while it runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.use(url)

    def use(self, url: str, timeout: float = 5) -> None:
        self.real = PrometheusSource(PrometheusClient(Access(url), timeout))

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        return self.real.read(now, engines, queries, itl)
