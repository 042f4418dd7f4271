"""The scaler: each tick it reads the metrics of all pools once, decides, and wakes the servings that should change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gemma_operator import telemetry
from gemma_operator.api.heartbeat import Heartbeat
from gemma_operator.api.serving import GemmaServing
from gemma_operator.engine.view import pool_slo
from gemma_operator.figures import Figures, figures
from gemma_operator.metrics.queries import PoolQueries
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaling.budget import Claim, allocate
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, PoolId, Reading
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.heartbeat import Beats, Hung, follow, may_restart
from gemma_operator.scaling.memory import Memory, restore
from gemma_operator.scaling.observation import FRESH_SECONDS, Observation, Watch, observe
from gemma_operator.scaling.policy import policy_of
from gemma_operator.scaling.pool import Fleet, Member, Mode, Policy
from gemma_operator.scaling.profile import Profile, Rates
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling_status import PoolScaling, Scaling
from gemma_operator.settings import Settings
from gemma_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
STATUS_REFRESH_SECONDS = 30
"""How often measured values in the status are renewed while nothing else changes."""
MEMORY_REFRESH_SECONDS = 600
"""How often what was learnt is written down while nothing else changes: a restart loses no more than that."""
SAMPLE_GAPS = (MissingReason.NO_SERIES, MissingReason.STALE, MissingReason.PARTIAL_COVERAGE)
"""What is no fault while engines have just started."""
CONTESTED_TIMES, CONTESTED_SECONDS = 3, 600
"""So many changes by somebody else in this time are no accident."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """What a serving's spec says of one pool."""

    policy: Policy
    queries: PoolQueries
    gpus: int
    """GPUs of one engine."""
    interactive: bool


@dataclass(slots=True)
class _Pool:
    spec: _Spec
    memory: Memory
    saved: Mapping[str, Any]
    """The memory as it stands in the status."""
    saved_at: float
    engines: tuple[EnginePod, ...] = ()
    fleet: Fleet = field(default_factory=lambda: Fleet(desired=0))
    first_ready: dict[str, float] = field(default_factory=dict)
    """Pod UID -> when it was Ready for the first time, as far as we saw: a readiness that flaps is no new start."""
    seen: Observation | None = None
    rates: Rates | None = None
    """The newest that were seen."""
    decision: Decision | None = None
    target: int | None = None
    """What was decided and is not reached; a decision to hold is none, so who scales by hand is not overruled."""
    asked: int | None = None
    """The target before: its write may be seen late."""
    victims: tuple[str, ...] = ()
    gaps: int = 0
    """Ticks in a row without all metrics."""
    missing: Missing | None = None
    """Why, once it is no accident."""
    foreign: tuple[float, ...] = ()
    """When somebody else changed the size."""
    shown: Decision | None = None
    hung: tuple[Hung, ...] = ()

    def follow(self, state: PoolState) -> None:
        """Take over the Pods as they are."""
        ready = {engine.uid: engine.ready_at for engine in state.engines if engine.ready_at is not None}
        alive = {engine.uid for engine in state.engines}
        self.first_ready = ready | {uid: at for uid, at in self.first_ready.items() if uid in alive}
        members = [
            Member(engine.uid, engine.created_at, self.first_ready[engine.uid], engine.ready_at)
            for engine in state.engines
            if engine.ready_at is not None
        ]
        self.engines = state.engines
        self.fleet = Fleet(
            desired=state.desired,
            members=tuple(members),
            pending=len(alive) - len(members),
            unschedulable=sum(engine.unschedulable for engine in state.engines),
            rolling_out=state.rolling_out,
        )
        if self.target == state.desired:
            self.target = None


@dataclass(slots=True)
class _Serving:
    pools: dict[str, _Pool] = field(default_factory=dict)
    gpu_budget: int | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    restarted_at: float = 0.0
    """When one of its engines was last restarted because it hung."""
    shown_at: float = 0.0

    def to_restart(self, now: float) -> Hung | None:
        """The engine to restart now."""
        hung = [one for pool in self.pools.values() for one in pool.hung]
        fleets = [pool.fleet for pool in self.pools.values()]
        return may_restart(hung, fleets, self.restarted_at, now) if self.heartbeat.restart else None


