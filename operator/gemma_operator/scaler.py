"""The scaler: each tick it reads the metrics of all pools once, decides, and wakes the servings that should change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gemma_operator import telemetry
from gemma_operator.api.serving import GemmaServing
from gemma_operator.figures import Figures
from gemma_operator.metrics.queries import PoolQueries
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.observe import PoolState
from gemma_operator.pods import epoch
from gemma_operator.scaling.budget import Claim, allocate
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, PoolId, Reading
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.heartbeat import Beats, Hung, follow
from gemma_operator.scaling.memory import restore
from gemma_operator.scaling.news import is_lesson, is_news
from gemma_operator.scaling.observation import Observation, Watch, observe
from gemma_operator.scaling.pool import Mode
from gemma_operator.scaling.profile import Profile
from gemma_operator.scaling.rule import decide
from gemma_operator.scaling_status import PoolScaling, Scaling, shown_decisions
from gemma_operator.settings import Settings
from gemma_operator.tracking import (
    QUIET_SECONDS,
    Pool,
    Serving,
    figures_of,
    lasting_gap,
    lend,
    outcome,
    spec_of,
    victims_of,
)
from gemma_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
STATUS_REFRESH_SECONDS = 30
"""How often the status may be renewed for measured values alone; they are where they have moved by a quarter."""
MEMORY_REFRESH_SECONDS = 600
"""How often what was learnt is written down while nothing else changes, where it is another lesson (`news.py`)."""
AT_ONCE = 20
"""Servings that are decided on before the event loop has its turn: a thousand would hold it up."""
APART_SECONDS = 0.01
"""Between two of the looks that a tick asks for: a thousand at once would hold up whatever is created meanwhile."""
CONTESTED_TIMES, CONTESTED_SECONDS = 3, 600
"""So many changes by somebody else in this time are no accident."""


class Scaler:
    """Keeps what `observe` and `decide` need between ticks. What was learnt is in the status, and survives a restart."""

    def __init__(self, source: MetricsSource, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._servings: dict[Key, Serving] = {}
        self._watch = Watch()
        self._beats: Beats = {}
        self._reading: asyncio.Future[Reading] | None = None
        # Requests that a slow API server holds up must not look like a metrics source that doesn't answer.
        self._thread = ThreadPoolExecutor(1, "metrics")

    def track(
        self,
        serving: GemmaServing,
        states: Mapping[str, PoolState],
        shown: Mapping[str, Any],
        profiles: Mapping[str, Profile] | None = None,
        lenders: Collection[str] = (),
        is_sound: bool = False,
    ) -> None:
        """Take over policy and fleet of every pool as of the last reconcile.

        `shown` is `status.pools` as it stands, `is_sound`: the status speaks of this spec and of nothing amiss; `profiles` says of
        pools what their engines carry; `lenders`: pools whose engines can answer the interactive pool's requests, and may.
        """
        key = (serving.namespace, serving.name)
        known = self._servings.get(key)
        decided: Mapping[str, Decision] = {}
        if known is None or known.uid != serving.uid:  # nothing is learnt from one of the same name that was deleted
            known = self._servings[key] = Serving(serving.uid)
            decided = shown_decisions(shown)
            if is_sound and decided.keys() >= serving.spec.pools.keys():
                known.quiet_until = self._clock() + QUIET_SECONDS
        elif not is_sound:
            known.quiet_until = 0.0
        pools = {}
        for name in serving.spec.pools:
            spec = spec_of(serving, name, (profiles or {}).get(name), name in lenders)
            state = states.get(name, PoolState())
            if (pool := known.pools.get(name)) is None:
                saved = shown.get(name, {}).get("memory", {})
                memory = restore(saved)
                pool = Pool(spec, memory, saved, memory.learned, self._clock())
                if known.quiet_until:
                    pool.shown = pool.decision = decided.get(name)
            elif state.desired not in (pool.fleet.desired, pool.target, pool.asked):
                pool.foreign = (*pool.foreign[-CONTESTED_TIMES:], self._clock())
            pool.spec = spec
            # Another operator may have restarted one while this one stood aside.
            pool.restarted_at = max(pool.restarted_at, epoch(shown.get(name, {}).get("lastRestart"), 0.0))
            pool.follow(state)
            pools[name] = pool
        known.pools, known.gpu_budget, known.borrower = pools, serving.spec.gpu_budget, serving.spec.borrower
        known.heartbeat = serving.spec.heartbeat
        if known.borrower:
            fleet, guests = pools[known.borrower].fleet, (guest for pool in pools.values() for guest in pool.guests())
            pools[known.borrower].fleet = replace(fleet, members=(*fleet.members, *guests))
        if not any(pool.flips for pool in pools.values()):
            known.hindrance = ""

    def hinder(self, key: Key, why: str) -> None:
        """A flip was refused; it is tried again."""
        if known := self._servings.get(key):
            known.hindrance = why

    def forget(self, key: Key) -> None:
        """The serving is gone."""
        self._servings.pop(key, None)

    def scaling(self, key: Key) -> Scaling:
        """Last decisions of a serving, for plan and status."""
        serving = self._servings.get(key, Serving())
        is_quiet = serving.is_quiet(self._clock())
        return {
            name: PoolScaling(
                policy=pool.spec.policy,
                decision=None if is_quiet else pool.shown,
                missing=pool.missing,
                target=pool.target,
                victims=pool.victims if pool.target is not None else (),
                contested=self._is_contested(pool),
                hung=pool.hung,
                kept=serving.kept if pool.hung else "",
                restarted_at=pool.restarted_at,
                memory=pool.saved,
                flips=pool.flips,
                hindrance=serving.hindrance if pool.flips else "",
            )
            for name, pool in serving.pools.items()
        }

    def to_restart(self, key: Key) -> Hung | None:
        """The engine of a serving that hangs and is to be restarted now."""
        return self._servings.get(key, Serving()).to_restart(self._clock())

    def restarted(self, key: Key, engine: Hung) -> None:
        """This engine of the serving was restarted because it hung."""
        self._servings[key].kept = ""
        for pool in self._servings[key].pools.values():
            if engine in pool.hung:
                pool.restarted_at = self._clock()

    def not_restarted(self, key: Key, why: str) -> None:
        """The engine whose turn it was could not be evicted; it is tried again."""
        self._servings[key].kept = why

    async def run(self, queue: WorkQueue) -> None:
        """Tick for ever. A tick that fails is logged and changes nothing."""
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            try:
                for number, key in enumerate(await self.tick()):
                    await queue.add(key, number * APART_SECONDS)
            except Exception:
                log.exception("scaler tick failed; replicas are held")

    async def tick(self) -> list[Key]:
        """Read, decide for every pool, and return the servings that need a reconcile."""
        with telemetry.tick_seconds.time():
            woken = await self._tick() if self._servings else []
        telemetry.tick_timestamp.set(self._clock())
        telemetry.pools.show(self._figures, self._budgets)
        return woken

    async def _tick(self) -> list[Key]:
        reading = await self._read()
        now = self._clock()
        pools = {pool_id: (pool.spec.policy, pool.fleet) for pool_id, pool in self._all()}
        self._watch, observations = observe(self._watch, reading, pools, now)
        engines = {} if isinstance(reading, Missing) else reading.engines
        self._beats = follow(self._beats, engines, now)
        woken = []
        for number, (key, serving) in enumerate(list(self._servings.items())):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            seen = {
                name: observations[pool_id] for name in serving.pools if (pool_id := PoolId(*key, name)) in observations
            }
            changed = self._decide(key, serving, seen, engines, now)
            changed |= self._find_hung(serving) or serving.to_restart(now) is not None
            if changed:
                serving.quiet_until = 0.0
            if changed or (now - serving.shown_at >= STATUS_REFRESH_SECONDS and not serving.is_quiet(now)):
                serving.shown_at = now
                if self._show(serving, now) or changed:
                    woken.append(key)
        return woken

    async def _read(self) -> Reading:
        """One reading at a time: one that takes longer than a tick is taken over when it comes."""
        if self._reading is None:
            pools = dict(self._all())
            engines = {
                engine.uid: engine.metrics_url
                for pool in pools.values()
                for engine in pool.engines
                if engine.ready_at is not None and engine.metrics_url
            }
            none = PoolQueries()
            queries = {pool_id: pool.spec.queries for pool_id, pool in pools.items() if pool.spec.queries != none}
            itl = any(pool.spec.policy.itl for pool in pools.values())
            read, loop = self._source.read, asyncio.get_running_loop()
            self._reading = loop.run_in_executor(self._thread, read, self._clock(), engines, queries, itl)
        done, _ = await asyncio.wait({self._reading}, timeout=self._settings.tick_seconds)
        if not done:
            said = f"the metrics source has not answered within a tick of {self._settings.tick_seconds:g} s"
            return Missing(MissingReason.QUERY_FAILED, said)
        reading, self._reading = self._reading, None
        return reading.result()

    def _decide(
        self,
        key: Key,
        serving: Serving,
        seen: Mapping[str, Observation],
        engines: Mapping[str, EngineCounters],
        now: float,
    ) -> bool:
        """Decide for the pools of one serving; True where the outcome is another than at the last tick.

        A target that can't be reached is not pressed each tick: the queue retries what failed.
        """
        is_quiet = serving.is_quiet(now)
        before = {name: outcome(pool, is_quiet) for name, pool in serving.pools.items()}
        claims = {}
        for name, observation in seen.items():
            pool = serving.pools[name]
            policy = pool.spec.policy
            pool.seen, pool.rates = observation, observation.rates or pool.rates
            pool.missing = lasting_gap(pool, observation, now)
            decision, pool.memory = decide(policy, pool.fleet, observation, pool.memory, now)
            claims[name] = Claim(decision, pool.spec.gpus, pool.spec.interactive, policy.mode is Mode.AUTO)
        for name, decision in allocate(serving.gpu_budget, claims).items():
            pool = serving.pools[name]
            is_move = claims[name].writes and decision.replicas != pool.fleet.desired
            pool.decision = decision
            pool.asked, pool.target = pool.target, decision.replicas if is_move else None
            pool.victims = victims_of(pool, engines)
            if is_move and outcome(pool, is_quiet) != before[name]:
                log.info("%s: %s (%s)", PoolId(*key, name), decision.message, decision.reason)
        lend(serving, engines, now)
        return any(outcome(pool, is_quiet) != before[name] for name, pool in serving.pools.items())

    def _find_hung(self, serving: Serving) -> bool:
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

    def _show(self, serving: Serving, now: float) -> bool:
        """Take over what the status shows; False where that is nothing new."""
        is_new = False
        for pool in serving.pools.values():
            if pool.decision and (pool.shown is None or is_news(pool.shown, pool.decision)):
                pool.shown, is_new = pool.decision, True
            is_moved = pool.spec.policy.maximum > pool.spec.policy.minimum
            learned = pool.memory.learned
            is_due = now - pool.saved_at >= MEMORY_REFRESH_SECONDS and is_lesson(pool.written, learned)
            if is_moved and (pool.target is not None or is_due):
                pool.saved, pool.written, pool.saved_at, is_new = pool.memory.save(), learned, now, True
                pool.shown = pool.decision
        return is_new

    def _all(self) -> Iterable[tuple[PoolId, Pool]]:
        for key, serving in list(self._servings.items()):  # a scrape asks from a thread of its own
            yield from _pools_of(key, serving)

    def _is_contested(self, pool: Pool) -> bool:
        recent = [at for at in pool.foreign if at >= self._clock() - CONTESTED_SECONDS]
        return pool.spec.policy.mode is Mode.AUTO and len(recent) >= CONTESTED_TIMES

    def _figures(self) -> dict[telemetry.PoolLabels, Figures]:
        return {(pool_id.namespace, pool_id.serving, pool_id.pool): figures_of(pool) for pool_id, pool in self._all()}

    def _budgets(self) -> dict[telemetry.ServingLabels, float]:
        budgets = {key: serving.gpu_budget for key, serving in list(self._servings.items())}
        return {key: budget for key, budget in budgets.items() if budget is not None}


def _pools_of(key: Key, serving: Serving) -> Iterable[tuple[PoolId, Pool]]:
    return ((PoolId(*key, name), pool) for name, pool in serving.pools.items())
