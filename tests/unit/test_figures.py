"""What the operator's metrics show of a pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator import telemetry
from gemma_operator.figures import figures, work_by_modality
from gemma_operator.scaling.decision import Kind, Reason
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Policy
from gemma_operator.scaling.profile import DEFAULT_PROFILE, Rates
from gemma_operator.scaling.rule import decide
from tests.support.scaling import POLICY, START, fleet

RATES = Rates(requests=10, prompt_tokens=5000, generated_tokens=100, media_items=1, media_units=6)
SEEN = Observation(Metrics.FULL, 1.0, seconds=15, rates=RATES, waiting=3, running=4)
BATCH = Policy(0, 4, ttft=None, deadline_seconds=600)


def decided(policy: Policy = POLICY, seen: Observation = SEEN, of: Fleet | None = None):  # type: ignore[no-untyped-def]
    of = of or fleet(2)
    decision, memory = decide(policy, of, seen, Memory(), START)
    return figures(policy, of, 2, seen, seen.rates, memory, decision, missing=False)


def test_a_pool_in_numbers() -> None:
    found = decided(of=fleet(2, 3, unschedulable=1))
    wanted = {
        "slo_ttft_target_seconds": 0.3, "slo_ttft_percentile": 95, "desired_replicas": 3, "ready_replicas": 2,
        "pending_replicas": 1, "unschedulable_replicas": 1, "lent_replicas": 0, "min_replicas": 1, "max_replicas": 10,
        "gpus": 6, "metrics_missing": 0, "cold_start_seconds": 300,
    }  # fmt: skip
    assert {name: found.plain[name] for name in wanted} == wanted
    assert found.labelled["metrics_state"] == {"Full": 1, "Partial": 0, "Blind": 0, "BlindLong": 0}
    assert sum(found.labelled["decision_reason"].values()) == 1
    assert set(found.labelled["decision_reason"]) == set(Reason)
    assert found.labelled["finding"] == {kind: float(kind is Kind.NO_CAPACITY) for kind in Kind}
    assert found.labelled["scaling_term"]["capacity"] > 0
    assert set(found.plain) <= set(telemetry.POOL_GAUGES)
    assert set(found.labelled) == set(telemetry.LABELLED_GAUGES)


def test_what_is_not_known_is_left_out() -> None:
    nothing = figures(POLICY, Fleet(desired=1), 1, None, None, Memory(), None, missing=True)
    assert {name for name in nothing.plain if "replicas" in name} == {
        "pending_replicas", "unschedulable_replicas", "min_replicas", "max_replicas",
    }  # fmt: skip
    assert "cold_start_seconds" not in nothing.plain, "the default is no measurement"
    assert not nothing.labelled
    blind = figures(POLICY, fleet(1), 1, Observation(Metrics.BLIND), RATES, Memory(), None, missing=True)
    assert "work" not in blind.labelled, "old rates say nothing of now"


def test_a_batch_pool_shows_what_waits_and_when_it_is_due() -> None:
    found = decided(BATCH, replace(SEEN, backlog=93.0)).plain
    assert found["backlog_requests"] == 100
    assert found["backlog_work_seconds"] == pytest.approx(100 * DEFAULT_PROFILE.work(RATES) / 10)
    assert START + 600 <= found["backlog_due_timestamp_seconds"] <= START + 625
    assert found["deadline_seconds"] == 600
    assert not {name for name in found if "slo" in name}
    empty = figures(BATCH, fleet(0), 1, Observation(Metrics.BLIND, backlog=0.0), None, Memory(Learned()), None, False)
    assert empty.plain["backlog_requests"] == 0
    assert "backlog_due_timestamp_seconds" not in empty.plain


def test_an_unknown_backlog_is_no_zero() -> None:
    blind = figures(BATCH, fleet(1), 1, Observation(Metrics.BLIND), None, Memory(), None, True)
    assert "backlog_requests" not in blind.plain


amounts = st.none() | st.floats(0, 1e5)


@given(st.builds(Rates, st.floats(0, 1e3), amounts, amounts, amounts, amounts))
def test_the_modalities_are_the_whole_work(rates: Rates) -> None:
    parts = work_by_modality(DEFAULT_PROFILE, rates)
    assert all(value >= 0 for value in parts.values())
    if rates.prompt_tokens is None or rates.prompt_tokens >= (rates.media_units or 0) * 70:
        assert sum(parts.values()) == pytest.approx(DEFAULT_PROFILE.work(rates), abs=1e-9)


def test_text_alone_is_all_text() -> None:
    parts = work_by_modality(DEFAULT_PROFILE, Rates(10, 5000, 100, 0.0, 0.0))
    assert parts["media"] == pytest.approx(0)