class Scaler:
    """Keeps what `observe` and `decide` need between ticks. What was learnt is in the status, and survives a restart."""

    def __init__(self, source: MetricsSource, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._servings: dict[Key, _Serving] = {}
        self._watch = Watch()
        self._beats: Beats = {}
        self._reading: asyncio.Future[Reading] | None = None

    def track(
        self,
        serving: GemmaServing,
        states: Mapping[str, PoolState],
        shown: Mapping[str, Any],
        profiles: Mapping[str, Profile] | None = None,
    ) -> None:
        """Take over policy and fleet of every pool as of the last reconcile.

        `shown` is `status.pools` as it stands; `profiles` says of pools what their engines carry.
        """
        known = self._servings.setdefault((serving.namespace, serving.name), _Serving())
        pools = {}
        for name in serving.spec.pools:
            spec, state = _spec(serving, name, (profiles or {}).get(name)), states.get(name, PoolState())
            if (pool := known.pools.get(name)) is None:
                saved = shown.get(name, {}).get("memory", {})
                pool = _Pool(spec, restore(saved), saved, self._clock())
            elif state.desired not in (pool.fleet.desired, pool.target, pool.asked):
                pool.foreign = (*pool.foreign[-CONTESTED_TIMES:], self._clock())
            pool.spec = spec
            pool.follow(state)
            pools[name] = pool
        known.pools, known.gpu_budget = pools, serving.spec.gpu_budget
        known.heartbeat = serving.spec.heartbeat

    def forget(self, key: Key) -> None:
        """The serving is gone."""
        self._servings.pop(key, None)

    def scaling(self, key: Key) -> Scaling:
        """Last decisions of a serving, for plan and status."""
        pools = self._servings.get(key, _Serving()).pools
        return {
            name: PoolScaling(
                policy=pool.spec.policy,
                decision=pool.shown,
                missing=pool.missing,
                target=pool.target,
                victims=pool.victims if pool.target is not None else (),
                contested=self._is_contested(pool),
                hung=pool.hung,
                memory=pool.saved,
            )
            for name, pool in pools.items()
        }

    def to_restart(self, key: Key) -> Hung | None:
        """The engine of a serving that hangs and is to be restarted now."""
        return self._servings.get(key, _Serving()).to_restart(self._clock())

    def restarted(self, key: Key) -> None:
        """An engine of the serving was restarted because it hung."""
        self._servings[key].restarted_at = self._clock()

    async def run(self, queue: WorkQueue) -> None:
        """Tick for ever. A tick that fails is logged and changes nothing."""
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            try:
                for key in await self.tick():
                    await queue.add(key)
            except Exception:
                log.exception("scaler tick failed; replicas are held")

    async def tick(self) -> list[Key]:
        """Read, decide for every pool, and return the servings that need a reconcile."""
        with telemetry.tick_seconds.time():
            woken = await self._tick() if self._servings else []
        telemetry.tick_timestamp.set(self._clock())
        telemetry.pools.show(self._figures(), self._budgets())
        return woken

    async def _tick(self) -> list[Key]:
        reading = await self._read()
        now = self._clock()
        pools = {pool_id: (pool.spec.policy, pool.fleet) for pool_id, pool in self._all()}
        self._watch, observations = observe(self._watch, reading, pools, now)
        engines = {} if isinstance(reading, Missing) else reading.engines
        self._beats = follow(self._beats, engines, now)
        woken = []
        for key, serving in list(self._servings.items()):
            seen = {
                name: observations[pool_id] for name in serving.pools if (pool_id := PoolId(*key, name)) in observations
            }
            changed = self._decide(key, serving, seen, engines, now)
            changed |= self._find_hung(serving) or serving.to_restart(now) is not None
            if changed or now - serving.shown_at >= STATUS_REFRESH_SECONDS:
                serving.shown_at = now
                if self._show(serving, now) or changed:
                    woken.append(key)
            await asyncio.sleep(0)  # a thousand servings must not hold up the event loop
        return woken

    async def _read(self) -> Reading:
        """One reading at a time: one that takes longer than a tick is taken over when it comes."""
        if self._reading is None:
            engines = {
                engine.uid: engine.metrics_url
                for _, pool in self._all()
                for engine in pool.engines
                if engine.ready_at is not None and engine.metrics_url
            }
            queries = {
                pool_id: pool.spec.queries for pool_id, pool in self._all() if pool.spec.queries != PoolQueries()
            }
            work = asyncio.to_thread(self._source.read, self._clock(), engines, queries)
            self._reading = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({self._reading}, timeout=self._settings.tick_seconds)
        if not done:
            said = f"the metrics source has not answered within a tick of {self._settings.tick_seconds:g} s"
            return Missing(MissingReason.QUERY_FAILED, said)
        reading, self._reading = self._reading, None
        return reading.result()

    def _decide(
        self,
        key: Key,
        serving: _Serving,
        seen: Mapping[str, Observation],
        engines: Mapping[str, EngineCounters],
        now: float,
    ) -> bool:
        """Decide for the pools of one serving; True where the outcome is another than at the last tick.

        A target that can't be reached is not pressed each tick: the queue retries what failed.
        """
        before = {name: _outcome(pool) for name, pool in serving.pools.items()}
        claims = {}
        for name, observation in seen.items():
            pool = serving.pools[name]
            policy = pool.spec.policy
            pool.seen, pool.rates = observation, observation.rates or pool.rates
            pool.missing = _lasting_gap(pool, observation, now)
            decision, pool.memory = decide(policy, pool.fleet, observation, pool.memory, now)
            claims[name] = Claim(decision, pool.spec.gpus, pool.spec.interactive, policy.mode is Mode.AUTO)
        for name, decision in allocate(serving.gpu_budget, claims).items():
            pool = serving.pools[name]
            is_move = claims[name].writes and decision.replicas != pool.fleet.desired
            pool.decision = decision
            pool.asked, pool.target = pool.target, decision.replicas if is_move else None
            pool.victims = _victims(pool, engines)
            if is_move and _outcome(pool) != before[name]:
                log.info("%s: %s (%s)", PoolId(*key, name), decision.message, decision.reason)
        return any(_outcome(pool) != before[name] for name, pool in serving.pools.items())

    def _find_hung(self, serving: _Serving) -> bool:
        """Note which engines hang; True where others do than before."""
        is_new = False
        for pool in serving.pools.values():
            hung = tuple(
                Hung(engine.uid, engine.name, beat.since)
                for engine in pool.engines
                if (beat := self._beats.get(engine.uid)) and beat.seconds >= serving.heartbeat.after_seconds
            )
            is_new |= hung != pool.hung
            pool.hung = hung
        return is_new

    def _show(self, serving: _Serving, now: float) -> bool:
        """Take over what the status shows; False where that is nothing new."""
        is_new = False
        for pool in serving.pools.values():
            if pool.decision and (pool.shown is None or replace(pool.shown, at=pool.decision.at) != pool.decision):
                pool.shown, is_new = pool.decision, True
            is_moved = pool.spec.policy.maximum > pool.spec.policy.minimum
            if is_moved and (pool.target is not None or now - pool.saved_at >= MEMORY_REFRESH_SECONDS):
                pool.saved, pool.saved_at, is_new = pool.memory.save(), now, True
        return is_new

    def _all(self) -> Iterable[tuple[PoolId, _Pool]]:
        for key, serving in self._servings.items():
            yield from _pools_of(key, serving)

    def _is_contested(self, pool: _Pool) -> bool:
        recent = [at for at in pool.foreign if at >= self._clock() - CONTESTED_SECONDS]
        return pool.spec.policy.mode is Mode.AUTO and len(recent) >= CONTESTED_TIMES

    def _figures(self) -> dict[telemetry.PoolLabels, Figures]:
        return {(pool_id.namespace, pool_id.serving, pool_id.pool): _figures(pool) for pool_id, pool in self._all()}

    def _budgets(self) -> dict[telemetry.ServingLabels, float]:
        return {key: s.gpu_budget for key, s in self._servings.items() if s.gpu_budget is not None}


def _pools_of(key: Key, serving: _Serving) -> Iterable[tuple[PoolId, _Pool]]:
    return ((PoolId(*key, name), pool) for name, pool in serving.pools.items())


def _spec(serving: GemmaServing, name: str, profile: Profile | None) -> _Spec:
    pool = serving.spec.pools[name]
    return _Spec(
        policy=policy_of(pool.replicas, pool_slo(serving.spec, name), pool.scaling, profile),
        queries=PoolQueries(pool.scaling.backlog_query, pool.scaling.offered_query),
        gpus=pool.gpu_count,
        interactive=serving.spec.class_of(name) == "interactive",
    )


def _victims(pool: _Pool, engines: Mapping[str, EngineCounters]) -> tuple[str, ...]:
    """The Pods that lose the least work when the pool shrinks. Pods that aren't Ready go before them anyway."""
    if pool.target is None or pool.target >= pool.fleet.desired:
        return ()
    loads = [
        (seen.running + seen.waiting, -engine.created_at, engine.name)
        for engine in pool.engines
        if engine.ready_at is not None and (seen := engines.get(engine.uid))
    ]
    return tuple(name for _, _, name in sorted(loads)[: pool.fleet.desired - pool.target])


def _lasting_gap(pool: _Pool, seen: Observation, now: float) -> Missing | None:
    """What the status calls missing: a single failed reading turns no condition, nor does an engine that just started."""
    own = [found for found in (seen.backlog, seen.offered) if isinstance(found, Missing)]
    missing = seen.missing or next(iter(own), None)
    is_expected = any(now - member.joined_at > FRESH_SECONDS for member in pool.fleet.members)
    if missing is seen.missing and missing and missing.reason in SAMPLE_GAPS and not is_expected:
        missing = next(iter(own), None)
    pool.gaps = pool.gaps + 1 if missing else 0
    return missing if pool.gaps > 1 else None


def _outcome(pool: _Pool) -> tuple[object, ...] | None:
    """What of a tick's result is worth a reconcile when it changes."""
    if (decision := pool.decision) is None:
        return None
    # A target that is not reached is asked for with changing reasons.
    reason = decision.reason if pool.target is None else None
    verdicts = [judgement.verdict for judgement in (decision.judgement, decision.itl) if judgement]
    kinds = {finding.kind for finding in decision.findings}
    return decision.replicas, reason, verdicts, kinds, pool.missing and pool.missing.reason


def _figures(pool: _Pool) -> Figures:
    spec = pool.spec
    missing = pool.missing is not None
    return figures(spec.policy, pool.fleet, spec.gpus, pool.seen, pool.rates, pool.memory, pool.decision, missing)
