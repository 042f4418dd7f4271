"""The scaler: each tick it reads the metrics of all pools once, decides, and wakes the servings that should change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gemma_operator import telemetry
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.names import label_value
from gemma_operator.engine.view import pool_slo
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.observe import PoolState
from gemma_operator.scaling import (
    Decision,
    Fleet,
    History,
    Memory,
    Missing,
    MissingReason,
    Policy,
    PoolKey,
    Reading,
    Slo,
    Window,
    decide,
    observe,
)
from gemma_operator.settings import Settings
from gemma_operator.status import Scaling
from gemma_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
# How often measured values in the status are renewed while nothing else changes, seconds.
STATUS_REFRESH_SECONDS = 30


class NoSource:
    """Stands where no Prometheus is named: every pool's metrics are missing."""

    def read(self, now: float) -> Reading:
        """Always Missing."""
        return Missing(
            MissingReason.NOT_CONFIGURED, "no Prometheus is configured: set metrics.prometheusUrl in the chart's values"
        )


@dataclass(slots=True)
class _Pool:
    policy: Policy
    fleet: Fleet
    history: History = field(default_factory=History)
    memory: Memory = field(default_factory=Memory)
    decision: Decision | None = None
    missing: Missing | None = None
    gap_since: float | None = None
    target: int | None = None
    shown: Decision | None = None


@dataclass(slots=True)
class _Serving:
    pools: dict[str, _Pool] = field(default_factory=dict)
    shown: float = 0.0


class Scaler:
    """Keeps what `decide` needs between ticks, in memory only: after a restart it is merely more careful."""

    def __init__(self, source: MetricsSource, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._servings: dict[Key, _Serving] = {}

    def track(self, serving: GemmaServing, states: Mapping[str, PoolState]) -> None:
        """Take over bounds, objective and fleet of every pool of a serving, as of its last reconcile."""
        key = (serving.namespace, serving.name)
        known = self._servings.setdefault(key, _Serving())
        pools = {}
        for name in serving.spec.pools:
            policy, fleet = self._policy(serving, name), _fleet(states.get(name, PoolState()))
            pool = known.pools.get(name) or _Pool(policy, fleet)
            pool.policy, pool.fleet = policy, fleet
            if pool.target == fleet.desired:
                pool.target = None
            pools[name] = pool
            if policy.slo:
                telemetry.slo_target.labels(*key, name).set(policy.slo.ttft_seconds)
        for name in known.pools.keys() - pools.keys():
            telemetry.forget_pool(*key, name)
        known.pools = pools

    def forget(self, key: Key) -> None:
        """The serving is gone."""
        for name in self._servings.pop(key, _Serving()).pools:
            telemetry.forget_pool(*key, name)

    def scaling(self, key: Key) -> Scaling:
        """Last decisions of a serving, for plan and status."""
        pools = self._servings.get(key, _Serving()).pools
        return Scaling(
            decisions={name: pool.shown for name, pool in pools.items() if pool.shown},
            missing={name: pool.missing for name, pool in pools.items() if pool.missing},
            targets={name: pool.target for name, pool in pools.items() if pool.target is not None},
        )

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
        telemetry.tick_timestamp.set(self._clock())
        if not self._servings:
            return []
        reading = await asyncio.to_thread(self._source.read, self._clock())
        now = self._clock()
        woken = []
        for key, serving in self._servings.items():
            changed = [
                self._decide(PoolKey(key[0], label_value(key[1]), name), pool, reading, now)
                for name, pool in serving.pools.items()
            ]
            if any(changed) or now - serving.shown >= STATUS_REFRESH_SECONDS:
                serving.shown = now
                for pool in serving.pools.values():
                    pool.shown = pool.decision
                woken.append(key)
            for name, pool in serving.pools.items():
                telemetry.metrics_missing.labels(*key, name).set(pool.missing is not None)
                telemetry.desired_replicas.labels(*key, name).set(pool.decision.replicas if pool.decision else 0)
        return woken

    def _decide(self, key: PoolKey, pool: _Pool, reading: Reading, now: float) -> bool:
        """Decide for one pool; True where the outcome is another than at the last tick.

        A target that can't be reached is not pressed each tick: the queue retries what failed.
        """
        before = _outcome(pool)
        pool.history, observation = observe(pool.history, reading, key, pool.fleet, pool.policy, now)
        pool.missing = _lasting_gap(pool, observation, now)
        decision, pool.memory = decide(pool.policy, pool.fleet, observation, pool.memory, now)
        if pool.decision and isinstance(observation, Missing) and pool.missing is None and pool.fleet.ready:
            # What was measured stays shown over a gap that is too short to be called missing.
            decision = replace(decision, judgement=pool.decision.judgement, window=pool.decision.window)
        pool.decision = decision
        # A decision to hold is no target: who changes the size by hand meanwhile is not overruled.
        pool.target = pool.decision.replicas if pool.decision.replicas != pool.fleet.desired else None
        changed = _outcome(pool) != before
        if changed and pool.target is not None:
            log.info(
                "%s: %d -> %d replicas, %s: %s",
                key,
                pool.fleet.desired,
                pool.decision.replicas,
                pool.decision.reason,
                pool.decision.message,
            )
        return changed

    def _policy(self, serving: GemmaServing, name: str) -> Policy:
        replicas, slo = serving.spec.pools[name].replicas, pool_slo(serving.spec, name)
        return Policy(
            minimum=replicas.min,
            maximum=replicas.ceiling,
            slo=Slo(slo.ttft.percentile, slo.ttft.seconds) if slo else None,
            window_seconds=self._settings.window_seconds,
            scale_down_after_seconds=self._settings.scale_down_after_seconds,
        )


def _outcome(pool: _Pool) -> tuple[object, ...] | None:
    """What of a tick's result is worth a reconcile when it changes."""
    if (decision := pool.decision) is None:
        return None
    verdict = decision.judgement and decision.judgement.verdict
    # A target that is not reached is asked for with changing reasons.
    reason = decision.reason if pool.target is None else None
    return decision.replicas, reason, verdict, pool.missing and pool.missing.reason


def _lasting_gap(pool: _Pool, observation: Window | Missing, now: float) -> Missing | None:
    """What the status calls missing: a new Pod has no samples at first, so gaps between samples count after one window."""
    if not isinstance(observation, Missing):
        pool.gap_since = None
        return None
    if pool.gap_since is None:
        pool.gap_since = now
    if observation.reason not in (MissingReason.NO_SERIES, MissingReason.PARTIAL_COVERAGE, MissingReason.STALE):
        return observation
    expected = bool(pool.fleet.live_pod_uids)  # an engine that still starts has no series
    return observation if expected and now - pool.gap_since >= pool.policy.window_seconds else None


def _fleet(state: PoolState) -> Fleet:
    return Fleet(
        desired=state.desired, ready=state.ready, live_pod_uids=state.ready_uids, rolling_out=state.rolling_out
    )
