"""The scaling rule: a pure function from policy, fleet, observation and memory to one explained decision.

Up on evidence, quickly, and never twice on the same evidence. Down one at a time, after a long unbroken good history.
Whatever isn't known holds. docs/autoscaling.md explains the rule to its users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .types import (
    Decision,
    Fleet,
    Judgement,
    Load,
    Memory,
    Missing,
    Policy,
    Reason,
    Slo,
    Verdict,
    Window,
)

Z = 1.645
"""One-sided 95 % normal quantile of the Wilson bounds: 3 misses of 20 prove more than 5 %, 0 of 60 prove less."""
HEADROOM = 0.9
"""Hysteresis: a smaller fleet must stay under this share of the load seen carried, and of the load seen too much."""
LIGHT_IN_FLIGHT = 1.0
"""An engine that works on one request at a time is unloaded: the SLO is out of its hands."""
MISSED_LOAD_SECONDS = 3600
"""How long a load that was too much is remembered; the mix of requests changes."""
BULK_MISS_SHARE = 0.5
"""When more than this share of requests misses, one more engine won't do: add half of the fleet."""


@dataclass(frozen=True)
class _Change:
    replicas: int
    reason: Reason
    message: str


def decide(
    policy: Policy, fleet: Fleet, observation: Window | Missing, memory: Memory, now: float
) -> tuple[Decision, Memory]:
    """One tick: the replicas the pool should have from now on, why, and what to remember for the next tick."""
    memory = _track(policy, fleet, memory, now)
    window = None if isinstance(observation, Missing) else observation
    judgement = judge(window, policy.slo) if window and policy.slo else None
    if window and judgement and memory.unsettled_since is None:
        memory = _learn(policy, fleet, window, judgement, memory, now)
    else:
        memory = replace(memory, quiet=())
    change = _change(policy, fleet, observation, memory, now)
    if change.replicas != fleet.desired and memory.target is None:
        memory = replace(memory, ready_since=None, unsettled_since=now, target=change.replicas)
    return Decision(change.replicas, change.reason, change.message, judgement, window), memory


def _change(policy: Policy, fleet: Fleet, observation: Window | Missing, memory: Memory, now: float) -> _Change:
    """The rules in their order: bounds, reasons to hold, up, down."""
    if out_of_bounds := _clamp(policy, fleet):
        return out_of_bounds
    if policy.slo is None:
        return _hold(fleet, Reason.NO_SLO, "the pool has no TTFT target to scale on")
    if unseen := _ask_again(policy, fleet, observation, policy.slo, memory):
        return unseen
    if waiting := _wait(policy, fleet, memory, now):
        return waiting
    if isinstance(observation, Missing):
        return _hold(fleet, Reason.METRICS_MISSING, f"{observation.message} ({observation.reason})")
    judgement = judge(observation, policy.slo)
    evidence = _evidence(observation, policy.slo, judgement)
    return (
        _up(policy, fleet, observation, judgement, evidence)
        or _down(policy, fleet, policy.slo, memory, now)
        or _hold(fleet, Reason.STEADY, evidence)
    )


def judge(window: Window, slo: Slo) -> Judgement:
    """Is the share of misses proven to be over, or under, what the SLO allows?"""
    low, _ = wilson(window.misses_low, window.samples)
    _, high = wilson(window.misses_high, window.samples)
    if low > slo.allowed_share:
        return Judgement(Verdict.MISSED, low, high)
    return Judgement(Verdict.MET if high < slo.allowed_share else Verdict.UNDETERMINED, low, high)


def wilson(hits: float, total: float) -> tuple[float, float]:
    """Wilson score bounds of a share; (0, 1) when nothing was counted."""
    if total <= 0:
        return 0.0, 1.0
    share = hits / total
    spread = Z * math.sqrt(share * (1 - share) / total + (Z / (2 * total)) ** 2)
    middle, scale = share + Z * Z / (2 * total), 1 + Z * Z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def _track(policy: Policy, fleet: Fleet, memory: Memory, now: float) -> Memory:
    """Follow whether the fleet is settled: all Ready, no rollout, unchanged, for a whole window."""
    if now < memory.at:
        memory = Memory()  # The clock went back: remembered times mean nothing any more.
    is_gap = now - memory.at > policy.window_seconds
    is_ready = fleet.ready >= fleet.desired and not fleet.rolling_out
    is_new = is_gap or memory.ready_since is None or memory.desired != fleet.desired
    ready_since = (now if is_new else memory.ready_since) if is_ready else None
    is_settled = ready_since is not None and now - ready_since >= policy.window_seconds
    unsettled_since = now if memory.unsettled_since is None else memory.unsettled_since
    # The fleet may be seen a little late; a write that failed for longer needs fresh evidence.
    is_unseen = memory.desired == fleet.desired and now - unsettled_since < policy.window_seconds
    return replace(
        memory,
        at=now,
        target=memory.target if is_unseen else None,
        desired=fleet.desired,
        ready_since=ready_since,
        unsettled_since=None if is_settled else unsettled_since,
        quiet=() if is_gap else memory.quiet,
    )


def _learn(policy: Policy, fleet: Fleet, window: Window, judgement: Judgement, memory: Memory, now: float) -> Memory:
    """Remember what load was carried and what was too much."""
    per_engine = window.requests_per_second / max(fleet.ready, 1)
    if memory.missed_load is not None and now - memory.missed_at > MISSED_LOAD_SECONDS:
        memory = replace(memory, missed_load=None)
    if judgement.verdict is Verdict.MISSED or _is_stuck(window):
        lowest = per_engine if memory.missed_load is None else min(per_engine, memory.missed_load)
        return replace(memory, quiet=(), missed_load=lowest, missed_at=now)
    if judgement.verdict is Verdict.MET:
        memory = replace(memory, met_load=max(memory.met_load, per_engine))
    in_flight = window.waiting + window.running
    load = Load(now, window.requests_per_second, in_flight, window.samples, window.misses_high)
    # One entry more than the time asks for, so that the history spans all of it.
    young = sum(old.at > now - policy.scale_down_after_seconds for old in memory.quiet)
    return replace(memory, quiet=(*memory.quiet[-young - 1 :], load))


