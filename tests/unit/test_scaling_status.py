"""What scaling says in the status: each condition, in each case."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gemma_operator.api.conditions import Condition
from gemma_operator.scaling import codec
from gemma_operator.scaling.counters import Missing, MissingReason
from gemma_operator.scaling.decision import Decision, Finding, Kind, Reason, Terms
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.pool import Mode, Policy, Slo
from gemma_operator.scaling.verdict import Evidence, Judgement, Verdict
from gemma_operator.scaling_status import TYPES, PoolScaling, conditions, pool_status, unknown

TTFT = Slo(95, 0.3)
POLICY = Policy(1, 5, TTFT)
MET = Judgement(Verdict.MET, 0.005, 0.03, Evidence(600, 6, 12), 60)
MISSED = Judgement(Verdict.MISSED, 0.2, 0.4, Evidence(50, 15, 15), 300)
UNSURE = Judgement(Verdict.UNDETERMINED, 0.02, 0.2, Evidence(20, 1, 1), 900)
NOTHING = Judgement(Verdict.UNDETERMINED, 0, 1, Evidence(), 900)
GONE = Missing(MissingReason.QUERY_FAILED, "Prometheus doesn't answer")
PARTLY = Missing(MissingReason.PARTIAL_COVERAGE, "2 of 3 engines are seen")


def decided(judgement: Judgement | None = MET, **changes: Any) -> Decision:
    base = Decision(
        at=1.0, replicas=3, wanted=3, reason=Reason.STEADY, message="held at 3: all is well", metrics=Metrics.FULL,
        desired=3, ready=3, lent=0, minimum=1, maximum=5, terms=Terms(capacity=0.9), judgement=judgement, p95=0.2104,
    )  # fmt: skip
    return replace(base, **changes)


def known(decision: Decision | None = None, policy: Policy = POLICY, **changes: Any) -> PoolScaling:
    return PoolScaling(policy, decided() if decision is None else decision, **changes)


def of(*pools: PoolScaling) -> dict[str, str]:
    """Condition -> status and reason, of pools called a, b and so on."""
    return {c.type: f"{c.status} {c.reason}" for c in conditions(dict(zip("abc", pools, strict=False)))}


def message(kind: str, *pools: PoolScaling) -> str:
    return next(c.message for c in conditions(dict(zip("abc", pools, strict=False))) if c.type == kind)


def test_everything_is_well() -> None:
    assert of(known()) == {
        "SLOMet": "True Met",
        "MetricsAvailable": "True Fresh",
        "EnginesProgressing": "True AsExpected",
        "CapacityAvailable": "True AsExpected",
        "ScalingActive": "True Active",
        "ScalingSound": "True AsExpected",
    }


def test_before_the_first_tick_nothing_is_known() -> None:
    assert of(PoolScaling(POLICY)) == {
        "SLOMet": "Unknown TooFewSamples",
        "MetricsAvailable": "Unknown NotYetRead",
        "EnginesProgressing": "Unknown NotYetRead",
        "CapacityAvailable": "Unknown NotYetRead",
        "ScalingActive": "Unknown NotYetRead",
        "ScalingSound": "True AsExpected",
    }


@pytest.mark.parametrize(
    ("pools", "found"),
    [
        ([MET], "True Met"),
        ([MISSED], "False Missed"),
        ([UNSURE], "Unknown TooFewSamples"),
        ([NOTHING], "Unknown TooFewSamples"),
        ([None], "Unknown TooFewSamples"),
        ([MET, MISSED], "False Missed"),
        ([MET, UNSURE], "Unknown TooFewSamples"),
        ([UNSURE, MISSED], "False Missed"),
    ],
)
def test_the_worst_verdict_counts(pools: list[Judgement | None], found: str) -> None:
    assert of(*(known(decided(judgement)) for judgement in pools))["SLOMet"] == found


def test_a_verdict_says_how_many_requests_and_the_bounds() -> None:
    assert message("SLOMet", known()) == (
        "pool a: 98.5% (97.0% to 99.5%) of 600 in 60 s; 95 % of TTFT must be within 300 ms"
    )
    assert message("SLOMet", known(decided(NOTHING))) == (
        "pool a: no requests were measured; 95 % of TTFT must be within 300 ms"
    )


def test_the_time_between_outputs_is_judged_where_it_has_a_target() -> None:
    policy = replace(POLICY, itl=Slo(99, 0.05))
    assert of(known(decided(MET, itl=MISSED), policy))["SLOMet"] == "False Missed"
    assert "99 % of ITL must be within 50 ms" in message("SLOMet", known(decided(MET, itl=MISSED), policy))
    assert of(known(decided(MET, itl=MET), policy))["SLOMet"] == "True Met"


def test_an_slo_that_engines_can_not_hold_is_told_from_too_few_of_them() -> None:
    hopeless = decided(MISSED, findings=(Finding(Kind.SLO_INFEASIBLE, "limit media per request"),))
    assert of(known(hopeless))["SLOMet"] == "False SloInfeasible"
    assert of(known(hopeless))["ScalingSound"] == "False SloInfeasible"
    assert message("ScalingSound", known(hopeless)) == "pool a: limit media per request"


def test_a_pool_without_target_is_not_judged() -> None:
    batch = known(decided(None), Policy(0, 4))
    assert of(batch)["SLOMet"] == "Unknown NoSlo"
    assert of(known(), batch)["SLOMet"] == "True Met"


def test_missing_metrics_say_why_and_that_replicas_are_held() -> None:
    blind = known(decided(metrics=Metrics.BLIND), missing=GONE)
    assert of(blind)["MetricsAvailable"] == "False QueryFailed"
    assert of(blind)["ScalingActive"] == "False MetricsMissing"
    assert message("MetricsAvailable", blind) == "pool a: Prometheus doesn't answer"
    assert message("ScalingActive", blind) == "Replicas of pool a are held until metrics are back"


def test_without_a_ready_engine_nothing_is_measured_and_nothing_is_missing() -> None:
    starting = known(decided(NOTHING, metrics=Metrics.BLIND, ready=0))
    assert of(starting)["MetricsAvailable"] == "Unknown NoEngines"
    assert of(known(), starting)["MetricsAvailable"] == "True Fresh"
    assert of(known(decided(metrics=Metrics.BLIND, ready=0), missing=GONE))["MetricsAvailable"] == "False QueryFailed"


def test_partly_seen_is_not_blind() -> None:
    partly = known(decided(metrics=Metrics.PARTIAL), missing=PARTLY)
    assert of(partly)["MetricsAvailable"] == "True Partial"
    assert of(partly)["ScalingActive"] == "True Active"
    assert "nothing is lowered" in message("MetricsAvailable", partly)


@pytest.mark.parametrize(
    ("decision", "found"),
    [
        (decided(findings=(Finding(Kind.NO_CAPACITY, "2 Pods find no node"),)), "False NoCapacity"),
        (decided(reason=Reason.AT_MAXIMUM), "False AtMaximum"),
        (decided(reason=Reason.BUDGET_SPENT), "False BudgetSpent"),
        (decided(reason=Reason.DEMAND), "True AsExpected"),
    ],
)
def test_capacity(decision: Decision, found: str) -> None:
    assert of(known(), known(decision))["CapacityAvailable"] == found


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        ([Mode.AUTO], "True Active"),
        ([Mode.OFF], "False NotOurs"),
        ([Mode.EXTERNAL], "False NotOurs"),
        ([Mode.DRY_RUN], "False DryRun"),
        ([Mode.DRY_RUN, Mode.AUTO], "True Active"),
        ([Mode.OFF, Mode.AUTO], "True Active"),
    ],
)
def test_modes(modes: list[Mode], found: str) -> None:
    assert of(*(known(policy=replace(POLICY, mode=mode)) for mode in modes))["ScalingActive"] == found


def test_a_serving_of_fixed_size_is_not_autoscaled() -> None:
    assert of(known(policy=Policy(2, 2, TTFT)))["ScalingActive"] == "False FixedSize"


@pytest.mark.parametrize(
    "kind", [k for k in Kind if k not in (Kind.METRICS_BLIND, Kind.METRICS_PARTIAL, Kind.NO_CAPACITY)]
)
def test_every_finding_is_a_reason(kind: Kind) -> None:
    assert of(known(decided(findings=(Finding(kind, "do this"),))))["ScalingSound"] == f"False {kind}"


def test_another_writer_is_told() -> None:
    contested = known(contested=True)
    assert of(contested)["ScalingSound"] == "False Contested"
    assert "scaling.mode to External" in message("ScalingSound", contested)


def test_every_case_sets_every_condition_once() -> None:
    decisions = [None, decided(), decided(MISSED), decided(None), decided(NOTHING, metrics=Metrics.BLIND)]
    policies = [POLICY, Policy(0, 4), Policy(1, 1, TTFT), replace(POLICY, mode=Mode.EXTERNAL)]
    cases = [PoolScaling(p, d, m) for p, d, m in product(policies, decisions, (None, GONE))]
    for pools in [(), *((case,) for case in cases), *product(cases, cases)]:
        found = conditions(dict(zip("ab", pools, strict=False)))
        assert tuple(c.type for c in found) == TYPES
        assert all(re.fullmatch(r"[A-Z][A-Za-z]+", c.reason) and c.message for c in found)
    assert tuple(c.type for c in unknown("InvalidSpec", "the spec is refused")) == TYPES


def test_a_pool_shows_its_decision_and_what_was_measured() -> None:
    shown = pool_status(known(memory={"version": 1}))
    assert json.loads(json.dumps(shown)) == shown, "the API server takes JSON"
    record = shown["lastDecision"].pop("record")
    assert codec.decode(Decision, record) == decided()
    assert shown == {
        "lastDecision": {"replicas": 3, "reason": "Steady", "message": "held at 3: all is well"},
        "samples": 600,
        "p95Milliseconds": 210,
        "attainment": "98.5% (97.0% to 99.5%)",
        "memory": {"version": 1},
    }


def test_a_pool_without_requests_shows_no_measurements() -> None:
    assert pool_status(known(decided(NOTHING, p95=None))).keys() == {"lastDecision"}


def test_before_the_first_decision_only_the_memory_is_kept() -> None:
    assert pool_status(None) == pool_status(PoolScaling(POLICY)) == {}
    assert pool_status(PoolScaling(POLICY, memory={"version": 1})) == {"memory": {"version": 1}}


def test_before_the_first_decision_what_was_shown_stands() -> None:
    gone = known(missing=GONE)
    shown = [vars_of(one) for one in conditions({"a": gone})]
    assert conditions({"a": PoolScaling(POLICY)}, shown) == conditions({"a": gone})
    assert conditions({"a": known()}, shown) == conditions({"a": known()})
    before = pool_status(known())
    assert {"lastDecision", "samples", "attainment", "p95Milliseconds"} <= before.keys()
    assert pool_status(PoolScaling(POLICY), {**before, "desired": 3}) == before


def vars_of(one: Condition) -> dict[str, str]:
    return {"type": one.type, "status": one.status, "reason": one.reason, "message": one.message}
