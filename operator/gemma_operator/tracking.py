"""What the scaler keeps of every pool between ticks: its policy, its Pods, what was decided of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gemma_operator.api.heartbeat import Heartbeat
from gemma_operator.api.serving import GemmaServing
from gemma_operator.engine.view import pool_slo
from gemma_operator.figures import Figures, figures
from gemma_operator.loans import FLIP_SECONDS, Flip, flips
from gemma_operator.metrics.queries import PoolQueries
from gemma_operator.observe import PoolState
from gemma_operator.pods import EnginePod
from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason
from gemma_operator.scaling.decision import Decision, Kind, Reason
from gemma_operator.scaling.feedback import LONG_SECONDS
from gemma_operator.scaling.heartbeat import Hung, may_restart
from gemma_operator.scaling.lending import Engines, Lender
from gemma_operator.scaling.lending import plan as plan_loans
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.observation import FRESH_SECONDS, Observation
from gemma_operator.scaling.policy import policy_of
from gemma_operator.scaling.pool import Fleet, Member, Mode, Policy
from gemma_operator.scaling.profile import Profile, Rates
from gemma_operator.scaling.verdict import Verdict

QUIET_SECONDS = LONG_SECONDS
"""After a restart no verdict that is less sure than the one shown takes its place before as much was seen again."""
SHORT = {Reason.AT_MAXIMUM, Reason.NO_CAPACITY, Reason.BUDGET_SPENT}
"""More engines are needed, and don't come."""
SAMPLE_GAPS = (MissingReason.NO_SERIES, MissingReason.STALE, MissingReason.PARTIAL_COVERAGE)
"""What is no fault while engines have just started."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a serving's spec says of one pool."""

    policy: Policy
    queries: PoolQueries
    gpus: int
    """GPUs of one engine."""
    interactive: bool
    lend: int
    """Engines that it may have lent at a time."""


@dataclass(slots=True)
class Pool:
    spec: Spec
    memory: Memory
    saved: Mapping[str, Any]
    """The memory as it stands in the status."""
    written: Learned
    """What was learnt of it when that was written."""
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
    """What the status shows of it."""
    hung: tuple[Hung, ...] = ()
    restarted_at: float = 0.0
    """When one of its engines was last restarted because it hung."""
    flips: tuple[Flip, ...] = ()
    """Engines of it that are to move to another pool or back, and have not."""

    def is_away(self, engine: EnginePod) -> bool:
        """True where the interactive pool's requests go to an engine of this batch pool."""
        return not self.spec.interactive and engine.serves == "interactive"

    def follow(self, state: PoolState) -> None:
        """Take over the Pods as they are."""
        ready = {engine.uid: engine.ready_at for engine in state.engines if engine.ready_at is not None}
        alive = {engine.uid for engine in state.engines}
        self.first_ready = ready | {uid: at for uid, at in self.first_ready.items() if uid in alive}
        members = [
            Member(engine.uid, engine.created_at, self.first_ready[engine.uid], engine.ready_at)
            for engine in state.engines
            if engine.ready_at is not None and not self.is_away(engine)
        ]
        self.engines = state.engines
        self.fleet = Fleet(
            desired=state.desired,
            members=tuple(members),
            pending=len(alive) - len(ready),
            unschedulable=sum(engine.unschedulable for engine in state.engines),
            rolling_out=state.rolling_out,
            away=sum(map(self.is_away, state.engines)),
        )
        if self.target == state.desired:
            self.target = None
        serving = {engine.uid: engine.serves for engine in state.engines}
        self.flips = tuple(flip for flip in self.flips if serving.get(flip.uid, flip.serves) != flip.serves)

    def guests(self) -> Iterable[Member]:
        """Its engines as members of the pool that they are lent to."""
        for engine in self.engines:
            if engine.ready_at is not None and self.is_away(engine):
                since = max(engine.lent_at or 0.0, engine.ready_at)
                yield Member(engine.uid, engine.created_at, self.first_ready[engine.uid], since, lent=True)


