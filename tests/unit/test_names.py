"""Names and labels are legal and distinct for every legal GemmaServing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.api.parse import parse
from gemma_operator.desired.names import SERVING, child_name, entry_name, entry_url, label_value, pool_url
from tests.unit.builders import body, wanted

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
# What the API server takes: a DNS-1123 subdomain of at most 253 characters; a pool's name by our own pattern.
PART = r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?"
SERVINGS = st.from_regex(rf"\A{PART}(\.{PART}){{0,4}}\Z").filter(lambda name: len(name) <= 253)
POOLS = st.from_regex(r"\A[a-z]([-a-z0-9]{0,29}[a-z0-9])?\Z")


@pytest.mark.parametrize(
    ("serving", "pool", "name"),
    [
        ("chat", "interactive", "chat-interactive"),
        ("a-b", "c", "a-b-c"),
        ("a" * 33, "interactive", "a" * 33 + "-interactive"),
    ],
)
def test_the_usual_name_is_serving_and_pool(serving: str, pool: str, name: str) -> None:
    assert child_name(serving, pool) == name


@pytest.mark.parametrize(
    ("serving", "pool", "begins"),
    [
        pytest.param("gemma-4.1", "batch", "gemma-4-1-batch-", id="A2 a dot"),
        pytest.param("4gemma", "batch", "g-4gemma-batch-", id="A2 a digit first"),
        ("4", "b", "g-4-b-"),
        ("chat", "chat-eu", "chat-chat-eu-"),
        pytest.param("x" * 253, "interactive", "xxxxxxxx", id="A2 253 characters"),
        ("a" + ".-0" * 60, "a" * 31, "a-0-0"),
    ],
)
def test_an_unsafe_or_ambiguous_name_bears_a_hash(serving: str, pool: str, begins: str) -> None:
    name = child_name(serving, pool)
    assert name.startswith(begins)
    assert re.search(r"-[0-9a-f]{8}$", name)
    assert DNS_1035.fullmatch(name)
    assert len(name) <= 45


@given(SERVINGS, POOLS)
def test_every_child_has_a_legal_name(serving: str, pool: str) -> None:
    name = child_name(serving, pool)
    assert DNS_1035.fullmatch(name), name
    assert len(name) <= 45
    assert pool_url(serving, "ns", pool, 8000) == f"http://{name}.ns.svc:8000"


@given(SERVINGS, POOLS, SERVINGS, POOLS)
def test_different_pools_have_different_names(serving: str, pool: str, other: str, other_pool: str) -> None:
    same = (serving, pool) == (other, other_pool)
    assert (child_name(serving, pool) == child_name(other, other_pool)) == same


@pytest.mark.parametrize(
    ("serving", "begins"),
    [
        pytest.param("4gemma", "g-4gemma-", id="a digit first"),
        pytest.param("gemma-4.1", "gemma-4-1-", id="a dot"),
        pytest.param("x" * 64, "x" * 54 + "-", id="64 characters"),
        pytest.param("chat-batch", "chat-batch-", id="the name of another serving's pool"),
        pytest.param("vllm", "vllm-", id="a variable VLLM_PORT in other Pods"),
    ],
)
def test_an_unsafe_entry_bears_a_hash(serving: str, begins: str) -> None:
    assert re.fullmatch(re.escape(begins) + "[0-9a-f]{8}", entry_name(serving))


@given(SERVINGS, SERVINGS, st.sampled_from(["interactive", "batch"]))
def test_every_entry_has_a_legal_name_of_its_own(serving: str, other: str, pool: str) -> None:
    name = entry_name(serving)
    assert DNS_1035.fullmatch(name), name
    assert len(name) <= 63
    assert (name == entry_name(other)) == (serving == other)
    assert name != child_name(other, pool)
    assert entry_url(serving, "ns", 8000) == f"http://{name}.ns.svc:8000"
    assert entry_name("gemma4-e4b") == "gemma4-e4b"


@given(st.from_regex(r"\A[a-z]{1,3}(-[a-z]{1,3}){2,5}\Z"))
def test_one_text_cut_in_two_ways_gives_two_names(text: str) -> None:
    parts = text.split("-")
    cuts = [("-".join(parts[:n]), "-".join(parts[n:])) for n in range(1, len(parts))]
    assert len({child_name(serving, pool) for serving, pool in cuts}) == len(cuts)


@given(SERVINGS)
def test_a_serving_name_is_a_legal_label_value(name: str) -> None:
    value = label_value(name)
    assert LABEL_VALUE.fullmatch(value)
    assert len(value) <= 63


def test_long_names_that_begin_alike_have_different_labels() -> None:
    assert label_value("a" * 200 + "b") != label_value("a" * 200 + "c")


@given(SERVINGS, st.text(min_size=1, max_size=40))
def test_every_label_is_legal_and_none_is_the_model_id(name: str, model_id: str) -> None:
    of = parse(body({"model": {"id": f"org/{model_id}"}, "pools": {"interactive": {}}}, name))
    for child in wanted(of):
        template = child["spec"].get("template", {"metadata": {}})["metadata"]
        for labels in (child["metadata"]["labels"], template.get("labels", {}), child["spec"]["selector"]):
            values = labels.get("matchLabels", labels).values()
            assert all(LABEL_VALUE.fullmatch(value) and len(value) <= 63 for value in values)
        assert child["metadata"]["annotations"][SERVING] == name


@pytest.mark.parametrize(
    "model_id", ["google/gemma-4-26B-A4B-it", "Meta/" + "x" * 70, "gémma 🦒"], ids=["A1", "A1 70 characters", "A4"]
)
def test_the_id_of_a_model_is_an_argument_and_no_label(model_id: str) -> None:
    children = wanted(parse(body({"model": {"id": model_id}})))
    for child in children:
        labels = {
            **child["metadata"]["labels"],
            **child["spec"].get("template", {}).get("metadata", {}).get("labels", {}),
        }
        assert [value for value in labels.values() if model_id.rpartition("/")[2][:20] in value] == []
    assert model_id in children[0]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_children_are_owned_so_that_garbage_collection_takes_them() -> None:
    for child in wanted(parse(body())):
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == "uid-of-chat"
        assert owner["controller"] is True
