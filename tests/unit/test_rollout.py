"""Engines are replaced by what the user changes, and by nothing else; and in which way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import Defaults, desired, pod
from gemma_operator.desired.names import ASKED, TEMPLATE
from gemma_operator.engine import commandline, environment
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.settings import Setting
from gemma_operator.engine.versions import UnknownVersion
from gemma_operator.plan import Plan, plan
from gemma_operator.rollout import NOT_OF_ITS_PODS, NOT_OF_PODS, REVISION, ROOM_SECONDS, crowded
from tests.support.specs import specs
from tests.unit.builders import DEFAULTS, body, live, serving

unhurried = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
)
Object = dict[str, Any]
NEWER = Defaults(engine_image="vllm/vllm-openai:v0.33.0", priority_classes=(("interactive", "high"),))


@contextmanager
def newer_build() -> Iterator[None]:
    """Another build of the operator: another variable, flag, wait and probe for the same spec."""
    old_settings, old_environment = commandline.settings, environment.environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod, "PRESTOP_SECONDS", 25)
        patch.setattr(pod, "STARTUP_PERIOD_SECONDS", 5)
        more = Setting("--seed", ("3",), "a default of the newer build")
        patch.setattr(commandline, "settings", lambda view: (*old_settings(view), more))
        variable = environment.Variable("NEW_DEFAULT", "1")
        patch.setattr(pod, "environment", lambda *given: (*old_environment(*given), variable))
        yield


def planned(of: GemmaServing, found: list[Object], defaults: Defaults = DEFAULTS, **crowd: int) -> Plan:
    sizes = {name: pool.replicas.min for name, pool in of.spec.pools.items()}
    return plan(of, desired(of, defaults).children, found, sizes, crowd)


def made(of: GemmaServing) -> list[Object]:
    """The children as the first build made them."""
    of_pool = {name: pool.replicas.min for name, pool in of.spec.pools.items()}
    return [
        live(of, child, of_pool.get(child["metadata"]["labels"].get("gemmaserving.dev/pool"), 1))
        for child in desired(of, DEFAULTS).children
    ]


def deployments(objects: Any) -> dict[str, Object]:
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == "Deployment"}


def template(found: Object) -> Any:
    return json.loads(json.dumps(found["spec"]["template"]))


def rolled(steps: Plan, found: list[Object]) -> set[str]:
    """Deployments whose Pod template would be another."""
    recorded = {name: json.loads(d["metadata"]["annotations"][TEMPLATE]) for name, d in deployments(found).items()}
    return {name for name, d in deployments(steps.apply).items() if template(d) != recorded.get(name)}


def accepted(spec: Any) -> GemmaServing:
    """The serving that a random spec makes, with both builds."""
    assume(isinstance(spec, dict))
    try:
        of = parse(body(spec))
        for defaults in (DEFAULTS, NEWER):
            desired(of, defaults)
        with newer_build():
            desired(of, NEWER)
    except (InvalidServing, UnknownVersion, RefusedSpec):
        assume(False)
    return of


@unhurried
@given(specs())
@example({"model": {"id": "google/gemma-4-E4B-it"}})
def test_an_upgrade_alone_changes_no_pod_template(spec: Any) -> None:
    of = accepted(spec)
    found = made(of)
    with newer_build():
        steps = planned(of, found, NEWER)
        assert rolled(steps, found) == set()
        fresh = deployments(planned(of, [], NEWER).apply)
    other = [name for name, made_new in fresh.items() if template(made_new) != template(deployments(found)[name])]
    assert len(steps.waiting) == len(other) == len(of.spec.pools)
    assert not any(waits.is_asked for waits in steps.waiting)
    assert planned(of, found).waiting == ()


@unhurried
@given(specs())
@example({"model": {"id": "google/gemma-4-E4B-it"}})
def test_the_next_change_of_the_spec_brings_the_newest_defaults(spec: Any) -> None:
    of = accepted(spec)
    found = made(of)
    changed = parse(body({**spec, "rollout": {"adopt": "2026-12"}}))
    with newer_build():
        steps = planned(changed, found, NEWER)
        assert {name: template(d) for name, d in deployments(steps.apply).items()} == {
            name: template(d) for name, d in deployments(desired(changed, NEWER).children).items()
        }
        assert steps.waiting == ()


SIZES = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.sampled_from([{"min": 2}, {"min": 1, "max": 7}]),
        "scaling": st.sampled_from(
            [{"mode": "External"}, {"mode": "Off"}, {"profile": {"costs": {"request": 9}}}, {"schedule": []}]
        ),
    },
)


@unhurried
@given(specs(), SIZES, st.sampled_from([None, 0, 99]), st.sampled_from(["Auto", "Surge", "Replace"]), st.booleans())
def test_no_template_depends_on_what_is_left_out_of_the_record(
    spec: Any, sizes: Any, budget: int | None, strategy: str, routed: bool
) -> None:
    """Sizes, scaling, budget, heartbeat, rollout, routing and other pools: none of them may be a reason to replace an engine, nor be held back."""
    assert (NOT_OF_PODS, NOT_OF_ITS_PODS) == (
        ("gpuBudget", "heartbeat", "pools", "rollout", "routing"),
        ("replicas", "scaling"),
    ), "vary it here"
    of = accepted(spec)
    pools = {name: pool or {} for name, pool in (spec.get("pools") or {"interactive": {}, "batch": {}}).items()}
    first, *others = pools
    changed: Any = {**spec, "rollout": {"strategy": strategy}, "pools": {first: {**pools[first], **sizes}}}
    changed["pools"] |= {name: {**pools[name], "maxNumSeqs": 5} for name in others}
    changed |= {"routing": {"gateway": {"parentRefs": [{"name": "gateway"}]}}} if routed else {}
    changed |= {"heartbeat": {"afterSeconds": 77, "restart": True}} if routed else {}
    try:
        after = parse(body(changed if budget is None else {**changed, "gpuBudget": budget}))
        new = deployments(desired(after, DEFAULTS).children)
    except (InvalidServing, RefusedSpec):
        assume(False)
    name, before = next(iter(deployments(made(of)).items()))
    assert template(new[name]) == template(deployments(desired(of, DEFAULTS).children)[name])
    record = deployments(planned(after, []).apply)[name]["metadata"]["annotations"]
    assert record[ASKED] == before["metadata"]["annotations"][ASKED]


def test_the_record_of_a_spec_is_the_same_for_every_build() -> None:
    """Another hash here replaces every engine of every user at the next upgrade."""
    of = serving({"interactive": {"replicas": {"max": 3}, "maxNumSeqs": 8}}, gpuBudget=4, rollout={"adopt": "a"})
    assert made(of)[0]["metadata"]["annotations"][ASKED].partition(".")[0] == "d0c0060a80ade08b"


def spec_of(**interactive: Any) -> dict[str, Any]:
    return {"interactive": interactive, "batch": {}}


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({}, set()),
        ({"pools": spec_of(replicas={"min": 2, "max": 5})}, set()),
        ({"pools": spec_of(scaling={"mode": "DryRun"})}, set()),
        ({"gpuBudget": 8}, set()),
        ({"heartbeat": {"restart": True}}, set()),
        ({"rollout": {"strategy": "Replace"}}, set()),
        ({"routing": {"gateway": {"parentRefs": [{"name": "gateway"}]}}}, set()),
        ({"pools": spec_of(maxNumSeqs=8)}, {"chat-interactive"}),
        ({"pools": spec_of(podAnnotations={"a": "b"})}, {"chat-interactive"}),
        ({"pools": {"interactive": {}, "batch": {"env": [{"name": "A", "value": "1"}]}}}, {"chat-batch"}),
        ({"pools": {**spec_of(), "night": {"class": "batch"}}}, {"chat-night"}),
        ({"rollout": {"adopt": "today"}}, {"chat-interactive", "chat-batch"}),
        ({"model": {"id": "google/gemma-4-E2B-it"}}, {"chat-interactive", "chat-batch"}),
        ({"engine": {"imagePullPolicy": "Always"}}, {"chat-interactive", "chat-batch"}),
    ],
)
def test_new_defaults_come_to_a_pool_with_its_own_change_and_to_no_other(change: Any, replaced: set[str]) -> None:
    found = made(serving(spec_of()))
    with newer_build():
        assert rolled(planned(parse(body({"pools": spec_of(), **change})), found, NEWER), found) == replaced


def test_drift_of_a_template_that_is_held_is_put_right() -> None:
    of = serving(spec_of())
    found = made(of)
    deployments(found)["chat-batch"]["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    with newer_build():
        (repaired,) = planned(of, found, NEWER).apply
    assert template(repaired)["spec"]["containers"][0]["image"] == DEFAULTS.engine_image


@pytest.mark.parametrize(
    "edit",
    [
        lambda marks: marks.pop(TEMPLATE),
        lambda marks: marks.pop(ASKED),
        lambda marks: marks.update({TEMPLATE: marks[TEMPLATE].replace("v0.32.0", "v0.1.0")}),
        lambda marks: marks.update({TEMPLATE: "{"}),
        lambda marks: marks.update({ASKED: "x"}),
    ],
)
def test_a_record_that_somebody_changed_is_not_believed_and_written_anew(edit: Any) -> None:
    of = serving({"interactive": {}})
    found = made(of)
    edit(found[0]["metadata"]["annotations"])
    (repaired,) = planned(of, found).apply
    assert template(repaired) == template(desired(of, DEFAULTS).children[0])
    assert repaired["metadata"]["annotations"].items() >= made(of)[0]["metadata"]["annotations"].items()


def paused(**interactive: Any) -> GemmaServing:
    return serving({"interactive": interactive}, rollout={"paused": True})


def seen(found: list[Object], number: str = "1") -> list[Object]:
    """The same after the Deployment's controller has looked."""
    for deployment in deployments(found).values():
        deployment["metadata"]["annotations"][REVISION] = number
    return found


