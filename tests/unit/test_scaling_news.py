"""When the status is renewed for measured values alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemma_operator.scaling.decision import Decision, Finding, Kind, Reason, Terms
from gemma_operator.scaling.memory import Learned
from gemma_operator.scaling.news import is_lesson, is_news
from gemma_operator.scaling.observation import Metrics
from gemma_operator.scaling.verdict import Evidence, Judgement, Verdict

JUDGEMENT = Judgement(Verdict.MET, 0.0, 0.03, Evidence(400, 2, 4), 300)
SHOWN = Decision(
    at=100, replicas=3, wanted=3, reason=Reason.STEADY, message="3 replicas: demand 2.1", metrics=Metrics.FULL, desired=3, ready=3,
    lent=0, minimum=1, maximum=8, terms=Terms(requests=20, level=2.1, capacity=0.8), judgement=JUDGEMENT, p95=0.25,
)  # fmt: skip
FINDING = Finding(Kind.ROUTER_SKEW, "one engine has most of the work")


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({"at": 130}, False),
        ({"message": "3 replicas: demand 2.2"}, False),
        ({"terms": replace(SHOWN.terms, requests=24, level=2.5)}, False),
        ({"p95": 0.29}, False),
        ({"judgement": replace(JUDGEMENT, evidence=Evidence(450, 2, 4), high=0.035)}, False),
        ({"terms": replace(SHOWN.terms, requests=28)}, True),
        ({"terms": replace(SHOWN.terms, level=3.0)}, True),
        ({"p95": 0.4}, True),
        ({"p95": None}, True),
        ({"judgement": replace(JUDGEMENT, verdict=Verdict.UNDETERMINED)}, True),
        ({"judgement": replace(JUDGEMENT, high=0.06)}, True),
        ({"judgement": None}, True),
        ({"reason": Reason.COOLING_DOWN}, True),
        ({"wanted": 2}, True),
        ({"ready": 2}, True),
        ({"findings": (FINDING,)}, True),
        ({"findings": ()}, False),
    ],
    ids=str,
)
def test_a_status_is_renewed_where_it_shows_another_picture(change: dict[str, Any], news: bool) -> None:
    assert is_news(SHOWN, replace(SHOWN, **change)) is news


def test_a_trickle_is_no_news() -> None:
    """A request now and then moves every share, and nothing that matters."""
    little = replace(SHOWN, terms=Terms(requests=0.02, level=0.01, capacity=0.8), p95=0.1)
    assert not is_news(little, replace(little, terms=Terms(requests=0.2, level=0.05, capacity=0.8), p95=0.14))


LEARNED = Learned(
    correction=0.9, chance=0.02, rises=((0, 700.0), (100, 60.0)), heights=((150, 700.0), (160, 60.0)), hours=(2.0,) * 24
)


@pytest.mark.parametrize(
    ("change", "lesson"),
    [
        ({}, False),
        ({"correction": 0.91, "chance": 0.021, "hours": (2.2,) * 24}, False),
        ({"rises": ((0, 900.0), (100, 80.0)), "heights": ((150, 900.0), (160, 80.0))}, False),
        ({"correction": 0.93}, True),
        ({"cut_at": 100.0, "too_high": 0.95}, True),
        ({"hours": (2.0,) * 23 + (3.0,)}, True),
        ({"lots": ((2000.0, 30.0),)}, True),
        ({"rises": ((0, 700.0), (150, 60.0))}, True),
        ({"rises": ((0, 5000.0), (100, 430.0)), "heights": ((150, 5000.0), (160, 430.0))}, False),
        ({"rises": ((0, 5700.0), (100, 490.0)), "heights": ((150, 5700.0), (160, 490.0))}, True),
        ({"infeasible_until": 5000.0}, True),
    ],
    ids=str,
)
def test_what_was_learnt_is_written_where_it_would_decide_otherwise(change: dict[str, Any], lesson: bool) -> None:
    assert is_lesson(LEARNED, replace(LEARNED, **change)) is lesson


def test_a_first_lesson_is_one_and_nothing_learnt_is_none() -> None:
    assert is_lesson(Learned(), LEARNED)
    assert not is_lesson(Learned(), Learned())
