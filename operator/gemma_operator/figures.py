"""What the operator's metrics show of a pool: one number per name, or one per label value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gemma_operator.scaling.counters import EMBEDDINGS_PER_FRAME
from gemma_operator.scaling.decision import Decision, Kind, Reason
from gemma_operator.scaling.memory import Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.profile import Profile, Rates

_NO_STATE, _NO_REASON, _NO_FINDING = (
    dict.fromkeys((one.value for one in kind), 0.0) for kind in (Metrics, Reason, Kind)
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Values of one pool. What isn't known is left out, never zero."""

    plain: Mapping[str, float] = field(default_factory=dict)
    """By name of a gauge in `telemetry.POOL_GAUGES`."""
    labelled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By name of a gauge in `telemetry.LABELLED_GAUGES`, then by the value of its label."""


def figures(
    policy: Policy,
    fleet: Fleet,
    gpus: int,
    seen: Observation | None,
    rates: Rates | None,
    memory: Memory,
    decision: Decision | None,
    missing: bool,
) -> Figures:
    """All that is known of a pool. `gpus`: of one engine; `rates`: the newest, by which `work` is told apart."""
    plain = {
        "metrics_missing": float(missing),
        "pending_replicas": float(fleet.pending),
        "unschedulable_replicas": float(fleet.unschedulable),
        "min_replicas": float(decision.minimum if decision else policy.minimum),
        "max_replicas": float(policy.maximum),
    }
    if slo := policy.ttft:
        plain |= {"slo_ttft_target_seconds": slo.seconds, "slo_ttft_percentile": slo.percentile}
    if fleet.members:
        plain["cold_start_seconds"] = fleet.cold_start_seconds
    labelled: dict[str, dict[str, float]] = {}
    if rates and seen and seen.metrics in (Metrics.FULL, Metrics.PARTIAL):
        labelled["work"] = work_by_modality(policy.profile, rates)
    if seen:
        labelled["metrics_state"] = _NO_STATE | {seen.metrics.value: 1.0}
        if policy.ttft is None:
            plain |= _backlog(policy, seen, memory)
    if decision:
        plain |= _decided(decision, gpus)
        labelled["decision_reason"] = _NO_REASON | {decision.reason.value: 1.0}
        labelled["finding"] = _NO_FINDING | {finding.kind.value: 1.0 for finding in decision.findings}
        terms = decision.terms
        labelled["scaling_term"] = {name: float(getattr(terms, name)) for name in terms.__dataclass_fields__}
    return Figures(plain, labelled)


def work_by_modality(profile: Profile, rates: Rates) -> dict[str, float]:
    """Engine-seconds per second for texts, and for images and videos: their encoding, and their tokens in the prompt."""
    embeddings = (rates.media_units or 0.0) * EMBEDDINGS_PER_FRAME
    prompt = None if rates.prompt_tokens is None else max(0.0, rates.prompt_tokens - embeddings)
    text = profile.work(replace(rates, prompt_tokens=prompt, media_items=0.0, media_units=0.0))
    return {"text": text, "media": max(0.0, profile.work(rates) - text)}


def _decided(decision: Decision, gpus: int) -> dict[str, float]:
    plain = {
        "desired_replicas": float(decision.replicas),
        "wanted_replicas": float(decision.wanted),
        "ready_replicas": float(decision.ready),
        "lent_replicas": float(decision.lent),
        "away_replicas": float(decision.away),
        "gpus": float(decision.replicas * gpus),
    }
    if decision.judgement:
        plain |= {"attainment_low": 1 - decision.judgement.high, "attainment_high": 1 - decision.judgement.low}
    if decision.p95 is not None:
        plain["ttft_p95_seconds"] = decision.p95
    return plain


def _backlog(policy: Policy, seen: Observation, memory: Memory) -> dict[str, float]:
    plain = {"deadline_seconds": policy.deadline_seconds}
    if seen.metrics is Metrics.FULL or isinstance(seen.backlog, float | int):
        outside = seen.backlog if isinstance(seen.backlog, float | int) else 0.0
        plain["backlog_requests"] = seen.waiting + seen.running + outside
    lots = memory.learned.lots
    plain["backlog_work_seconds"] = sum(work for _, work in lots)
    if lots:
        plain["backlog_due_timestamp_seconds"] = lots[0][0]
    return plain
