"""Engines that come and go under the compiled loop: creation, cold start, drain, scrapes, and what it costs.

The simulator's clock starts at 0; policies see epoch seconds from `World.epoch` on.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemma_operator.engine.settings import TTFT_EDGES
from gemma_operator.scaling.counters import EngineCounters, Scrape
from gemma_operator.scaling.lending import Loans
from gemma_operator.scaling.pool import MOST_COLD_START_SECONDS, Fleet, Member
from gemma_operator.simulation import engine_kernel as kernel
from gemma_operator.simulation.engine_model import INTERACTIVE, EngineModel, media_of
from gemma_operator.workload.arrivals import Arrivals

EPOCH = 1_700_000_000.0
SLOTS = 512
"""Engines at a time, those that drain included."""


@dataclass(frozen=True, slots=True)
class World:
    """What is the same for all policies."""

    engine: EngineModel = INTERACTIVE
    router: int = kernel.SHORTEST
    cold_start: tuple[float, float] = (226.0, 428.0)
    """Seconds from creation to Ready, uniform (seed 001)."""
    failed_starts: float = 0.0
    """Share of starts that fail once (image pull), and begin again."""
    room: int = SLOTS
    """Engines that the cluster has GPUs for."""
    donors: int = 0
    """Warm engines of a batch pool beside it that may be lent."""
    flip: float = 10.0
    """Seconds from a loan's decision to the first requests (research/bound.md section 4)."""
    drain: float = 120.0
    """After so many seconds an engine is gone, whatever it still does."""
    scrape_interval: float = 15.0
    edges: tuple[float, ...] = TTFT_EDGES
    seed: int = 0
    epoch: float = EPOCH
    """Epoch seconds at the simulator's second 0."""

    def stream(self, name: str) -> np.random.Generator:
        """Random numbers of one purpose: the same for every policy, whatever else is drawn."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


@dataclass(slots=True)
class Pod:
    """One engine from its creation to its end, in seconds of the simulator."""

    number: int
    created: float
    slot: int = -1
    """-1 while there is no GPU for it."""
    takes: float = 0.0
    """From a GPU to Ready."""
    ready_at: float = math.inf
    phase: float = 0.0
    """From Ready to its first scrape."""
    deleted: float | None = None
    lent_at: float | None = None
    """Of a donor: when it was lent; None while it is its own pool's."""
    kind: str = "engine"

    @property
    def uid(self) -> str:
        return f"{self.kind}-{self.number}"