def test_a_pause_holds_the_template_halts_the_deployment_and_says_what_waits() -> None:
    found = seen(made(serving({"interactive": {}})))
    steps = planned(paused(drainSeconds=99), found)
    (halted,) = steps.apply
    assert rolled(steps, found) == set()
    assert halted["spec"]["paused"] is True
    assert [str(waits) for waits in steps.waiting] == [
        "pool interactive: flags --shutdown-timeout; fields terminationGracePeriodSeconds"
    ]
    assert steps.waiting[0].is_asked


def test_the_end_of_a_pause_brings_what_waited_and_a_change_taken_back_brings_nothing() -> None:
    before = serving({"interactive": {}})
    found = seen(made(before))
    (halted,) = planned(paused(maxNumSeqs=8), found).apply
    found[0] |= {"metadata": {**found[0]["metadata"], **halted["metadata"]}, "spec": halted["spec"]}
    (after,) = planned(serving({"interactive": {"maxNumSeqs": 8}}), found).apply
    assert template(after) == template(desired(serving({"interactive": {"maxNumSeqs": 8}}), DEFAULTS).children[0])
    assert "paused" not in after["spec"]
    steps = planned(before, found)
    assert rolled(steps, found) == set()
    assert steps.waiting == ()


def test_a_new_pool_is_made_in_a_pause_and_halted_only_when_its_pods_exist() -> None:
    of = paused()
    (made_new, *_) = planned(of, []).apply
    assert "paused" not in made_new["spec"]
    assert planned(of, made(of)) == Plan()
    assert planned(of, seen(made(of))).apply[0]["spec"]["paused"] is True


