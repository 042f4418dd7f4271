"""What scaling says in the status: its conditions, and the part of each pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from gemma_operator.api.conditions import (
    CAPACITY_AVAILABLE,
    ENGINES_PROGRESSING,
    METRICS_AVAILABLE,
    SCALING_ACTIVE,
    SCALING_SOUND,
    SLO_MET,
    VALID,
    Condition,
)
from gemma_operator.loans import Flip
from gemma_operator.scaling import codec
from gemma_operator.scaling.counters import Missing
from gemma_operator.scaling.decision import Decision, Kind, Reason
from gemma_operator.scaling.heartbeat import Hung
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.pool import Mode, Policy, Slo
from gemma_operator.scaling.verdict import Judgement, Verdict

TYPES = (SLO_MET, METRICS_AVAILABLE, ENGINES_PROGRESSING, CAPACITY_AVAILABLE, SCALING_ACTIVE, SCALING_SOUND)
"""The conditions that are set here."""
_MENDED = (METRICS_AVAILABLE, ENGINES_PROGRESSING, CAPACITY_AVAILABLE, SCALING_SOUND)
"""Conditions whose cause may be gone when an operator starts anew."""
_ELSEWHERE = (Kind.METRICS_BLIND, Kind.METRICS_PARTIAL, Kind.NO_CAPACITY)
"""Findings that have a condition of their own."""


@dataclass(frozen=True, slots=True)
class PoolScaling:
    """What the scaler knows of one pool."""

    policy: Policy
    decision: Decision | None = None
    """The last one that was worth showing."""
    missing: Missing | None = None
    """Why its metrics are missing, once that has lasted."""
    target: int | None = None
    """Size that is decided and not reached yet."""
    victims: tuple[str, ...] = ()
    """Names of the Pods that should go first when the pool shrinks."""
    contested: bool = False
    """Somebody else goes on changing the size as well."""
    hung: tuple[Hung, ...] = ()
    """Engines that hold requests and don't get on."""
    kept: str = ""
    """Why the one whose turn it is was not evicted."""
    restarted_at: float = 0.0
    """When one of them was last restarted for that, in epoch seconds; 0: never."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What survives a restart of the operator."""
    flips: tuple[Flip, ...] = ()
    """Engines of it that are to move to another pool or back."""
    hindrance: str = ""
    """Why they could not be moved."""


Scaling = Mapping[str, PoolScaling]
"""Pool -> what the scaler knows of it; pools that it has not come to are left out."""


_FIELDS = ("type", "status", "reason", "message")
_DECIDED = ("lastDecision", "samples", "attainment", "p95Milliseconds")
"""What the status of a pool shows of its last decision."""


def conditions(scaling: Scaling, shown: Iterable[Mapping[str, Any]] = ()) -> list[Condition]:
    """SLOMet, MetricsAvailable, EnginesProgressing, CapacityAvailable, ScalingActive and ScalingSound of a serving.

    `shown` are all its conditions as they stand: an operator that has just started, and decided nothing, leaves them so.
    """
    judged = [
        _slo_met(scaling),
        _metrics(scaling),
        _progressing(scaling),
        _capacity(scaling),
        _active(scaling),
        _sound(scaling),
    ]
    if any(known.decision or known.missing or known.hung for known in scaling.values()):
        return judged
    stand = {one["type"]: Condition(**{field: one[field] for field in _FIELDS}) for one in shown}
    return [stand.get(one.type, one) for one in judged]


def unknown(reason: str, message: str) -> list[Condition]:
    """The same conditions where the spec is refused and nothing is judged."""
    return [Condition(kind, "False" if kind == SCALING_ACTIVE else "Unknown", reason, message) for kind in TYPES]


