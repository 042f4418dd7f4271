"""One GPU budget over the pools."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling.budget import Claim, allocate
from gemma_operator.scaling.decision import Decision, Reason, Terms
from gemma_operator.scaling.observation import Metrics


def decision(
    desired, replicas, *, critical=0, demand=None, minimum=0, metrics=Metrics.FULL, ready=None, lent=0, away=0
):
    terms = Terms(critical=critical, for_demand=replicas if demand is None else demand)
    return Decision(
        at=0,
        replicas=replicas,
        wanted=replicas,
        reason=Reason.DEMAND if replicas > desired else Reason.STEADY,
        message="because",
        metrics=metrics,
        desired=desired,
        ready=desired if ready is None else ready,
        lent=lent,
        minimum=minimum,
        maximum=99,
        terms=terms,
        away=away,
    )


def settle(budget, claims):
    """Allocate, apply and allocate again until nothing moves; the sum is never above the budget on the way."""
    for _ in range(50):
        out = allocate(budget, claims)
        total = sum(out[name].replicas * claim.gpus for name, claim in claims.items())
        assert total <= max(budget, sum(claim.decision.desired * claim.gpus for claim in claims.values()))
        if all(out[name].replicas == claim.decision.desired for name, claim in claims.items()):
            return {name: one.replicas for name, one in out.items()}
        claims = {
            name: replace(claim, decision=replace(claim.decision, desired=out[name].replicas))
            for name, claim in claims.items()
        }
    raise AssertionError("it never settles")


def test_without_a_budget_everybody_gets_what_they_want():
    claims = {"a": Claim(decision(1, 50), 8, True)}
    assert allocate(None, claims)["a"].replicas == 50


@pytest.mark.parametrize(
    ("budget", "interactive", "batch", "got"),
    [
        (10, decision(2, 4, critical=3), decision(2, 4, critical=2), (4, 4)),
        (7, decision(2, 4, critical=3), decision(2, 4, critical=2), (4, 3)),
        (5, decision(2, 4, critical=3), decision(2, 4, critical=2), (3, 2)),
        (4, decision(2, 4, critical=3), decision(2, 4, critical=2), (3, 1)),
        (3, decision(2, 4, critical=3), decision(2, 4, critical=2), (2, 1)),
        (4, decision(2, 9, critical=9), decision(2, 9, critical=9), (3, 1)),
        (4, decision(2, 9, critical=9), decision(2, 0, critical=0), (4, 0)),
        (4, decision(1, 1, critical=1, minimum=1), decision(1, 9, critical=1, minimum=0), (1, 3)),
        (4, decision(2, 4, critical=4), decision(2, 2, minimum=2, demand=0), (2, 2)),
    ],
)
def test_interactive_demand_then_deadlines_then_the_rest(budget, interactive, batch, got):
    claims = {"interactive": Claim(interactive, 1, True), "batch": Claim(batch, 1, False)}
    settled = settle(budget, claims)
    assert (settled["interactive"], settled["batch"]) == got


def test_who_gives_up_does_so_before_another_gets_more():
    claims = {
        "interactive": Claim(decision(2, 4, critical=4), 1, True),
        "batch": Claim(decision(3, 3, critical=1), 1, False),
    }
    first = allocate(5, claims)
    assert (first["interactive"].replicas, first["batch"].replicas) == (2, 1)
    assert first["interactive"].reason is Reason.BUDGET_SPENT
    assert first["batch"].reason is Reason.OVER_BUDGET
    assert "a budget of 5 GPUs" in first["batch"].message


def test_a_pool_whose_load_is_unknown_keeps_what_it_has():
    claims = {
        "interactive": Claim(decision(2, 9, critical=9), 1, True),
        "batch": Claim(decision(3, 3, metrics=Metrics.BLIND), 1, False),
    }
    assert settle(6, claims) == {"interactive": 3, "batch": 3}


def test_pools_that_somebody_else_sizes_are_counted_and_left_alone():
    claims = {
        "a": Claim(decision(1, 9, critical=9), 1, True),
        "b": Claim(decision(3, 3), 1, False, writes=False),
    }
    assert settle(6, claims) == {"a": 3, "b": 3}


def test_lent_engines_are_counted_once_and_beside_the_batch_floor():
    """Batch has 2, one of them lent: taking the other would starve it, and what is lent works for interactive already."""
    claims = {
        "interactive": Claim(decision(2, 3, critical=3, lent=1), 1, True),
        "batch": Claim(decision(2, 2, critical=1, ready=1, away=1), 1, False),
    }
    assert settle(4, claims) == {"interactive": 2, "batch": 2}
    assert settle(5, claims) == {"interactive": 3, "batch": 2}


def test_engines_of_several_gpus_and_of_none():
    claims = {
        "big": Claim(decision(1, 3, critical=3), 4, True),
        "small": Claim(decision(1, 3, critical=3), 1, True),
        "cpu": Claim(decision(1, 3, critical=3), 0, True),
    }
    assert settle(10, claims) == {"big": 2, "small": 2, "cpu": 3}


pools = st.tuples(
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 4), st.booleans()
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40), st.lists(pools, min_size=1, max_size=5))
def test_never_above_the_budget_and_nothing_idle_that_is_wanted(budget, listed):
    claims = {
        f"p{i}": Claim(decision(desired, wanted, critical=critical, minimum=minimum), gpus, interactive)
        for i, (desired, wanted, critical, minimum, gpus, interactive) in enumerate(listed)
    }
    got = settle(budget, claims)
    left = budget - sum(got[name] * claim.gpus for name, claim in claims.items())
    assert left >= 0
    for name, claim in claims.items():
        assert got[name] <= claim.decision.replicas
        assert got[name] == claim.decision.replicas or left < claim.gpus
