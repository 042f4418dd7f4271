"""Engines lent from a batch pool to the interactive one: which, when, and back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.desired import desired
from gemma_operator.loans import flips
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.lending import Lender, Loans, plan
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.verdict import Evidence, Judgement, Verdict
from tests.unit.builders import DEFAULTS, serving
from tests.unit.test_scaling_budget import decision

MISSED = Judgement(Verdict.MISSED, 60, Evidence(100, 50, 50), 0.4, 0.6)


def needs(critical: int = 1, ready: int = 2, lent: int = 0, **more: Any) -> Decision:
    """What an interactive pool of 4 engines, `ready` of them up, came to."""
    metrics, judgement = more.pop("metrics", Metrics.FULL), more.pop("judgement", None)
    found: Decision = decision(4, 4, critical=critical, ready=ready, lent=lent, metrics=metrics, **more)
    return replace(found, judgement=judgement)


def lender(free: int, lent: int = 0, most: int = 9, load: float = 1.0, **more: Any) -> Lender:
    """A batch pool with `free` engines b0, b1 …, and x0, x1 … away; the later ones have less to do."""
    found = decision(free + lent, more.pop("replicas", free + lent), ready=free, **{"critical": 1, "demand": 0, **more})
    engines = tuple((load + free - at, f"b{at}") for at in range(free))
    return Lender(found, most, tuple((lent - at, f"x{at}") for at in range(lent)), engines)


@pytest.mark.parametrize(
    ("borrower", "lenders", "loans"),
    [
        pytest.param(needs(2), [lender(3)], Loans(), id="its own engines are enough"),
        pytest.param(needs(4), [lender(3)], Loans(lend=("b2", "b1")), id="the least loaded first"),
        pytest.param(needs(4), [lender(5, metrics=Metrics.PARTIAL)], Loans(), id="a lender whose load is not known"),
        pytest.param(needs(4, lent=1), [lender(3, 1)], Loans(lend=("b2",)), id="what it has is counted"),
        pytest.param(needs(4), [lender(3, critical=3)], Loans(), id="the lender's deadlines need all"),
        pytest.param(needs(4), [lender(3, minimum=2)], Loans(lend=("b2",)), id="the lender keeps its minimum"),
        pytest.param(needs(4), [lender(3, most=1)], Loans(lend=("b2",)), id="no more than it may"),
        pytest.param(needs(4, lent=1), [lender(3, 1, most=1)], Loans(), id="no more than it may at a time"),
        pytest.param(needs(4), [lender(3, replicas=2)], Loans(lend=("b2",)), id="one is about to be given up"),
        pytest.param(needs(9), [lender(2), lender(2, load=9.0)], Loans(lend=("b1", "b1")), id="several lenders"),
        pytest.param(needs(2, judgement=MISSED), [lender(3)], Loans(lend=("b2", "b1")), id="missed: all that is asked for"),
        pytest.param(needs(3, 3, 1), [lender(3, 1)], Loans(), id="between the two nothing moves"),
        pytest.param(needs(3, 4, 1), [lender(3, 1)], Loans(give_back=("x0",)), id="its own engines are there"),
        pytest.param(needs(3, 4, 2), [lender(3, 2)], Loans(give_back=("x1", "x0")), id="all go back"),
        pytest.param(needs(1, 2, 2, demand=2), [lender(3, 2)], Loans(give_back=("x1", "x0")), id="the load went away"),
        pytest.param(needs(4, metrics=Metrics.BLIND), [lender(3)], Loans(), id="blind: nothing"),
        pytest.param(needs(1, 4, 1, metrics=Metrics.BLIND), [lender(3, 1)], Loans(), id="blind: and nothing goes back"),
        pytest.param(needs(0, 0, metrics=Metrics.BLIND), [lender(3)], Loans(lend=("b2",)), id="nobody would answer"),
        pytest.param(needs(4, 2, 2), [lender(3, 2, most=1)], Loans(give_back=("x1",)), id="it may lend fewer now"),
        pytest.param(needs(4, 2, 2), [lender(3, 2, most=0)], Loans(give_back=("x1", "x0")), id="it may lend none now"),
        pytest.param(needs(4, 2, 1), [lender(0, 1, demand=1)], Loans(give_back=("x0",)), id="batch must not starve"),
        pytest.param(needs(4, 2, 1), [lender(0, 1, minimum=1)], Loans(give_back=("x0",)), id="nor fall under its minimum"),
        pytest.param(needs(4, 2, 1), [lender(1, 1, replicas=1, demand=1)], Loans(give_back=("x0",)), id="the budget takes the other"),
        pytest.param(None, [lender(3)], Loans(), id="no borrower"),
        pytest.param(None, [lender(3, 1, most=0)], Loans(give_back=("x0",)), id="no borrower any more"),
    ],
)  # fmt: skip
def test_engines_are_lent_for_what_is_there_and_come_back_when_the_own_ones_carry_it(
    borrower: Decision | None, lenders: list[Lender], loans: Loans
) -> None:
    assert plan(borrower, lenders) == loans


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 4), st.integers(0, 6), st.integers(0, 4))
def test_what_was_moved_stays_moved(critical: int, ready: int, free: int, most: int, busy: int, minimum: int) -> None:
    """Whatever the numbers are: after its flips the same situation asks for no more, and the lender keeps its floor."""
    lent = 0
    for _ in range(20):
        own = lender(free - lent, lent, most, critical=busy, demand=min(1, busy), minimum=min(minimum, free))
        loans = plan(needs(critical, ready, lent, demand=critical), [own])
        if loans == Loans():
            break
        lent += len(loans.lend) - len(loans.give_back)
        assert 0 <= lent <= most
        assert not loans.lend or free - lent >= max(busy, min(minimum, free))
    else:
        pytest.fail("engines go to and fro")


def test_a_flip_says_what_moves_and_why() -> None:
    pools = {"batch": lender(2, 1)}
    loans = Loans(lend=("b1",), give_back=("x0",))
    lent, back = flips(loans, pools, {"b1": "chat-b1", "x0": "chat-x0"}, "interactive", needs(4), 7.0)["batch"]
    assert (lent.pod, lent.uid, lent.serves, lent.is_loan, lent.at) == ("chat-b1", "b1", "interactive", True, 7.0)
    assert lent.message == (
        "engine chat-b1 of pool batch is lent to pool interactive, which has 2 Ready engines and needs more"
    )
    assert (back.pod, back.serves, back.is_loan) == ("chat-x0", "batch", False)
    assert back.message == "engine chat-x0 goes back to pool batch from pool interactive"


def services(of: Any) -> dict[str, Any]:
    found = desired(of, DEFAULTS).objects
    return {o["metadata"]["name"]: o["spec"]["selector"] for o in found if o["kind"] == "Service"}


def test_services_choose_by_class_only_where_engines_may_be_lent() -> None:
    """So an upgrade changes no Service, and no template ever changes: every Pod has had its class from its start."""
    own, chat = "gemmaserving.dev/serving", {"gemmaserving.dev/serving": "chat"}
    pool, kind = "gemmaserving.dev/pool", "gemmaserving.dev/class"
    plain, lending = (
        serving({"interactive": {}, "batch": {}}),
        serving({"interactive": {}, "batch": {"scaling": {"lend": 1}}}),
    )
    assert services(plain) == {
        "chat": {**chat, pool: "interactive"}, "chat-interactive": {**chat, pool: "interactive"}, "chat-batch": {**chat, pool: "batch"},
    }  # fmt: skip
    assert services(lending) == {
        "chat": {own: "chat", kind: "interactive"}, "chat-interactive": {own: "chat", kind: "interactive"},
        "chat-batch": {**chat, pool: "batch", kind: "batch"},
    }  # fmt: skip
    deployments = [[c for c in desired(of, DEFAULTS).children if c["kind"] == "Deployment"] for of in (plain, lending)]
    assert deployments[0] == deployments[1]
    for deployment in deployments[1]:
        assert kind in deployment["spec"]["template"]["metadata"]["labels"]
        assert kind not in deployment["spec"]["selector"]["matchLabels"]


def test_an_inference_pool_follows_as_well() -> None:
    picker = {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}
    of = serving(
        {"interactive": {}, "batch": {"scaling": {"lend": 1}}},
        routing={"gateway": {"parentRefs": [{"name": "gw"}]}, "inferencePools": {"interactive": picker}},
    )
    found = next(o for o in desired(of, DEFAULTS).objects if o["kind"] == "InferencePool")
    assert found["spec"]["selector"] == {
        "matchLabels": {"gemmaserving.dev/serving": "chat", "gemmaserving.dev/class": "interactive"}
    }


UNFIT = {
    "a shorter context": ({}, {"maxModelLen": 4096}, "maxModelLen is 4096 and 32768 is needed"),
    "no video": ({}, {"modalities": {"video": {"count": 0}}}, "modalities.video.count is 0 and 1 is needed"),
    "fewer images": ({"modalities": {"image": {"count": 9}}}, {}, "modalities.image.count is 4 and 9 is needed"),
    "other pictures": ({}, {"modalities": {"image": {"softTokens": 70}}}, "modalities.image.softTokens differs"),
    "other videos": ({}, {"modalities": {"video": {"frames": 8}}}, "modalities.video differs"),
    "no adapter": ({"loras": [{"name": "legal", "path": "a/b"}]}, {}, "loras lacks legal"),
    "another parser": (
        {"extraArgs": ["--reasoning-parser", "own"]}, {}, "extraArgs differs in --reasoning-parser",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_engines_that_could_not_answer_are_not_lent_and_that_is_said(what: str) -> None:
    interactive, batch, why = UNFIT[what]
    found = desired(serving({"interactive": interactive, "batch": {**batch, "scaling": {"lend": 1}}}), DEFAULTS)
    assert found.lenders == frozenset()
    said = next(finding for finding in found.warnings if finding.id == "LendingUnfit")
    assert said.message.startswith(
        "pools.batch.scaling.lend has no effect: its engines can't answer all requests of pool"
    )
    assert why in said.message


def test_a_batch_pool_with_more_than_is_needed_may_lend() -> None:
    batch = {"maxModelLen": 65536, "modalities": {"image": {"count": 9}}, "scaling": {"lend": 1}}
    found = desired(serving({"interactive": {"modalities": {"video": {"count": 0}}}, "batch": batch}), DEFAULTS)
    assert found.lenders == {"batch"}


def test_an_engine_whose_load_is_not_known_goes_last() -> None:
    known = lender(3)
    own = replace(known, engines=((math.inf, "b0"), *known.engines[1:]))
    assert plan(needs(3), [own]) == Loans(lend=("b2",))