def _clamp(policy: Policy, fleet: Fleet) -> _Change | None:
    if fleet.desired < policy.minimum:
        message = f"{fleet.desired} -> {policy.minimum} replicas: the minimum is {policy.minimum}"
        return _Change(policy.minimum, Reason.BELOW_MINIMUM, message)
    if fleet.desired > policy.maximum:
        message = f"{fleet.desired} -> {policy.maximum} replicas: the maximum is {policy.maximum}"
        return _Change(policy.maximum, Reason.ABOVE_MAXIMUM, message)
    return None


def _hold(fleet: Fleet, reason: Reason, message: str) -> _Change:
    return _Change(fleet.desired, reason, f"held at {fleet.desired}: {message}")


def _ask_again(policy: Policy, fleet: Fleet, observation: Window | Missing, slo: Slo, memory: Memory) -> _Change | None:
    """Stay with a change that the fleet doesn't show yet; with a scale-down only while nothing speaks against it."""
    if memory.target is None:
        return None
    is_missed = isinstance(observation, Missing) or judge(observation, slo).verdict is Verdict.MISSED
    if memory.target < fleet.desired and is_missed:
        return None
    target = max(policy.minimum, min(policy.maximum, memory.target))
    return _Change(target, Reason.APPLYING, f"{target} replicas were decided, the Deployment has {fleet.desired}")


def _wait(policy: Policy, fleet: Fleet, memory: Memory, now: float) -> _Change | None:
    """Hold while replicas that were asked for are on their way, but not for ever."""
    if memory.unsettled_since is None:
        return None
    if now >= memory.unsettled_since + policy.cold_start_deadline_seconds:
        return None
    # No countdown in these messages: they go into the status, which a quiet state must not rewrite.
    at_most = f"waiting for {policy.cold_start_deadline_seconds:.0f} s at most"
    if fleet.rolling_out:
        return _hold(fleet, Reason.ROLLING_OUT, f"a rollout replaces the Pods ({at_most})")
    if fleet.ready < fleet.desired:
        return _hold(fleet, Reason.PODS_PENDING, f"{fleet.ready} of {fleet.desired} replicas are Ready ({at_most})")
    return _hold(fleet, Reason.SETTLING, f"a judgement needs all replicas Ready for {policy.window_seconds:.0f} s")


def _up(policy: Policy, fleet: Fleet, window: Window, judgement: Judgement, evidence: str) -> _Change | None:
    if judgement.verdict is Verdict.MISSED:
        reason, why = Reason.SLO_MISSED, evidence
    elif _is_stuck(window):
        reason = Reason.QUEUE_STUCK
        why = f"{window.waiting:.0f} requests wait and none got a first token in {window.seconds:.0f} s"
    else:
        return None
    is_bulk = window.samples > 0 and window.misses_low / window.samples > BULK_MISS_SHARE
    target = min(policy.maximum, fleet.desired + (math.ceil(fleet.desired / 2) if is_bulk else 1))
    if target == fleet.desired:
        return _hold(fleet, Reason.AT_MAXIMUM, f"the maximum is {policy.maximum}, but {why}")
    return _Change(target, reason, f"{fleet.desired} -> {target} replicas: {why}")


def _down(policy: Policy, fleet: Fleet, slo: Slo, memory: Memory, now: float) -> _Change | None:
    """One less, if the peak of the whole history fits on one engine less."""
    target = fleet.desired - 1
    history = memory.quiet
    if target < max(policy.minimum, 1) or not history or now - history[0].at < policy.scale_down_after_seconds:
        return None
    rate = max(load.requests_per_second for load in history) / target
    in_flight = max(load.in_flight for load in history) / target
    is_carried = rate <= HEADROOM * memory.met_load
    is_too_much = memory.missed_load is not None and rate > HEADROOM * memory.missed_load
    misses, samples = sum(load.misses for load in history), sum(load.samples for load in history)
    if is_too_much or not (is_carried or in_flight <= LIGHT_IN_FLIGHT) or misses > slo.allowed_share * samples:
        return None
    proof = f"{memory.met_load:.2f}/s met the SLO" if is_carried else f"{in_flight:.2f} in flight is light"
    message = (
        f"{fleet.desired} -> {target} replicas: the SLO held for {now - history[0].at:.0f} s, "
        f"and {target} would have had at most {rate:.2f} requests/s per engine ({proof})"
    )
    return _Change(target, Reason.LOW_LOAD, message)


def _is_stuck(window: Window) -> bool:
    return window.samples == 0 and window.waiting_throughout > 0


def _evidence(window: Window, slo: Slo, judgement: Judgement) -> str:
    if window.p95_seconds is None:
        return f"no requests in {window.seconds:.0f} s"
    low, high = window.misses_low, window.misses_high
    counted = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    return (
        f"{counted} of {window.samples:.0f} requests in {window.seconds:.0f} s took over "
        f"{slo.ttft_seconds * 1000:.0f} ms to the first token (p95 about {window.p95_seconds * 1000:.0f} ms); "
        f"{judgement.share_low:.1%} to {judgement.share_high:.1%} miss, {slo.allowed_share:.1%} may: "
        f"SLO {judgement.verdict.lower()}"
    )
