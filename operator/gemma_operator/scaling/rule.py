"""The scaling rule: a pure function from policy, fleet, observation and memory to one explained decision.

Up at once, to an absolute target that counts the Pods which are still starting. Down one at a time, after a whole cold
start in which fewer would have been enough. Whatever isn't known holds. docs/autoscaling.md explains it to its users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gemma_operator.scaling import batch, demand, feedback, findings, headroom
from gemma_operator.scaling.decision import Decision, Reason, Terms
from gemma_operator.scaling.memory import Down, Memory, resume
from gemma_operator.scaling.moment import Moments, ttft, within
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Mode, Policy
from gemma_operator.scaling.verdict import Judgement, Verdict, quantile

SETTLED_SECONDS = 60.0
"""What younger engines measure is their warm-up."""
DOWN_EVERY_SECONDS = 60.0
LEAST_HISTORY, MOST_HISTORY = 120.0, 900.0
"""Bounds for the history that a scale-down needs, seconds; between them it is one cold start."""
SLACK = 0.95
"""The smaller fleet must have carried the peak of that history with this share of its planned load."""
DOWN_SHARE = 40
"""Fleets of more engines than this give up one for each so many at a time."""
KNOWN_LOAD = 0.01
"""Engine-seconds per second, a request each three seconds: of less load nothing has to be known before engines go."""
UP_BY, UP_FACTOR = 4, 2
"""One step up adds so many, or makes the fleet so many times as large, whichever is more."""


@dataclass(frozen=True, slots=True)
class _Change:
    replicas: int
    reason: Reason
    why: str


def decide(policy: Policy, fleet: Fleet, seen: Observation, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """One tick: the replicas the pool should have from now on, why, and what to remember for the next tick."""
    memory = _take_in(policy, fleet, seen, _follow(fleet, seen, resume(memory, now), now), now)
    terms = demand.terms(policy, fleet, seen.waiting, memory, now)
    judgement = feedback.evidence(memory.moments, policy.ttft, now) if policy.ttft else None
    minimum = max(policy.minimum, terms.scheduled)
    situation = _Situation(policy, fleet, seen, memory, now, terms, minimum, judgement)
    change = _change(situation)
    if change.reason in (Reason.LOW_DEMAND, Reason.IDLE) and not _is_repeated(memory.down, now):
        memory = replace(memory, down=Down(now, fleet.desired, change.replicas))
    is_dry = policy.mode is Mode.DRY_RUN and change.replicas != fleet.desired
    return (
        Decision(
            at=now,
            replicas=fleet.desired if is_dry else change.replicas,
            wanted=terms.for_demand + terms.for_backlog,
            reason=change.reason,
            message=_message(fleet, change, is_dry),
            metrics=seen.metrics,
            desired=fleet.desired,
            ready=sum(not member.lent for member in fleet.members),
            lent=sum(member.lent for member in fleet.members),
            minimum=minimum,
            maximum=policy.maximum,
            terms=terms,
            judgement=judgement,
            itl=feedback.evidence(memory.moments, policy.itl, now, itl=True) if policy.itl else None,
            p95=_p95(memory.moments, judgement, now),
            findings=findings.findings(policy, fleet, seen, memory, terms, judgement, now),
            dry_run=is_dry,
            away=fleet.away,
        ),
        memory,
    )


def history_seconds(cold_start: float) -> float:
    """How long fewer engines must have been enough before one goes: about as long as it would take to come back."""
    return min(max(cold_start, LEAST_HISTORY), MOST_HISTORY)


@dataclass(frozen=True, slots=True)
class _Situation:
    policy: Policy
    fleet: Fleet
    seen: Observation
    memory: Memory
    now: float
    terms: Terms
    minimum: int
    judgement: Judgement | None


def _follow(fleet: Fleet, seen: Observation, memory: Memory, now: float) -> Memory:
    """Since when all is seen, and since when the fleet is settled."""
    is_whole = seen.metrics is Metrics.FULL
    is_young = any(now - member.joined_at < SETTLED_SECONDS for member in fleet.members)
    # An engine of another pool is set up differently: what it carries says nothing of this pool's own.
    has_guests = any(member.lent for member in fleet.members)
    is_calm = is_whole and not (is_young or has_guests or fleet.rolling_out)
    whole_since = (now if memory.whole_since is None else memory.whole_since) if is_whole else None
    calm_since = (now if memory.calm_since is None else memory.calm_since) if is_calm else None
    return Memory(memory.learned, now, memory.moments, whole_since, calm_since, memory.down)


def _take_in(policy: Policy, fleet: Fleet, seen: Observation, memory: Memory, now: float) -> Memory:
    """The history with this tick in it, and what it teaches."""
    if policy.ttft is None:
        moment, learned = batch.measure(policy, fleet, seen, memory, now)
        memory = replace(memory, learned=learned)
    else:
        moment = demand.measure(policy, fleet, seen, memory, now)
    if moment is None:
        return memory
    memory = replace(memory, moments=(*memory.moments, moment))
    if policy.ttft is None:
        return memory
    horizon = fleet.cold_start_seconds + demand.REACTION_SECONDS
    learned = demand.learn_demand(memory.learned, memory, horizon, now)
    settled = now if memory.calm_since is None else memory.calm_since + SETTLED_SECONDS
    if settled < now:
        point = policy.profile.operating_point(moment.media_share)
        planned = demand.capacity(policy, moment.media_share, learned, len(fleet.members))
        learned = feedback.learn(learned, memory.moments, policy.ttft, point, planned, settled, now)
        learned = feedback.learn_chance(learned, memory, policy.ttft, policy.sheds, point, now)
    return replace(memory, learned=learned)


def _change(s: _Situation) -> _Change:
    """The rules in their order; the first that applies decides."""
    if s.policy.mode is Mode.OFF:
        return _hold(s, Reason.MODE_OFF, "scaling.mode is Off")
    if s.policy.mode is Mode.EXTERNAL:
        return _hold(s, Reason.EXTERNAL, "scaling.mode is External: another autoscaler writes the replicas")
    if s.fleet.desired < s.minimum:
        by = "the schedule asks for" if s.terms.scheduled > s.policy.minimum else "the minimum is"
        return _Change(s.minimum, Reason.BELOW_MINIMUM, f"{by} {s.minimum}")
    if s.fleet.desired > s.policy.maximum:
        return _Change(s.policy.maximum, Reason.ABOVE_MAXIMUM, f"the maximum is {s.policy.maximum}")
    return _without_metrics(s) or _up(s) or _down(s) or _stay(s)


def _without_metrics(s: _Situation) -> _Change | None:
    if not s.fleet.members and s.policy.ttft is None and s.memory.moments and s.memory.moments[-1].at == s.now:
        return None  # An empty batch pool is known by what waits outside of it.
    if s.seen.metrics not in (Metrics.BLIND, Metrics.BLIND_LONG):
        return None if s.memory.moments else _hold(s, Reason.METRICS_MISSING, "the first rates come with the next tick")
    said = f"{s.seen.missing.message} ({s.seen.missing.reason})" if s.seen.missing else "nothing is known of the load"
    if by_gateway := _by_gateway(s, said):
        return by_gateway
    usual = min(demand.usual_need(s.policy, s.memory, s.now), s.policy.maximum) if s.policy.ttft else 0
    if s.seen.metrics is Metrics.BLIND_LONG and usual > s.fleet.desired and not s.fleet.unschedulable:
        return _Change(usual, Reason.SAFE_FLOOR, f"this hour needed {usual} on recent days, and {said}")
    return _hold(s, Reason.METRICS_MISSING, said)


def _by_gateway(s: _Situation, said: str) -> _Change | None:
    """Without the engines' metrics a gateway's count may still raise, by what a request and an engine were worth before."""
    if not isinstance(s.seen.offered, float | int) or not s.memory.moments or s.policy.ttft is None:
        return None
    load, share = s.seen.offered * s.memory.moments[-1].each, s.terms.media_share
    needed = math.ceil(min(demand.engines_for(s.policy, load, share, s.memory.learned), demand.MOST_ENGINES))
    target = min(needed, _highest_step(s.fleet.desired), s.policy.maximum)
    if target <= s.fleet.desired or s.fleet.unschedulable:
        return None
    return _Change(target, Reason.DEMAND, f"the gateway counts {s.seen.offered:.0f} requests/s, and {said}")


def _highest_step(now: int) -> int:
    return max(now + UP_BY, now * UP_FACTOR)


def _up(s: _Situation) -> _Change | None:
    wanted, now = _wanted(s), s.fleet.desired
    if wanted <= now:
        return None
    target = min(wanted, _highest_step(now), s.policy.maximum)
    if s.seen.metrics is Metrics.PARTIAL:
        target = min(target, now + 1)  # The unseen engines are guessed from the seen ones.
    if target <= now:
        return _hold(s, Reason.AT_MAXIMUM, f"the maximum is {s.policy.maximum}, but {_sum(s)}")
    if s.fleet.unschedulable:
        pods = f"{s.fleet.unschedulable} Pods wait for a node with room"
        return _hold(s, Reason.NO_CAPACITY, f"{pods}, so no more are asked for, but {_sum(s)}")
    return _Change(target, Reason.DEMAND if s.policy.ttft else Reason.BACKLOG, _sum(s))


def _down(s: _Situation) -> _Change | None:
    """One less, if the peak of the whole history fits on one engine less, and nothing speaks against it."""
    seconds = history_seconds(s.terms.cold_start)
    target = max(s.minimum, s.fleet.desired - max(1, s.fleet.desired // DOWN_SHARE))
    if s.memory.down and _is_repeated(s.memory.down, s.now):
        if s.fleet.desired != s.memory.down.before:
            return None
        target = max(s.minimum, s.memory.down.after)  # Decided, but not yet seen on the Deployment.
    history = within(s.memory.moments, s.now - seconds)
    peak = max((moment.needed for moment in history), default=math.inf)
    is_wanted = target < s.fleet.desired and peak <= (SLACK * target if target else 0.0)
    if not is_wanted or not _is_proven(s, seconds) or _objection(s):
        return None
    if peak == 0.0:
        return _Change(target, Reason.IDLE, f"nothing was asked of the pool for {seconds:.0f} s, a cold start")
    why = f"{target} would have carried all that came in {seconds:.0f} s, a cold start; its peak needed {peak:.2f}"
    return _Change(target, Reason.LOW_DEMAND, why)


def _is_repeated(down: Down | None, now: float) -> bool:
    """True while the last scale-down may not be seen on the Deployment yet."""
    return down is not None and now - down.at < DOWN_EVERY_SECONDS


def _is_proven(s: _Situation, seconds: float) -> bool:
    """True after an unbroken history of that length."""
    if not s.fleet.members and s.policy.ttft is None:
        return bool(s.memory.moments) and s.memory.moments[0].at <= s.now - seconds
    return s.memory.whole_since is not None and s.now - s.memory.whole_since >= seconds


def _objection(s: _Situation) -> str:
    """What speaks against fewer engines, whatever the demand was; empty where nothing does."""
    if s.fleet.rolling_out:
        return "a rollout replaces the Pods"
    if s.fleet.away:
        return f"what is lent to another pool ({s.fleet.away}) comes back first"
    if s.fleet.pending > s.fleet.unschedulable:
        return f"{s.fleet.pending} Pods are starting"
    if (
        s.policy.ttft
        and s.policy.sheds
        and s.terms.level > KNOWN_LOAD
        and not headroom.is_known(s.memory.learned.heights)
    ):
        return "too little of the load has been seen yet"
    if s.judgement and s.judgement.verdict is Verdict.MISSED and not _is_hopeless(s):
        return "the SLO is missed"
    if s.policy.ttft and s.seen.waiting > demand.QUEUE_PER_ENGINE * len(s.fleet.members):
        return f"{s.seen.waiting:.0f} requests wait"
    return "requests are in an engine, and nothing comes of them" if s.seen.stuck else ""


def _is_hopeless(s: _Situation) -> bool:
    return s.policy.ttft is not None and feedback.infeasible(s.memory, s.policy.ttft, s.terms.operating_point, s.now)


def _stay(s: _Situation) -> _Change:
    wanted = max(s.minimum, _wanted(s))
    if wanted >= s.fleet.desired:
        return _hold(s, Reason.STEADY, _sum(s))
    if objection := _objection(s):
        reason = Reason.ROLLING_OUT if s.fleet.rolling_out else Reason.COOLING_DOWN
        return _hold(s, reason, f"{wanted} would do, but {objection}")
    seconds = history_seconds(s.terms.cold_start)
    return _hold(s, Reason.COOLING_DOWN, f"{wanted} would do, but not yet for {seconds:.0f} s, a cold start")


def _wanted(s: _Situation) -> int:
    """Engines for the pool's own work, beside those that do another's."""
    return s.terms.for_demand + s.terms.for_backlog + s.fleet.away


def _hold(s: _Situation, reason: Reason, why: str) -> _Change:
    return _Change(s.fleet.desired, reason, why)


def _sum(s: _Situation) -> str:
    """The sum in one line; a quiet state must not rewrite the status, so it has few digits."""
    t = s.terms
    if s.policy.ttft is None:
        return f"what waits needs {t.for_demand} to be finished by its deadline"
    load = max(t.fast, t.level + t.headroom)
    queue = f", and {t.for_backlog} for the queue" if t.for_backlog else ""
    return f"a load of {load:.1f} with its headroom needs {t.for_demand} at {t.capacity:.2f} each{queue}"


def _message(fleet: Fleet, change: _Change, is_dry: bool) -> str:
    if change.replicas == fleet.desired:
        return f"held at {fleet.desired}: {change.why}"
    return f"{'would be ' if is_dry else ''}{fleet.desired} -> {change.replicas} replicas: {change.why}"


def _p95(moments: Moments, judgement: Judgement | None, now: float) -> float | None:
    seconds = judgement.seconds if judgement else feedback.LONG_SECONDS
    return quantile(ttft(within(moments, now - seconds)), 0.95)