SURGE = {"maxSurge": 1, "maxUnavailable": 0}


def strategy(found: Object) -> Any:
    return found["spec"]["strategy"]["rollingUpdate"]


@pytest.mark.parametrize(
    ("said", "used"),
    [("Auto", SURGE), ("Surge", SURGE), ("Replace", {"maxSurge": 0, "maxUnavailable": 1})],
)
def test_a_strategy_is_no_part_of_the_pod_and_never_both_zero(said: str, used: Any) -> None:
    of, plain = serving(spec_of(), rollout={"strategy": said}), serving(spec_of())
    for new in deployments(planned(of, []).apply).values():
        assert strategy(new) == used
    found = made(plain)
    assert rolled(planned(of, found), found) == set()


def rolling(of: GemmaServing, old: int = 1, ready: int = 1, **rolling_update: int) -> list[Object]:
    """The pool in the middle of a rollout."""
    found = made(of)
    found[0]["status"] = {"replicas": 1 + old, "updatedReplicas": 1, "readyReplicas": ready, "observedGeneration": 1}
    if rolling_update:
        found[0]["spec"]["strategy"]["rollingUpdate"] = rolling_update
    return found


@pytest.mark.parametrize(
    ("said", "old", "live_strategy", "stuck", "used"),
    [
        ("Auto", 1, {}, 0, None),
        ("Auto", 1, {}, 1, {"maxSurge": 0, "maxUnavailable": 1}),
        ("Auto", 3, {}, 2, {"maxSurge": 0, "maxUnavailable": 2}),
        ("Auto", 1, {"maxSurge": 0, "maxUnavailable": 1}, 0, {"maxSurge": 0, "maxUnavailable": 1}),
        ("Auto", 1, {"maxSurge": 0, "maxUnavailable": 1}, 5, {"maxSurge": 0, "maxUnavailable": 1}),
        ("Auto", 0, {"maxSurge": 0, "maxUnavailable": 1}, 0, SURGE),
        ("Surge", 1, {}, 1, None),
    ],
    ids=["room", "stuck", "two stuck", "goes on replacing", "no more than at first", "over", "surge asked for"],
)  # fmt: skip
def test_auto_replaces_where_a_rollout_got_stuck_and_surges_again_when_it_is_over(
    said: str, old: int, live_strategy: Any, stuck: int, used: Any
) -> None:
    of = serving({"interactive": {}}, rollout={"strategy": said})
    found = rolling(of, old, **live_strategy)
    steps = planned(of, found, interactive=stuck)
    shown = [strategy(child) for child in steps.apply] or [strategy(found[0])]
    assert shown == [used or SURGE]
    assert rolled(steps, found) == set()


