"""What is written for what is wanted and what exists."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.names import APPLIED
from gemma_operator.plan import Plan, Scale, in_place, plan, stamp
from tests.unit.builders import OPERATOR, SCALER, live, serving, wanted

AUTO = {"interactive": {"replicas": {"min": 2, "max": 5}}}
FIXED = {"interactive": {"replicas": {"min": 2}}}
ENV = {"interactive": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}}
NAME = "chat-interactive"
KINDS = ("Deployment", "Service", "PodDisruptionBudget")


def planned(of: GemmaServing, found: list[dict[str, Any]], **targets: int) -> Plan:
    return plan(
        of, wanted(of), found, {**{pool: of.spec.pools[pool].replicas.min for pool in of.spec.pools}, **targets}
    )


def cluster(of: GemmaServing, replicas: int = 2, owners: tuple[str, ...] = (OPERATOR, SCALER)) -> list[dict[str, Any]]:
    return [live(of, child, replicas, owners) for child in wanted(of)]


@pytest.mark.parametrize("pools", [AUTO, FIXED])
def test_a_new_pool_is_made_with_its_floor(pools: Any) -> None:
    steps = planned(serving(pools), [])
    assert [(child["kind"], child["spec"].get("replicas")) for child in steps.apply] == [
        ("Deployment", 2),
        ("Service", None),
        ("PodDisruptionBudget", None),
    ]
    assert not steps.scale
    assert not steps.delete


@pytest.mark.parametrize(("pools", "owners"), [(AUTO, (OPERATOR, SCALER)), (AUTO, (SCALER,)), (FIXED, (OPERATOR,))])
def test_a_steady_state_writes_nothing(pools: Any, owners: tuple[str, ...]) -> None:
    of = serving(pools)
    assert planned(of, cluster(of, 2, owners)) == Plan()


def test_the_scaler_owns_replicas_before_the_applier_lets_go() -> None:
    """Right after the creation only the applier owns the field: the scaler takes it at its value, then moves it."""
    of = serving(AUTO)
    steps = planned(of, cluster(of, 2, (OPERATOR,)))
    assert steps == Plan(scale=(Scale(NAME, 2),))
    changed = serving({"interactive": {**AUTO["interactive"], "maxNumSeqs": 8}})
    steps = planned(changed, cluster(of, 2, (OPERATOR,)))
    assert steps.scale == (Scale(NAME, 2),)
    assert ["replicas" in child["spec"] for child in steps.apply] == [False]


def test_a_decision_is_written_by_the_scaler_alone() -> None:
    of = serving(AUTO)
    assert planned(of, cluster(of, 2), interactive=4) == Plan(scale=(Scale(NAME, 4),))


def test_a_pool_that_gets_a_fixed_size_is_handed_back_with_its_size() -> None:
    found = cluster(serving(AUTO), 5, (SCALER,))
    steps = planned(serving(FIXED), found)
    assert not steps.scale
    assert [child["spec"].get("replicas") for child in steps.apply] == [2]


def test_a_fixed_pool_that_somebody_scaled_is_put_right() -> None:
    of = serving(FIXED)
    assert [child["spec"]["replicas"] for child in planned(of, cluster(of, 7, ("kubectl",))).apply] == [2]


def test_an_autoscaled_pool_that_somebody_scaled_is_put_right_by_the_scaler() -> None:
    of = serving(AUTO)
    assert planned(of, cluster(of, 1, ("kubectl", OPERATOR))) == Plan(scale=(Scale(NAME, 2),))


def engine(found: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = found["spec"]["template"]["spec"]["containers"][0]
    return container


def edits(*cases: tuple[str, Callable[[dict[str, Any]], Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("edit", [case[1] for case in cases], ids=[case[0] for case in cases])


@edits(
    ("an image changed", lambda d: engine(d).update(image="other")),
    ("an argument added", lambda d: engine(d)["args"].append("--x")),
    ("an argument removed", lambda d: engine(d)["args"].pop()),
    ("a variable changed", lambda d: engine(d)["env"][0].update(value="other")),
    ("a variable removed", lambda d: engine(d)["env"].pop(0)),
    ("a limit removed", lambda d: engine(d)["resources"]["limits"].clear()),
    ("a probe removed", lambda d: engine(d).pop("readinessProbe")),
    ("a container removed", lambda d: d["spec"]["template"]["spec"]["containers"].clear()),
    ("a label removed", lambda d: d["spec"]["template"]["metadata"]["labels"].popitem()),
    ("the volume changed", lambda d: d["spec"]["template"]["spec"]["volumes"][0]["emptyDir"].update(sizeLimit="1Gi")),
    ("our mark removed", lambda d: d["metadata"]["annotations"].pop(APPLIED)),
    ("a list made null", lambda d: engine(d).update(args=None)),
)
def test_drift_is_put_right(edit: Callable[[dict[str, Any]], Any]) -> None:
    of = serving(ENV)
    found = cluster(of, 1)
    edit(found[0])
    steps = planned(of, found)
    assert [child["kind"] for child in steps.apply] == ["Deployment"]
    assert not steps.delete


@edits(
    ("a sidecar", lambda d: d["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "mesh"})),
    ("a variable", lambda d: engine(d)["env"].append({"name": "INJECTED", "value": "1"})),
    ("a volume", lambda d: d["spec"]["template"]["spec"]["volumes"].insert(0, {"name": "ca", "emptyDir": {}})),
    ("an annotation", lambda d: d["metadata"]["annotations"].update({"deployment.kubernetes.io/revision": "3"})),
    ("a restart by kubectl", lambda d: d["spec"]["template"]["metadata"]["annotations"].update({"restartedAt": "now"})),
    ("another order of variables", lambda d: engine(d)["env"].reverse()),
    ("a default", lambda d: engine(d).update(terminationMessagePath="/dev/termination-log")),
    ("a status", lambda d: d.update(status={"replicas": 9})),
)
def test_what_others_add_is_left_alone(edit: Callable[[dict[str, Any]], Any]) -> None:
    of = serving(ENV)
    found = cluster(of, 1, (OPERATOR,))
    edit(found[0])
    assert planned(of, found) == Plan()


def test_a_field_that_is_no_longer_wanted_is_taken_back() -> None:
    """The live object still holds all that is wanted, so only our mark tells."""
    before, after = serving(ENV), serving({"interactive": {}})
    found = cluster(before, 1, (OPERATOR,))
    assert in_place(wanted(after)[0], found[0])
    assert [child["kind"] for child in planned(after, found).apply] == ["Deployment"]


def test_a_pool_that_is_gone_from_the_spec_is_pruned() -> None:
    found = cluster(serving(), 1, (OPERATOR,))
    steps = planned(serving({"interactive": {}}), found)
    assert steps == Plan(delete=tuple((kind, "chat-batch") for kind in KINDS))


def test_a_child_that_was_deleted_is_made_again() -> None:
    of = serving(AUTO)
    for kind in KINDS:
        (made,) = planned(of, [child for child in cluster(of) if child["kind"] != kind], interactive=4).apply
        assert made["kind"] == kind
        assert made["spec"].get("replicas") == (4 if kind == "Deployment" else None)


def owned_by(found: dict[str, Any], *owners: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(found)
    changed["metadata"]["ownerReferences"] = list(owners)
    return changed


@pytest.mark.parametrize(
    ("owners", "named"),
    [
        ([], "somebody else"),
        ([{"kind": "Application", "name": "web", "uid": "z", "controller": True}], "Application web"),
        (
            [{"kind": "GemmaServing", "name": "chat-b", "uid": "uid-of-chat-b", "controller": True}],
            "GemmaServing chat-b",
        ),
        ([{"kind": "GemmaServing", "name": "chat", "uid": "uid-of-chat", "controller": False}], "GemmaServing chat"),
    ],
)
def test_a_strangers_object_under_our_name_stops_every_write(owners: list[dict[str, Any]], named: str) -> None:
    of = serving(AUTO)
    _, service, _ = cluster(of)
    steps = planned(of, [owned_by(service, *owners), *cluster(serving({"batch": {}}))])
    assert steps == Plan(
        conflicts=(f"Service {NAME} exists and belongs to {named}: delete or rename it, or rename this GemmaServing",)
    )


def test_a_deleted_namesakes_object_is_waited_for() -> None:
    of = serving(AUTO)
    older = {"kind": "GemmaServing", "name": "chat", "uid": "uid-of-an-older-chat", "controller": True}
    steps = planned(of, [owned_by(child, older) for child in cluster(of)])
    assert steps == Plan(leftovers=tuple((kind, NAME) for kind in KINDS))


def test_a_stranger_with_our_labels_is_not_pruned() -> None:
    of = serving({"interactive": {}})
    stranger = owned_by(cluster(serving({"batch": {}}), 1)[0])
    assert planned(of, [*cluster(of, 1, (OPERATOR,)), stranger]) == Plan()


def test_the_mark_is_that_of_the_content_and_not_of_the_size() -> None:
    child = wanted(serving())[0]
    mark = stamp(child)["metadata"]["annotations"][APPLIED]
    assert stamp({**child, "spec": {**child["spec"], "replicas": 9}})["metadata"]["annotations"][APPLIED] == mark
    assert stamp({**child, "spec": {**child["spec"], "paused": True}})["metadata"]["annotations"][APPLIED] != mark


JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=10,
)
NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abcdef"), "value": JSON}),
    max_size=4,
    unique_by=lambda item: str(item["name"]),
)


@given(JSON)
def test_everything_is_in_place_in_itself(value: Any) -> None:
    assert in_place(value, copy.deepcopy(value))


@given(st.dictionaries(st.sampled_from("abc"), JSON), st.dictionaries(st.sampled_from("xyz"), JSON))
def test_more_keys_do_not_matter(value: dict[str, Any], more: dict[str, Any]) -> None:
    assert in_place(value, {**value, **more})


@given(st.dictionaries(st.sampled_from("abc"), JSON), st.data())
def test_a_missing_key_matters_unless_it_was_empty(value: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([*value, "none"]))
    less = {k: v for k, v in value.items() if k != key}
    assert in_place(value, less) == (key not in value or value[key] in ("", [], {}))


@given(NAMED, NAMED, st.randoms())
def test_named_items_may_come_in_any_order_among_others(ours: list[Any], others: list[Any], random: Any) -> None:
    names = {item["name"] for item in ours}
    mixed = [*ours, *(item for item in others if item["name"] not in names)]
    random.shuffle(mixed)
    assert in_place(ours, mixed) or not ours


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_plain_lists_are_in_place_only_when_equal(one: list[int], two: list[int]) -> None:
    assert in_place(one, two) == (one == two)
