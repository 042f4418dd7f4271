"""What would happen: one pool of a GemmaServing under a workload, with the operator's own rule and whatever goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemma_operator.engine.settings import ttft_edges
from gemma_operator.engine.view import PoolView, drain_seconds
from gemma_operator.planning.estimate import Engines
from gemma_operator.planning.load import STEP, engines_for, load_of
from gemma_operator.scaling.counters import Reading
from gemma_operator.scaling.decision import Decision, Reason
from gemma_operator.scaling.lending import Loans
from gemma_operator.scaling.memory import restore
from gemma_operator.scaling.observation import Watch
from gemma_operator.scaling.policy import policy_of
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.profile import Profile
from gemma_operator.simulation.engine_model import from_step_model
from gemma_operator.simulation.faults import Fault, FaultKind, Faults
from gemma_operator.simulation.fleet import SLOTS, World
from gemma_operator.simulation.policies import Borrower
from gemma_operator.simulation.run import BAD_MINUTE, TICK_SECONDS, Outcome, Tick, play
from gemma_operator.simulation.step_model import EngineConfig
from gemma_operator.workload.arrivals import Arrivals, WorkloadError

ROWS = 24
"""Parts of the time that are told of."""
TELLING = (Reason.METRICS_MISSING, Reason.SAFE_FLOOR, Reason.NO_CAPACITY, Reason.AT_MAXIMUM, Reason.ROLLING_OUT)
"""Reasons that are worth a line when they begin, though nothing changes."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The cluster and the day."""

    start: float
    """Epoch seconds of the workload's start: schedules go by it."""
    profile: Profile | None = None
    """In place of the pool's own."""
    speed: float = 1.0
    """How fast the engines really are, over what the profile says."""
    batched_encoder: bool = True
    cold_start: tuple[float, float] = (226.0, 428.0)
    """Seconds from creation to Ready, uniform (seed 001)."""
    failed_starts: float = 0.0
    """Share of starts that fail once."""
    gpus: int | None = None
    """That the cluster has for this pool; enough where absent."""
    faults: tuple[Fault, ...] = ()
    donors: int = 0
    """Warm batch engines that may be lent to the pool, which have nothing to do that can't wait."""
    initial: int | None = None
    """Engines at the start; what the workload's first minutes need where absent."""
    preroll: float = 1800.0
    """Seconds of the workload's own end that are played before it, uncounted, so that the rule has learnt something."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the time, in seconds since the start."""

    start: float
    end: float
    requests: int
    within: float
    """Share of them within the SLO."""
    ttft: float
    """Seconds at the SLO's percentile; infinite where too few were answered."""
    asked: tuple[int, int]
    """Fewest and most engines asked for."""
    ready: tuple[int, int]
    faults: tuple[FaultKind, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What would happen."""

    pool: str
    policy: Policy
    seconds: float
    requests: int
    refused: int
    """Turned away at once, by the engines' admission limit or because there was no engine."""
    media_share: float
    start: float
    gpus: int
    """Per engine."""
    outcome: Outcome
    parts: tuple[Part, ...]
    ticks: tuple[Tick, ...]
    minutes: tuple[tuple[int, int], ...]
    """(requests, misses) of each minute."""
    decisions: tuple[Decision, ...]
    """Those that are worth telling: what changed, and what kept it from changing."""
    faults: tuple[Fault, ...]
    findings: tuple[tuple[float, str, str], ...]
    """(seconds, kind, message) of what scaling can't mend, when each was first found."""
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the pool's objective was held over all requests."""
        slo = self.policy.ttft
        return slo is not None and self.outcome.attainment >= slo.percentile / 100


def what_if(view: PoolView, arrivals: Arrivals, given: Circumstances, notes: Sequence[str] = ()) -> Answer:
    """Play a workload on one pool.

    Raises:
        WorkloadError: it holds no request, or one that the pool's engines wouldn't take.
    """
    seconds = float(np.ceil(max(arrivals.seconds, 60.0)))
    _check(view, arrivals, given, seconds)
    policy, notes = _policy(view, given, notes)
    slo = policy.ttft
    assert slo is not None  # _check has seen to it
    preroll = min(given.preroll, seconds)
    operator = _Operator(policy, Faults(given.faults), given.start)
    played = play(
        operator,
        arrivals,
        _world(view, policy, arrivals, given, given.start - preroll),
        length=seconds,
        slo=slo.seconds,
        initial=_initial(policy, arrivals, given, seconds - preroll),
        preroll=preroll,
        faults=Faults(given.faults),
    )
    missed = ~(played.ttft <= slo.seconds)
    minute = (played.arrived // 60).astype(int)
    total, bad = np.bincount(minute), np.bincount(minute, weights=missed)
    ticks = tuple(tick for tick in played.ticks if tick.at > 0)
    return Answer(
        pool=view.name,
        policy=policy,
        seconds=seconds,
        requests=len(arrivals),
        refused=int(np.isinf(played.ttft).sum()),
        media_share=arrivals.media_share,
        start=given.start,
        gpus=view.pool.gpu_count,
        outcome=played.outcome,
        parts=_parts(seconds, played.arrived, played.ttft, ticks, policy, given.faults),
        ticks=ticks,
        minutes=tuple((int(count), int(misses)) for count, misses in zip(total, bad, strict=True)),
        decisions=_told(operator.decisions, given.start),
        faults=given.faults,
        findings=_findings(operator.decisions, given.start),
        notes=(*notes, *_loans(given, operator.decisions)),
    )


def _loans(given: Circumstances, decisions: Sequence[Decision]) -> tuple[str, ...]:
    if not given.donors:
        return ()
    lent = [decision.lent for decision in decisions if decision.at > given.start]
    hours = sum(lent) * TICK_SECONDS / 3600
    donors = "1 batch engine is" if given.donors == 1 else f"{given.donors} batch engines are"
    return (
        f"{donors} taken as warm, idle and to be lent: up to {max(lent, default=0)} at a time were, "
        f"for {hours:.2f} of the engine-hours",
    )


class _Operator(Borrower):
    """The product's rule in a process that may be down for a while, and then knows what it had written down."""

    def __init__(self, policy: Policy, faults: Faults, start: float) -> None:
        super().__init__(policy)
        self._faults, self._start, self._is_down = faults, start, False

    def moves(self, now: float, reading: Reading, fleet: Fleet, batch: Fleet) -> tuple[int, Loans]:
        if FaultKind.OPERATOR in self._faults.at(now - self._start):
            self._is_down = True
            return fleet.desired, Loans()
        if self._is_down:
            self.watch, self._is_down = Watch(), False
            self.memory, self.lender = restore(self.memory.save()), restore(self.lender.save())
        return super().moves(now, reading, fleet, batch)


def _check(view: PoolView, arrivals: Arrivals, given: Circumstances, seconds: float) -> None:
    if not len(arrivals):
        raise WorkloadError("the workload holds no request: there is nothing to play")
    if view.slo is None:
        raise WorkloadError(
            f"pool {view.name} has no TTFT objective: batch pools are sized by their backlog, "
            "which a workload of requests doesn't have; name an interactive pool with --pool, or give it an slo"
        )
    if view.pool.modalities.text_only and arrivals.media_share:
        raise WorkloadError(
            f"pool {view.name} takes text only, and {arrivals.media_share:.0%} of the requests have media: "
            "give --media-share 0, or allow images or videos in the pool"
        )
    for fault in given.faults:
        if fault.start >= seconds:
            raise WorkloadError(
                f"the fault {fault.kind} would begin {fault.start / 3600:.3g} h after the start, "
                f"but the workload is over after {seconds / 3600:.3g} h"
            )
    if given.gpus is not None and not view.pool.gpu_count:
        raise WorkloadError(f"engines of pool {view.name} have no GPU: leave out --gpus")


def _policy(view: PoolView, given: Circumstances, notes: Sequence[str]) -> tuple[Policy, list[str]]:
    pool, told = view.pool, list(notes)
    policy = policy_of(pool.replicas, view.slo, pool.scaling, given.profile, pool.sheds)
    if given.profile is None and pool.scaling.profile_from:
        told.append(
            f"the profile in ConfigMap {pool.scaling.profile_from.name} isn't known here, so the built-in one is "
            "used: give it with --profile"
        )
    budget = view.spec.gpu_budget
    if budget is not None and pool.gpu_count:
        others = sum(p.gpu_count * p.replicas.min for name, p in view.spec.pools.items() if name != view.name)
        most = max(0, budget - others) // pool.gpu_count
        if most < policy.maximum:
            told.append(f"gpuBudget {budget} leaves {most} engines beside the other pools' minima")
            policy = replace(policy, maximum=max(most, policy.minimum))
    return policy, told


def _world(view: PoolView, policy: Policy, arrivals: Arrivals, given: Circumstances, epoch: float) -> World:
    costs = Engines.of(policy.profile, arrivals.media_share).costs.scaled(1 / given.speed)
    config = EngineConfig(view.token_budget, view.max_num_seqs, batched_encoder=given.batched_encoder)
    admission = view.pool.admission
    limit = view.max_queued_tokens if admission and admission.enabled else 0
    return World(
        engine=from_step_model(config, costs, limit),
        cold_start=given.cold_start,
        failed_starts=given.failed_starts,
        room=SLOTS if given.gpus is None else min(SLOTS, given.gpus // view.pool.gpu_count),
        drain=float(drain_seconds(view.spec, view.name)),
        edges=tuple(ttft_edges(view.slo)),
        donors=given.donors,
        seed=given.seed,
        epoch=epoch,
    )


def _initial(policy: Policy, arrivals: Arrivals, given: Circumstances, at: float) -> int:
    if given.initial is not None:
        return given.initial
    needed = engines_for(load_of(arrivals, policy.profile, arrivals.seconds), policy.profile)
    first = int(min(at // STEP, len(needed) - 1)) if given.preroll else 0
    return min(max(int(needed[first : first + 10].max()), policy.minimum), policy.maximum)


def _parts(
    seconds: float,
    arrived: np.ndarray,
    ttft: np.ndarray,
    ticks: Sequence[Tick],
    policy: Policy,
    faults: Sequence[Fault],
) -> tuple[Part, ...]:
    slo = policy.ttft
    assert slo is not None
    minutes = int(np.ceil(seconds / 60))
    width = 60.0 * max(1, -(-minutes // ROWS))
    parts = []
    for start in np.arange(0.0, seconds, width).tolist():
        end = min(start + width, seconds)
        low, high = np.searchsorted(arrived, (start, end))
        own = np.where(np.isnan(ttft[low:high]), np.inf, ttft[low:high])
        during = [tick for tick in ticks if start < tick.at <= end]
        asked, ready = [tick.asked for tick in during] or [0], [tick.ready for tick in during] or [0]
        parts.append(
            Part(
                start,
                end,
                len(own),
                float(np.mean(own <= slo.seconds)) if len(own) else 1.0,
                float(np.quantile(own, slo.percentile / 100, method="higher")) if len(own) else 0.0,
                (min(asked), max(asked)),
                (min(ready), max(ready)),
                tuple(dict.fromkeys(fault.kind for fault in faults if fault.start < end and fault.end > start)),
            )
        )
    return tuple(parts)


def _told(decisions: Sequence[Decision], start: float) -> tuple[Decision, ...]:
    told, before = [], None
    for decision in decisions:
        is_new = decision.reason is not before and (decision.reason in TELLING or before in TELLING)
        if decision.at > start and (decision.replicas != decision.desired or is_new):
            told.append(decision)
        before = decision.reason
    return tuple(told)


def _findings(decisions: Sequence[Decision], start: float) -> tuple[tuple[float, str, str], ...]:
    first: dict[str, tuple[float, str, str]] = {}
    for decision in decisions:
        for finding in decision.findings if decision.at > start else ():
            first.setdefault(finding.kind.value, (decision.at - start, finding.kind.value, finding.message))
    return tuple(first.values())


def bad_minutes(answer: Answer) -> int:
    """Minutes in which more than 5 % of the requests missed."""
    return sum(misses > BAD_MINUTE * count for count, misses in answer.minutes)