class Engines:
    """The fleet and its requests. `advance` lets time pass; `resize` is what the Deployment controller does."""

    def __init__(self, world: World, arrivals: Arrivals, replicas: int) -> None:
        self.world = world
        self.requests = requests_of(arrivals)
        self.now = 0.0
        self.pods: list[Pod] = []
        self.gone: list[tuple[Pod, float]] = []
        self._slots = empty_engines(world)
        self._starts = world.stream("cold start")
        self._phases = world.stream("scrape phase")
        self._failures = world.stream("failed starts")
        self._count = 0
        self._room = world.room
        for _ in range(replicas):
            self._create(warm=True)
        self.donors = [self._donor(number) for number in range(world.donors)]
        self._ended_loans: list[tuple[float, float]] = []

    @property
    def present(self) -> list[Pod]:
        """Pods that the Deployment has; those that drain are not among them."""
        return [pod for pod in self.pods if pod.deleted is None]

    def advance(self, until: float) -> None:
        world = self.world
        kernel.advance(
            self.requests,
            self._slots,
            world.engine.limits,
            world.engine.prices,
            world.router,
            world.scrape_interval,
            until,
        )
        self.now = until
        for pod in [pod for pod in self.pods if pod.deleted is not None]:
            idle = pod.slot < 0 or not self._slots.in_flight[pod.slot] or pod.ready_at > until
            if idle or until - (pod.deleted or 0.0) >= world.drain:
                self._end(pod)

    def resize(self, replicas: int) -> None:
        """To so many Pods: new ones start, the youngest that aren't Ready and the least loaded go first."""
        present = self.present
        for _ in range(replicas - len(present)):
            self._create()
        if (extra := len(present) - replicas) > 0:
            present.sort(key=self._cheap_to_lose)
            for pod in present[:extra]:
                pod.deleted = self.now
                if pod.slot >= 0:
                    self._slots.state[pod.slot] = kernel.DRAINING
        self._find_room()

    def move(self, loans: Loans) -> None:
        """Lend donors, and give them back: what they have in flight they finish, and their counters run on."""
        for donor in self.donors:
            if donor.uid in loans.lend:
                donor.lent_at = self.now
                self._slots.state[donor.slot] = kernel.SERVING
                self._slots.ready_at[donor.slot] = self.now + self.world.flip
            elif donor.uid in loans.give_back and donor.lent_at is not None:
                self._ended_loans.append((donor.lent_at, self.now))
                donor.lent_at = None
                self._slots.state[donor.slot] = kernel.DRAINING

    def take_free_gpus(self, are_taken: bool) -> None:
        """Somebody else takes all GPUs that are free now or become free, or gives them back."""
        used = sum(pod.slot >= 0 for pod in self.pods)
        if not are_taken and self._room < self.world.room:
            self._room = self.world.room
            self._find_room()
        elif are_taken:
            self._room = min(self._room, used)

    def hold_starts(self, until: float) -> None:
        """Engines that are starting begin again at that time."""
        for pod in self.present:
            if pod.slot >= 0 and pod.ready_at > self.now:
                self._begin(pod, until + pod.takes)

    def scrape(self) -> Scrape:
        """The newest scrape of every Ready engine."""
        found = {}
        for pod in [*self.present, *self.donors]:
            if pod.slot >= 0 and pod.ready_at <= self.now and self._slots.scraped_at[pod.slot] > 0:
                found[pod.uid] = self._sample(pod)
        return Scrape(found)

    def fleet(self) -> Fleet:
        """What the API server knows of the pool."""
        present = self.present
        ready = [self._member(pod) for pod in present if pod.ready_at <= self.now]
        guests = [self._member(donor, donor.lent_at) for donor in self.donors if donor.lent_at is not None]
        return Fleet(
            desired=len(present),
            members=(*ready, *guests),
            pending=len(present) - len(ready),
            unschedulable=sum(pod.slot < 0 for pod in present),
        )

    def batch_fleet(self) -> Fleet:
        """What it knows of the batch pool beside it."""
        home = tuple(self._member(donor) for donor in self.donors if donor.lent_at is None)
        return Fleet(desired=len(self.donors), members=home, away=len(self.donors) - len(home))

    def gpu_seconds(self, start: float, end: float) -> float:
        """GPU time between two times, from creation to gone, loans included; Pods without a GPU cost none."""
        lives = [(pod.created, gone) for pod, gone in self.gone if pod.slot >= 0]
        lives += [(pod.created, end) for pod in self.pods if pod.slot >= 0]
        lives += [*self._ended_loans, *((donor.lent_at, end) for donor in self.donors if donor.lent_at is not None)]
        return sum(max(0.0, min(gone, end) - max(created, start)) for created, gone in lives)

    def _member(self, pod: Pod, lent_at: float | None = None) -> Member:
        epoch = self.world.epoch
        joined = pod.ready_at if lent_at is None else lent_at
        return Member(pod.uid, epoch + pod.created, epoch + pod.ready_at, epoch + joined, lent=lent_at is not None)

    def _donor(self, number: int) -> Pod:
        donor = Pod(number, created=-MOST_COLD_START_SECONDS, kind="donor")
        self._place(donor, donor.created)
        self._slots.state[donor.slot] = kernel.DRAINING
        return donor

    def _create(self, warm: bool = False) -> None:
        pod = Pod(self._count, self.now)
        # One draw for each Pod ever made: the n-th start takes equally long under every policy.
        start = self._starts.uniform(*self.world.cold_start)
        again = self._starts.uniform(*self.world.cold_start)
        failed = self._failures.random() < self.world.failed_starts
        pod.takes = start + (again if failed else 0.0)
        self._count += 1
        self.pods.append(pod)
        if warm:
            pod.created = -MOST_COLD_START_SECONDS
            self._place(pod, pod.created + pod.takes)
        self._find_room()

    def _find_room(self) -> None:
        """GPUs for the oldest Pods that wait for one."""
        used = sum(pod.slot >= 0 for pod in self.pods)
        for pod in self.present:
            if pod.slot < 0 and used < self._room:
                self._place(pod, self.now + pod.takes)
                used += 1

    def _place(self, pod: Pod, ready_at: float) -> None:
        s = self._slots
        slot = int(np.argmax(s.state == kernel.FREE))
        pod.slot = slot
        s.state[slot], s.busy_until[slot] = kernel.SERVING, np.inf
        s.head[slot] = s.tail[slot] = kernel.NOBODY
        for column in (s.queued, s.queued_tokens, s.in_flight, s.sequences, s.reserved, s.threads, s.processor):
            column[slot] = 0
        for table in (s.histogram, s.counters, s.scraped, s.scraped_histogram):
            table[slot] = 0
        pod.phase = self._phases.uniform(0, self.world.scrape_interval)
        s.scraped_at[slot] = 0.0
        s.cursor[2] = max(s.cursor[2], slot + 1)
        self._begin(pod, ready_at)

    def _begin(self, pod: Pod, ready_at: float) -> None:
        pod.ready_at = ready_at
        self._slots.ready_at[pod.slot] = ready_at
        self._slots.scrape_at[pod.slot] = max(ready_at, 0.0) + pod.phase

    def _cheap_to_lose(self, pod: Pod) -> tuple[bool, bool, float]:
        waits = pod.ready_at > self.now
        load = -pod.created if waits else float(self._slots.in_flight[pod.slot])
        return (pod.slot >= 0, not waits, load)

    def _end(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self.gone.append((pod, self.now))
        if pod.slot >= 0:
            self._slots.state[pod.slot] = kernel.FREE

    def _sample(self, pod: Pod) -> EngineCounters:
        s, slot = self._slots, pod.slot
        counted = np.cumsum(s.scraped_histogram[slot]).tolist()
        values = s.scraped[slot].tolist()
        return EngineCounters(
            pod_uid=pod.uid,
            at=self.world.epoch + float(s.scraped_at[slot]),
            ttft=tuple(zip((*self.world.edges, math.inf), counted, strict=True)),
            running=values[kernel.RUNNING],
            waiting=values[kernel.WAITING],
            kv_usage=values[kernel.TOKENS] / self.world.engine.limits.kv_tokens,
            finished={"stop": values[kernel.FINISHED]},
            rejected=values[kernel.REJECTED],
            prompt_tokens=values[kernel.PROMPT],
            generated_tokens=values[kernel.GENERATED],
            media_items=values[kernel.ITEMS],
            media_units=values[kernel.UNITS],
            started_at=self.world.epoch + pod.created,
        )


def requests_of(arrivals: Arrivals) -> kernel.Requests:
    """Columns for the compiled loop."""
    count = len(arrivals)
    frames = arrivals.frames.astype(np.int64)
    items = [media_of(n) for n in range(int(frames.max(initial=0)) + 1)]
    media = np.array([item.tokens if item else 0 for item in items])[frames]
    units = np.array([item.units if item else 0.0 for item in items])[frames]

    def zeros() -> NDArray[np.int64]:
        return np.zeros(count, dtype=np.int64)

    return kernel.Requests(
        at=arrivals.at,
        prompt=np.maximum(arrivals.prompt_tokens.astype(np.int64) + media, 1),
        output=np.maximum(arrivals.output_tokens.astype(np.int64), 1),
        media=media,
        frames=frames,
        units=units,
        ready=np.zeros(count),
        computed=zeros(),
        generated=zeros(),
        encoded=zeros(),
        after=zeros(),
        before=zeros(),
        ttft=np.full(count, np.nan),
    )


def empty_engines(world: World) -> kernel.Engines:
    def column(value: float = 0.0) -> NDArray[np.float64]:
        return np.full(SLOTS, value)

    def integers(value: int = 0) -> NDArray[np.int64]:
        return np.full(SLOTS, value, dtype=np.int64)

    buckets = len(world.edges) + 1
    sequences = world.engine.limits.sequences
    return kernel.Engines(
        state=integers(kernel.FREE),
        ready_at=column(),
        busy_until=column(np.inf),
        head=integers(kernel.NOBODY),
        tail=integers(kernel.NOBODY),
        queued=integers(),
        queued_tokens=integers(),
        in_flight=integers(),
        sequences=integers(),
        running=np.zeros((SLOTS, sequences), dtype=np.int64),
        chunk=np.zeros((SLOTS, sequences), dtype=np.int64),
        reserved=integers(),
        threads=np.zeros((SLOTS, world.engine.threads)),
        processor=column(),
        edges=np.array(world.edges),
        histogram=np.zeros((SLOTS, buckets)),
        counters=np.zeros((SLOTS, kernel.COUNTERS)),
        scrape_at=column(np.inf),
        scraped_at=column(),
        scraped_histogram=np.zeros((SLOTS, buckets)),
        scraped=np.zeros((SLOTS, kernel.COUNTERS)),
        cursor=np.zeros(3, dtype=np.int64),
    )
