"""The status: every condition, in every case, and what moves it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gemma_operator.api.conditions import TYPES, Condition, merge
from gemma_operator.api.serving import GemmaServing
from gemma_operator.engine.findings import Finding
from gemma_operator.observe import PoolState, Problem
from gemma_operator.scaling_status import PoolScaling, Scaling, pool_status
from gemma_operator.startup import Startup
from gemma_operator.status import Refusal, refused_status, status
from tests.unit.builders import serving
from tests.unit.test_scaling_status import GONE, MET, MISSED, POLICY, UNSURE, decided, known

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
AUTO = serving(
    {
        "interactive": {"replicas": {"min": 1, "max": 5}},
        "batch": {"replicas": {"min": 0, "max": 2}, "scaling": {"backlogQuery": "q"}},
    }
)
PULL = Problem("ImagePullFailed", "Pod p can't pull image x", terminal=True)
NO_NODE = Problem("Unschedulable", "Pod p: no node has a GPU left", terminal=False)


def pool(
    desired: int = 1, ready: int | None = None, outdated: int = 0, problem: Problem | None = None, settled: bool = True
) -> PoolState:
    return PoolState(
        exists=True, desired=desired, ready=desired if ready is None else ready, updated=desired, outdated=outdated,
        settled=settled, problem=problem,
    )  # fmt: skip


def of(
    states: dict[str, PoolState],
    scaling: Scaling | None = None,
    old: Any = None,
    which: GemmaServing = AUTO,
    warnings: tuple[Finding, ...] = (),
) -> dict[str, Any]:
    return status(which, states, scaling or {}, warnings, old or {}, NOW)


def conditions(new: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: f"{c['status']} {c['reason']}" for c in new["conditions"]}


def message(new: dict[str, Any], kind: str) -> str:
    return str(next(c["message"] for c in new["conditions"] if c["type"] == kind))


UP = {"interactive": pool(), "batch": pool(0)}


@pytest.mark.parametrize(
    ("interactive", "ready", "reconciling", "stalled"),
    [
        (PoolState(), "False PoolsStarting", "True PoolsStarting", "False AsExpected"),
        (pool(1, 0), "False PoolsStarting", "True PoolsStarting", "False AsExpected"),
        (pool(1, 0, problem=NO_NODE), "False Unschedulable", "True PoolsStarting", "False AsExpected"),
        (pool(1, 0, problem=PULL), "False ImagePullFailed", "False Stalled", "True ImagePullFailed"),
        (pool(1, 1), "True PoolsReady", "False UpToDate", "False AsExpected"),
        (pool(5, 1), "True PoolsReady", "False UpToDate", "False AsExpected"),
        (pool(5, 1, problem=NO_NODE), "True PoolsReady", "False UpToDate", "False AsExpected"),
        (pool(5, 1, problem=PULL), "True PoolsReady", "False UpToDate", "False AsExpected"),
        (pool(1, 1, outdated=1), "True PoolsReady", "True RollingOut", "False AsExpected"),
        (pool(1, 1, outdated=1, problem=PULL), "True PoolsReady", "False Stalled", "True ImagePullFailed"),
    ],
    ids=["not made yet", "starting", "no node", "no image", "up", "scaling up", "scaling up without nodes",
         "a new engine of many fails", "rolling out", "rolling out an image that can't be pulled"],
)  # fmt: skip
def test_ready_reconciling_and_stalled(interactive: PoolState, ready: str, reconciling: str, stalled: str) -> None:
    found = conditions(of({**UP, "interactive": interactive}))
    assert (found["Ready"], found["Reconciling"], found["Stalled"]) == (ready, reconciling, stalled)


def test_a_pool_under_its_floor_is_named_with_what_hinders_it() -> None:
    new = of({**UP, "interactive": pool(1, 0)})
    assert message(new, "Ready") == "pool interactive has 0 of 1 engines Ready"
    new = of({**UP, "interactive": pool(1, 0, problem=NO_NODE)})
    assert message(new, "Ready") == f"pool interactive has 0 of 1 engines Ready: {NO_NODE.message}"


def test_a_rollout_says_how_far_it_is() -> None:
    new = of({**UP, "interactive": pool(2, 2, outdated=1)})
    assert message(new, "Reconciling") == (
        "pool interactive has 2 of 2 engines on the new revision, and 1 on an older one"
    )


STATES = [PoolState(), *(pool(d, r, o, p) for d, r, o, p in product((0, 1, 4), (0, 1), (0, 2), (None, NO_NODE, PULL)))]
SCALINGS: list[Scaling] = [
    {},
    *({"interactive": known(decided(judgement))} for judgement in (MET, MISSED, UNSURE, None)),
    {"interactive": PoolScaling(POLICY, missing=GONE)},
    {"interactive": known(), "batch": PoolScaling(POLICY)},
]


def check(new: dict[str, Any]) -> None:
    """What holds of every status that we write."""
    assert sorted(c["type"] for c in new["conditions"]) == sorted({*TYPES} - {"RoutingReady"}), (
        "no routing was asked for"
    )
    found = conditions(new)
    assert not (found["Reconciling"].startswith("True") and found["Stalled"].startswith("True"))
    if found["Ready"].startswith("False"):
        assert found["Reconciling"].startswith("True") or found["Stalled"].startswith("True")
    # Server-side apply makes null of a map that loses all its entries, which the API server then refuses.
    assert [
        name
        for pool in new["pools"].values()
        for name, value in (pool | pool.get("startup", {})).items()
        if value == {}
    ] == []
    for condition in new["conditions"]:
        assert condition["status"] in ("True", "False", "Unknown")
        assert re.fullmatch(r"[A-Z][A-Za-z]+", condition["reason"])
        assert condition["message"]
        assert condition["observedGeneration"] == new["observedGeneration"]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_case_sets_every_condition_once(scaling: Scaling) -> None:
    for one, other in product(STATES, STATES):
        check(of({"interactive": one, "batch": other}, scaling))
    check(of({}, scaling))


def test_the_floor_of_zero_is_ready_without_engines() -> None:
    assert conditions(of({"interactive": pool(), "batch": pool(0)}))["Ready"] == "True PoolsReady"


def test_scaling_moves_no_condition() -> None:
    before = of({**UP, "interactive": pool(1)})
    for ready, settled in ((1, False), (1, True), (3, True), (5, True)):
        after = of({**UP, "interactive": pool(5, ready, settled=settled)}, old=before)
        assert after["conditions"] == before["conditions"]


def test_a_pool_shows_its_size_address_and_measurements() -> None:
    scaling = {"interactive": known()}
    new = of({**UP, "interactive": pool(3, 1, problem=NO_NODE)}, scaling)
    assert new["pools"]["interactive"] == {
        "class": "interactive",
        "desired": 3,
        "ready": 1,
        "pending": 2,
        "url": "http://chat-interactive.ns.svc:8000",
        "message": NO_NODE.message,
        **pool_status(known()),
    }
    assert new["pools"]["batch"] == {
        "class": "batch", "desired": 0, "ready": 0, "pending": 0, "url": "http://chat-batch.ns.svc:8000"
    }  # fmt: skip


TIGHT = Finding("MemoryShort", "warn", "pools.batch: no room")
TWICE = Finding("ArgumentTwice", "warn", "pools.batch.extraArgs: --seed is there 2 times; vLLM takes the last")


def test_warnings_are_told_and_turn_nothing_else() -> None:
    new = of(UP, warnings=(TIGHT, TWICE))
    check(new)
    assert conditions(new)["SettingsSound"] == "False MemoryShort"
    assert message(new, "SettingsSound") == f"{TIGHT.message}; {TWICE.message}"
    assert {**conditions(new), "SettingsSound": ""} == {**conditions(of(UP)), "SettingsSound": ""}


def test_settings_that_nothing_speaks_against_are_sound() -> None:
    assert conditions(of(UP))["SettingsSound"] == "True NoWarnings"
    assert conditions(of(UP, old=of(UP, warnings=(TIGHT,))))["SettingsSound"] == "True NoWarnings"


def starting(phase: str, pod: str = "p1", **seconds: int) -> dict[str, PoolState]:
    return {**UP, "interactive": replace(pool(), startup=Startup(pod, phase, seconds))}


def shown(new: dict[str, Any]) -> Any:
    return new["pools"]["interactive"].get("startup")


def test_a_pool_shows_how_far_its_newest_engine_is_and_what_the_phases_took() -> None:
    assert shown(of(UP)) is None
    new = of(starting("Loading", Scheduling=1, Pulling=60, Downloading=30))
    assert shown(new) == {
        "pod": "p1",
        "phase": "Loading",
        "seconds": {"Scheduling": 1, "Pulling": 60, "Downloading": 30},
    }


def test_what_was_measured_of_a_start_stays_when_its_log_is_not_read_again() -> None:
    ready = of(starting("Ready", Scheduling=1, Pulling=60, Downloading=30, Loading=20, Compiling=40))
    later = of(starting("Ready", Scheduling=1, Pulling=60, Downloading=90), old=ready)
    assert shown(later) == shown(ready)
    another = of(starting("Ready", "p2", Scheduling=2), old=ready)
    assert shown(another) == {"pod": "p2", "phase": "Ready", "seconds": {"Scheduling": 2}}


def test_a_start_of_which_nothing_is_known_yet_is_no_empty_map() -> None:
    new = of(starting("Scheduling"), old=of(starting("Ready", Scheduling=1)))
    check(new)
    assert shown(new) == {"pod": "p1", "phase": "Scheduling"}


def test_an_engine_that_starts_again_is_measured_again() -> None:
    ready = of(starting("Ready", Downloading=30))
    assert shown(of(starting("Downloading", Scheduling=1), old=ready))["phase"] == "Downloading"


REFUSAL = Refusal("InvalidSpec", "spec.modle: unknown field")


def test_a_refused_spec_says_so_and_what_served_goes_on_serving() -> None:
    before = of(UP)
    new = refused_status(2, REFUSAL, True, before, LATER)
    check(new)
    found = conditions(new)
    assert found["Ready"] == "True LastGoodServing"
    assert found["Stalled"] == "True InvalidSpec"
    assert found["Valid"] == "False InvalidSpec"
    assert message(new, "Ready") == "spec.modle: unknown field; what served before goes on serving"
    assert new["pools"] == before["pools"]
    assert new["observedGeneration"] == 2


def test_a_refused_spec_without_engines_is_not_ready() -> None:
    new = refused_status(1, REFUSAL, False, {"observedGeneration": -1}, NOW)
    check(new)
    assert conditions(new)["Ready"] == "False InvalidSpec"
    assert message(new, "Ready") == REFUSAL.message


def test_a_mended_spec_is_valid_again() -> None:
    refused = refused_status(2, REFUSAL, True, of(UP), LATER)
    mended = of(UP, old=refused)
    assert conditions(mended) == conditions(of(UP))


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = merge([], [Condition("Ready", "False", "PoolsStarting", "0 of 1")], 1, NOW)
    second = merge(first, [Condition("Ready", "False", "Unschedulable", "no node")], 2, LATER)
    third = merge(second, [Condition("Ready", "True", "PoolsReady", "up")], 2, LATER)
    assert [c[0]["lastTransitionTime"] for c in (first, second, third)] == [NOW, NOW, LATER]
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("Unschedulable", 2)


def test_the_same_facts_make_the_same_status() -> None:
    scaling = {"interactive": known(), "batch": known(decided(None))}
    before = of(UP, scaling)
    assert status(AUTO, UP, scaling, (), before, LATER) == before