def pool_status(known: PoolScaling | None, shown: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The part of `status.pools.<name>` that is the scaler's; `shown` is all of it as it stands."""
    if known is None:
        return {}
    kept: dict[str, Any] = {"memory": dict(known.memory)} if known.memory else {}
    if known.restarted_at:
        kept["lastRestart"] = datetime.fromtimestamp(known.restarted_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if known.decision is None:
        return kept | {name: shown[name] for name in _DECIDED if name in shown}
    decision = known.decision
    out: dict[str, Any] = {
        "lastDecision": {
            "replicas": decision.replicas,
            "reason": decision.reason.value,
            "message": decision.message,
            "record": codec.encode(decision),
        }
    }
    judgement = decision.judgement
    if judgement and judgement.evidence.samples:
        out["samples"] = round(judgement.evidence.samples)
        out["attainment"] = _attainment(judgement)
        if decision.p95 is not None:
            out["p95Milliseconds"] = round(decision.p95 * 1000)
    return out | kept


def nothing_amiss(shown: Iterable[Mapping[str, Any]]) -> bool:
    """True where conditions call the spec accepted, and nothing wrong that may be mended by now; a missed SLO is no such thing."""
    stand = {one["type"]: one["status"] for one in shown}
    return stand.get(VALID) == "True" and "False" not in (stand.get(kind) for kind in _MENDED)


def shown_decisions(shown: Mapping[str, Any]) -> dict[str, Decision]:
    """The decisions that `pool_status` told of in `status.pools`, by pool; those that can't be read are left out."""
    found = {}
    for name, pool in shown.items():
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            found[name] = codec.decode(Decision, pool["lastDecision"]["record"])
    return found


def _attainment(judgement: Judgement) -> str:
    """Share within the SLO, by the middle of what is known, and its bounds."""
    evidence = judgement.evidence
    within = 1 - (evidence.misses_low + evidence.misses_high) / 2 / evidence.samples
    return f"{within:.1%} ({1 - judgement.high:.1%} to {1 - judgement.low:.1%})"


def _decisions(scaling: Scaling) -> list[tuple[str, Decision]]:
    return [(name, known.decision) for name, known in scaling.items() if known.decision]


def _slo_met(scaling: Scaling) -> Condition:
    judged = [(name, known) for name, known in scaling.items() if known.policy.ttft]
    if not judged:
        return Condition(SLO_MET, "Unknown", "NoSlo", "No pool has a TTFT target")
    verdicts: list[tuple[Verdict, str]] = []
    for name, known in judged:
        ttft, itl = (known.decision.judgement, known.decision.itl) if known.decision else (None, None)
        for what, slo, judgement in (("TTFT", known.policy.ttft, ttft), ("ITL", known.policy.itl, itl)):
            if slo:
                verdicts.append(_verdict(name, what, slo, judgement))
    worst = next(v for v in (Verdict.MISSED, Verdict.UNDETERMINED, Verdict.MET) if any(v is w for w, _ in verdicts))
    said = "; ".join(text for verdict, text in verdicts if verdict is worst)
    if worst is Verdict.MISSED:
        hopeless = any(f.kind is Kind.SLO_INFEASIBLE for _, d in _decisions(scaling) for f in d.findings)
        return Condition(SLO_MET, "False", Kind.SLO_INFEASIBLE.value if hopeless else "Missed", said)
    if worst is Verdict.MET:
        return Condition(SLO_MET, "True", "Met", said)
    return Condition(SLO_MET, "Unknown", "TooFewSamples", said)


def _verdict(pool: str, what: str, slo: Slo, judgement: Judgement | None) -> tuple[Verdict, str]:
    wanted = f"{slo.percentile:g} % of {what} must be within {slo.seconds * 1000:g} ms"
    if judgement is None or not judgement.evidence.samples:
        return Verdict.UNDETERMINED, f"pool {pool}: no requests were measured; {wanted}"
    samples = f"{judgement.evidence.samples:.0f} in {judgement.seconds:.0f} s"
    return judgement.verdict, f"pool {pool}: {_attainment(judgement)} of {samples}; {wanted}"


def _metrics(scaling: Scaling) -> Condition:
    for name, known in scaling.items():
        if known.missing:
            said = f"pool {name}: {known.missing.message}"
            if known.decision and known.decision.metrics is Metrics.PARTIAL:
                return Condition(METRICS_AVAILABLE, "True", "Partial", f"{said}; nothing is lowered meanwhile")
            return Condition(METRICS_AVAILABLE, "False", known.missing.reason.value, said)
    if any(decision.ready + decision.lent for _, decision in _decisions(scaling)):
        return Condition(METRICS_AVAILABLE, "True", "Fresh", "Metrics of every pool are fresh")
    if _decisions(scaling):
        return Condition(METRICS_AVAILABLE, "Unknown", "NoEngines", "No engine is Ready to be measured")
    return Condition(METRICS_AVAILABLE, "Unknown", "NotYetRead", "Metrics have not been read yet")


def _progressing(scaling: Scaling) -> Condition:
    hung = [
        f"Pod {one.pod} of pool {name} since {_rfc3339(one.since)}"
        for name, known in scaling.items()
        for one in known.hung
    ]
    if hung:
        said = (
            f"Requests are in these engines, and none has got a token: {', '.join(hung)}. "
            "Look at the Pod's log, and delete it; spec.heartbeat.restart does that by itself"
        )
        if kept := next((known.kept for known in scaling.values() if known.kept), ""):
            said += f", once it may: {kept}"
        return Condition(ENGINES_PROGRESSING, "False", "EngineHung", said)
    if blind := [name for name, known in scaling.items() if known.missing]:
        said = f"The metrics of pool {', '.join(blind)} are missing: see MetricsAvailable"
        return Condition(ENGINES_PROGRESSING, "Unknown", "MetricsMissing", said)
    if not _decisions(scaling):
        return Condition(ENGINES_PROGRESSING, "Unknown", "NotYetRead", "Metrics have not been read yet")
    return Condition(ENGINES_PROGRESSING, "True", "AsExpected", "No engine holds requests without getting on")


def _rfc3339(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _capacity(scaling: Scaling) -> Condition:
    for name, decision in _decisions(scaling):
        for finding in decision.findings:
            if finding.kind is Kind.NO_CAPACITY:
                return Condition(CAPACITY_AVAILABLE, "False", Kind.NO_CAPACITY.value, f"pool {name}: {finding.message}")
    for name, decision in _decisions(scaling):
        if decision.reason in (Reason.BUDGET_SPENT, Reason.AT_MAXIMUM):
            return Condition(CAPACITY_AVAILABLE, "False", decision.reason.value, f"pool {name}: {decision.message}")
    if _decisions(scaling):
        return Condition(CAPACITY_AVAILABLE, "True", "AsExpected", "No pool is short of engines")
    return Condition(CAPACITY_AVAILABLE, "Unknown", "NotYetRead", "No decision has been made yet")


def _active(scaling: Scaling) -> Condition:
    ranging = {name: known for name, known in scaling.items() if _is_ranging(known.policy)}
    if not ranging:
        return Condition(SCALING_ACTIVE, "False", "FixedSize", "No pool has replicas.max above replicas.min")
    moved = {name: known for name, known in ranging.items() if known.policy.mode in (Mode.AUTO, Mode.DRY_RUN)}
    if not moved:
        named = ", ".join(f"{name} ({known.policy.mode})" for name, known in ranging.items())
        return Condition(SCALING_ACTIVE, "False", "NotOurs", f"scaling.mode leaves the size to others: {named}")
    blind = [name for name, known in moved.items() if known.missing and not _is_partial(known)]
    if blind:
        said = f"Replicas of pool {', '.join(blind)} are held until metrics are back"
        return Condition(SCALING_ACTIVE, "False", "MetricsMissing", said)
    if not all(known.decision for known in moved.values()):
        return Condition(SCALING_ACTIVE, "Unknown", "NotYetRead", "No decision has been made yet")
    dry = [name for name, known in moved.items() if known.policy.mode is Mode.DRY_RUN]
    if len(dry) == len(moved):
        said = f"Decisions for pool {', '.join(dry)} are shown, and not carried out"
        return Condition(SCALING_ACTIVE, "False", "DryRun", said)
    return Condition(SCALING_ACTIVE, "True", "Active", f"Autoscaling pool {_listed(moved.keys() - set(dry))}")


def _is_ranging(policy: Policy) -> bool:
    return policy.maximum > policy.minimum or policy.mode is not Mode.AUTO


def _is_partial(known: PoolScaling) -> bool:
    return known.decision is not None and known.decision.metrics is Metrics.PARTIAL


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _sound(scaling: Scaling) -> Condition:
    """States that scaling alone can't mend, with what to do."""
    found = [
        (finding.kind, f"pool {name}: {finding.message}")
        for name, decision in _decisions(scaling)
        for finding in decision.findings
        if finding.kind not in _ELSEWHERE
    ]
    if contested := [name for name, known in scaling.items() if known.contested]:
        said = (
            f"Somebody else goes on changing the replicas of pool {', '.join(contested)}: remove that autoscaler, "
            "or set scaling.mode to External"
        )
        return Condition(SCALING_SOUND, "False", "Contested", said)
    for name, known in scaling.items():
        if known.hindrance:
            said = f"pool {name}: {known.flips[0].message}: refused, and tried again: {known.hindrance}"
            return Condition(SCALING_SOUND, "False", "LoanRefused", said)
    if not found:
        return Condition(SCALING_SOUND, "True", "AsExpected", "Nothing speaks against how the pools are scaled")
    return Condition(SCALING_SOUND, "False", found[0][0].value, "; ".join(text for _, text in found))
