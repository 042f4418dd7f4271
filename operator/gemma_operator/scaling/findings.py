"""States that scaling alone can't mend, each with what to do about it."""

from __future__ import annotations

from gemma_operator.scaling import batch, feedback
from gemma_operator.scaling.decision import Finding, Kind, Terms
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.verdict import Judgement, Verdict

WRONG = 0.7
"""A correction below this says that the profile is of something else."""


def findings(
    policy: Policy,
    fleet: Fleet,
    seen: Observation,
    memory: Memory,
    terms: Terms,
    judgement: Judgement | None,
    now: float,
) -> tuple[Finding, ...]:
    """All that hold now."""
    found: list[tuple[Kind, str]] = []
    if seen.missing and fleet.members:
        blind = seen.metrics in (Metrics.BLIND, Metrics.BLIND_LONG)
        said = "replicas are held until it is back" if blind else "the rest is guessed, and nothing is lowered"
        found.append((Kind.METRICS_BLIND if blind else Kind.METRICS_PARTIAL, f"{seen.missing.message}; {said}"))
    is_missed = judgement is not None and judgement.verdict is Verdict.MISSED
    if policy.ttft and is_missed and feedback.infeasible(memory, policy.ttft, terms.operating_point, now):
        found.append((Kind.SLO_INFEASIBLE, _infeasible(policy.ttft.seconds)))
    if fleet.unschedulable:
        text = (
            f"{fleet.unschedulable} Pods find no node with room: add GPUs, or lower replicas.max, min or another pool"
        )
        found.append((Kind.NO_CAPACITY, text))
    if seen.skewed:
        text = f"engine {seen.skewed} misses far more than the others: look at the router's weights, and at this Pod"
        found.append((Kind.ROUTER_SKEW, text))
    if policy.profile.unreadable:
        text = f"{policy.profile.doubt}; the {policy.profile.name} one is used meanwhile"
        found.append((Kind.PROFILE_UNREADABLE, text))
    elif policy.profile.stale:
        measured = policy.profile.doubt or "with another engine, model or GPU"
        found.append((Kind.PROFILE_STALE, f"profile {policy.profile.name} was measured {measured}: measure it again"))
    if policy.ttft and memory.learned.correction < WRONG:
        share = f"{memory.learned.correction:.0%} of what profile {policy.profile.name} says"
        found.append((Kind.PROFILE_WRONG, f"engines carry {share}: measure the profile with this load"))
    if policy.ttft is None and batch.is_late(memory.learned, now):
        found.append((Kind.DEADLINE_INFEASIBLE, "work is past its deadline: raise replicas.max, or the deadline"))
    if judgement and judgement.evidence.misses_low != judgement.evidence.misses_high:
        text = (
            "no bucket edge lies at the SLO, so misses are bounds: use vLLM 0.32 or newer, where the operator sets one"
        )
        found.append((Kind.COARSE_BUCKETS, text))
    return tuple(Finding(kind, text) for kind, text in found)


def _infeasible(seconds: float) -> str:
    return (
        f"requests miss {seconds * 1000:.0f} ms without any queue, so more engines don't help: "
        "limit media per request, batch the encoder, use a faster GPU, or raise slo.ttft.target"
    )