def test_it_is_over_when_all_engines_are_ready() -> None:
    """The last old engine went, and the one in its place starts: the status still says why the pool is short."""
    of = serving({"interactive": {}})
    replacing = {"maxSurge": 0, "maxUnavailable": 1}
    (same,) = planned(of, rolling(of, 0, ready=0, **replacing)).apply
    assert strategy(same) == replacing


def test_a_change_in_the_middle_of_a_stuck_rollout_surges_first() -> None:
    found = rolling(serving({"interactive": {}}), 1, maxSurge=0, maxUnavailable=1)
    (changed,) = planned(serving({"interactive": {"maxNumSeqs": 8}}), found, interactive=1).apply
    assert strategy(changed) == SURGE


NOW = 1767226200.0
LONG, SHORT = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
FULL = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint"


def engine_pod(revision: str, node: str | None = None, message: str = FULL, since: str = LONG, **spec: Any) -> Object:
    container = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    none = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": since,
    }
    return {
        "metadata": {"labels": {"pod-template-hash": revision}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {}), **spec},
        "status": {"conditions": [] if node else [none]},
    }


BIG = {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}


@pytest.mark.parametrize(
    ("pods", "count"),
    [
        ([], 0),
        ([engine_pod("new")], 0),
        ([engine_pod("new"), engine_pod("old", "n1")], 1),
        ([engine_pod("new"), engine_pod("new"), engine_pod("old", "n1")], 2),
        ([engine_pod("new"), engine_pod("old"), engine_pod("old", "n1")], 2),
        ([engine_pod("old"), engine_pod("old", "n1")], 0),
        ([engine_pod("new", since=SHORT), engine_pod("old", "n1")], 0),
        ([engine_pod("new"), engine_pod("new", "n1")], 0),
        ([engine_pod("new", message="0/2 nodes are available: 2 node(s) didn't match Pod's node affinity"), engine_pod("old", "n1")], 0),
        ([engine_pod("new", **BIG), engine_pod("old", "n1")], 0),
        ([engine_pod("new", nodeSelector={"zone": "b"}), engine_pod("old", "n1", nodeSelector={"zone": "a"})], 0),
        ([engine_pod("new", tolerations=[{"key": "x"}]), engine_pod("old", "n1")], 0),
    ],
    ids=["none", "a new pool", "no room", "none for two", "the pool wants more", "the pool wants more, no rollout",
         "not for long", "scaling up", "another reason", "wants more GPUs",
         "wants another node", "tolerates other nodes"],
)  # fmt: skip
def test_a_pod_waits_for_room_that_an_older_engine_has(pods: list[Object], count: int) -> None:
    """What couldn't run in an old engine's place, such as a wrong selector, must not cost that engine."""
    assert NOW - 1767225600 == ROOM_SECONDS
    assert crowded(pods, NOW) == count