@dataclass(slots=True)
class Serving:
    uid: str = ""
    pools: dict[str, Pool] = field(default_factory=dict)
    gpu_budget: int | None = None
    borrower: str | None = None
    """The pool that others may lend engines to."""
    hindrance: str = ""
    """Why the last flip was refused."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    kept: str = ""
    """Why the engine that hangs, and whose turn it is, was not evicted."""
    shown_at: float = 0.0
    quiet_until: float = 0.0
    """Until then what an operator before this one has shown stays, unless there is something to be done: less is known."""

    def is_quiet(self, now: float) -> bool:
        """True while what is shown stays; a clock that was set back must not make that longer."""
        return 0 < self.quiet_until - now <= QUIET_SECONDS

    def to_restart(self, now: float) -> Hung | None:
        """The engine to restart now."""
        hung = [one for pool in self.pools.values() for one in pool.hung]
        fleets = [pool.fleet for pool in self.pools.values()]
        last = max((pool.restarted_at for pool in self.pools.values()), default=0.0)
        return may_restart(hung, fleets, last, now) if self.heartbeat.restart else None


def spec_of(serving: GemmaServing, name: str, profile: Profile | None, lends: bool) -> Spec:
    pool = serving.spec.pools[name]
    return Spec(
        policy=policy_of(pool.replicas, pool_slo(serving.spec, name), pool.scaling, profile, pool.sheds),
        queries=PoolQueries(pool.scaling.backlog_query, pool.scaling.offered_query),
        gpus=pool.gpu_count,
        interactive=serving.spec.class_of(name) == "interactive",
        lend=(pool.scaling.lend or 0) if lends else 0,
    )


def lend(serving: Serving, engines: Mapping[str, EngineCounters], now: float) -> None:
    """Plan which engines move between the pools; one plan at a time, so that what is not seen yet isn't done twice."""
    if any(now - flip.at < FLIP_SECONDS for pool in serving.pools.values() for flip in pool.flips):
        return
    lenders = {
        name: _lender(pool, engines) for name, pool in serving.pools.items() if pool.decision and _may_flip(pool)
    }
    if not lenders:
        for pool in serving.pools.values():
            pool.flips = ()
        return
    names = {engine.uid: engine.name for pool in serving.pools.values() for engine in pool.engines}
    borrower = serving.pools.get(serving.borrower or "")
    needs = borrower.decision if borrower and borrower.spec.policy.mode is not Mode.DRY_RUN else None
    moves = flips(plan_loans(needs, list(lenders.values())), lenders, names, serving.borrower or "", needs, now)
    for name, pool in serving.pools.items():
        pool.flips = moves.get(name, ())


def _may_flip(pool: Pool) -> bool:
    """DryRun writes nothing, not even a label."""
    return bool(pool.spec.lend or pool.fleet.away) and pool.spec.policy.mode is not Mode.DRY_RUN


def _lender(pool: Pool, engines: Mapping[str, EngineCounters]) -> Lender:
    hung = {one.uid for one in pool.hung}

    def loads(away: bool) -> Engines:
        return tuple(
            (seen.running + seen.waiting if (seen := engines.get(engine.uid)) else math.inf, engine.uid)
            for engine in pool.engines
            if pool.is_away(engine) is away and (away or (engine.ready_at is not None and engine.uid not in hung))
        )

    assert pool.decision is not None
    # A rollout replaces them soon.
    most = min(pool.spec.lend, pool.fleet.away) if pool.fleet.rolling_out else pool.spec.lend
    return Lender(pool.decision, most, loads(away=True), loads(away=False))


def victims_of(pool: Pool, engines: Mapping[str, EngineCounters]) -> tuple[str, ...]:
    """The Pods that lose the least work when the pool shrinks. Pods that aren't Ready go before them anyway."""
    if pool.target is None or pool.target >= pool.fleet.desired:
        return ()
    loads = [
        (seen.running + seen.waiting, -engine.created_at, engine.name)
        for engine in pool.engines
        if engine.ready_at is not None and not pool.is_away(engine) and (seen := engines.get(engine.uid))
    ]
    return tuple(name for _, _, name in sorted(loads)[: pool.fleet.desired - pool.target])


def lasting_gap(pool: Pool, seen: Observation, now: float) -> Missing | None:
    """What the status calls missing: a single failed reading turns no condition, nor does an engine that just started."""
    own = [found for found in (seen.backlog, seen.offered) if isinstance(found, Missing)]
    missing = seen.missing or next(iter(own), None)
    is_expected = any(now - member.joined_at > FRESH_SECONDS for member in pool.fleet.members)
    if missing is seen.missing and missing and missing.reason in SAMPLE_GAPS and not is_expected:
        missing = next(iter(own), None)
    pool.gaps = pool.gaps + 1 if missing else 0
    return missing if pool.gaps > 1 else None


def outcome(pool: Pool, is_quiet: bool = False) -> tuple[object, ...] | None:
    """What of a tick's result is worth a reconcile when it changes; `is_quiet`: what has to be done or is worse than shown."""
    if (decision := pool.decision) is None:
        return None
    # A target that is not reached is asked for with changing reasons.
    reason = decision.reason if pool.target is None else None
    verdicts = [judgement.verdict for judgement in (decision.judgement, decision.itl) if judgement]
    kinds = {finding.kind for finding in decision.findings}
    would_be = decision.message.partition(":")[0] if decision.dry_run else ""
    loans = decision.lent, decision.away, [flip.uid for flip in pool.flips]
    to_do = decision.replicas, pool.missing and pool.missing.reason, loans
    if is_quiet:
        return *to_do, _alarms(decision) - (_alarms(pool.shown) if pool.shown else set())
    return *to_do, would_be, reason, verdicts, kinds


def _alarms(decision: Decision) -> set[object]:
    """What nobody should have to wait for."""
    judged = {judgement.verdict for judgement in (decision.judgement, decision.itl) if judgement}
    kinds = {finding.kind for finding in decision.findings} - {Kind.METRICS_BLIND, Kind.METRICS_PARTIAL}
    return (judged & {Verdict.MISSED}) | kinds | ({decision.reason} & SHORT)


def figures_of(pool: Pool) -> Figures:
    spec = pool.spec
    missing = pool.missing is not None
    return figures(spec.policy, pool.fleet, spec.gpus, pool.seen, pool.rates, pool.memory, pool.decision, missing)
