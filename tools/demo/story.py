"""The story that the demo tells with load: warm, peak until the pool has scaled up and recovered, and a while after."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.demo import traffic
from tools.demo.console import say
from tools.demo.load import Body, Client, Outcome, attainment
from tools.demo.recording import Phase, Recording, Sample, decisions, exceeds, milliseconds, share, within
from tools.demo.watch import P95_WINDOW_SECONDS, Unanswered, Watch


@dataclass(frozen=True)
class Plan:
    """Rates are requests a second, times are seconds.

    By the step model one engine holds 300 ms (p95, Poisson) up to 22 of this mix a second and can't keep up with 36;
    two engines with 18 each are at 230 ms. A peak near a multiple of 22 would leave it to chance how many it takes.
    """

    video_share: float = 0.5
    warm_rate: float = 10.0
    warm_seconds: float = 35.0
    peak_rate: float = 36.0
    peak_limit: float = 170.0
    recovered_seconds: float = 30.0
    batch_concurrency: int = 3
    sample_every: float = 2.0
    print_every: float = 5.0
    silence_limit: float = 20.0
    attainment: float = 0.95


class Story:
    """Offers the load to both Services and records what came of it."""

    def __init__(self, watch: Watch, recording: Recording, plan: Plan = Plan()) -> None:
        self._watch = watch
        self._recording = recording
        self._plan = plan
        self._recovered = asyncio.Event()
        self._ended = asyncio.Event()
        self._phase = ("warm", plan.warm_rate)

    async def tell(self) -> None:
        interactive, batch = await asyncio.gather(self._watch.url("interactive"), self._watch.url("batch"))
        model = await self._watch.model(interactive)
        say(f"interactive: {interactive}, Poisson arrivals, {1 - self._plan.video_share:.0%} text, the rest video")
        say(f"batch: {batch}, {self._plan.batch_concurrency} requests at a time")
        self._began = time.time()
        try:
            async with Client(interactive) as chats, Client(batch, timeout=60) as work, asyncio.TaskGroup() as side:
                self._chats, self._work = chats, work
                bodies = traffic.batch(model, seed=1)
                side.create_task(work.work(bodies, self._plan.batch_concurrency, self._ended))
                side.create_task(self._observe())
                try:
                    await self._load(traffic.mixed(model, self._plan.video_share, seed=2))
                finally:
                    self._ended.set()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        self._recording.interactive = self._since_began(chats.outcomes)
        self._recording.batch = self._since_began(work.outcomes)
        self._recording.events = await self._watch.events(self._began)

    async def _load(self, bodies: Iterator[Body]) -> None:
        plan = self._plan
        await self._offer("warm", bodies, plan.warm_rate, plan.warm_seconds)
        await self._offer("peak", bodies, plan.peak_rate, plan.peak_limit, until=self._recovered)
        if self._recovered.is_set():
            await self._offer("recovered", bodies, plan.peak_rate, plan.recovered_seconds)

    async def _offer(
        self, name: str, bodies: Iterator[Body], rate: float, seconds: float, until: asyncio.Event | None = None
    ) -> None:
        self._phase = (name, rate)
        start = self._now()
        say(f"{start:4.0f} s  {name}: {rate:g} requests a second for {'at most ' if until else ''}{seconds:g} s")
        await self._chats.offer(bodies, rate, seconds, stop=until, seed=len(self._recording.phases))
        self._recording.phases.append(Phase(name, rate, start, self._now()))

    async def _observe(self) -> None:
        printed = answered = 0.0
        while not self._ended.is_set():
            began = self._now()
            try:
                sample = await self._watch.sample(self._began, time.time())
            except Unanswered as silence:
                say(f"{began:4.0f} s  {silence}; asking again")
                if began - answered > self._plan.silence_limit:
                    raise
            else:
                answered = began
                self._take(sample)
                if began - printed >= self._plan.print_every:
                    printed = began
                    self._print(sample)
            await asyncio.sleep(max(0.2, self._plan.sample_every - (self._now() - began)))

    def _take(self, sample: Sample) -> None:
        known = len(decisions(self._recording))
        self._recording.samples.append(sample)
        for at, decision in decisions(self._recording)[known:]:
            say(f"{at:4.0f} s  operator: {decision}")
        self._notice_recovery()

    def _notice_recovery(self) -> None:
        """Recovered: more engines than before the peak, all of them Ready, and the last 15 s within the SLO."""
        before = [s.ready for s in self._recording.samples if s.at < self._plan.warm_seconds and s.ready]
        latest = self._recording.samples[-3:]
        scaled = before and all((s.ready or 0) > before[-1] and s.ready == s.desired for s in latest)
        within_slo = all(s.p95 is not None and s.p95 <= self._recording.slo for s in latest)
        if self._phase[0] == "peak" and scaled and within_slo and (self._attained() or 0) >= self._plan.attainment:
            self._recovered.set()

    def _attained(self) -> float | None:
        now = time.time()
        return attainment(within(self._chats.outcomes, now - P95_WINDOW_SECONDS, now), self._recording.slo)

    def _print(self, sample: Sample) -> None:
        mark = "  over the SLO" if exceeds(sample.p95, self._recording.slo) else ""
        say(
            f"{sample.at:4.0f} s  {self._phase[1]:3g} req/s   p95 {milliseconds(sample.p95):>8}   "
            f"attainment {share(self._attained()):>7}   engines Ready {sample.ready} of {sample.desired}{mark}"
        )

    def _since_began(self, outcomes: list[Outcome]) -> list[Outcome]:
        return [replace(o, at=o.at - self._began) for o in sorted(outcomes, key=lambda o: o.at)]

    def _now(self) -> float:
        return time.time() - self._began
