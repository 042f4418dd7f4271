"""Capacity profiles from a ConfigMap: what is read, what is said where it can't be, and what counts as stale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.api.parse import stored_profile
from gemma_operator.cluster import Refused
from gemma_operator.desired import desired
from gemma_operator.profiles import Profiles
from gemma_operator.scaling.profile import DEFAULT_PROFILE, Point, Profile
from gemma_operator.settings import read_settings
from tests.unit.builders import serving
from tests.unit.fake_cluster import FakeCluster

GOOD = "points:\n- {mediaShare: 0.1, load: 2.5}\n"


def config_map(text: str = GOOD, key: str = "profile.yaml") -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"namespace": "ns", "name": "measured"}, "data": {key: text}}


class Reader:
    """A serving whose interactive pool names a ConfigMap, and a cluster that may hold it."""

    def __init__(self, *objects: dict[str, Any], pool: dict[str, Any] | None = None) -> None:
        self.cluster = FakeCluster(*objects)
        self.profiles = Profiles(self.cluster)  # type: ignore[arg-type]
        scaling = {"profileFrom": {"name": "measured"}}
        self.serving = serving({"interactive": {"scaling": scaling, **(pool or {})}, "batch": {}})

    async def read(self) -> dict[str, Profile]:
        return await self.profiles.read(self.serving, desired(self.serving, read_settings({}).defaults).engines)


async def test_the_profile_of_a_config_map_is_taken_over():
    found = await Reader(config_map()).read()
    assert set(found) == {"interactive"}
    assert found["interactive"].points == (Point(0.1, 1.0, 2.5),)
    assert found["interactive"].name == "ConfigMap measured"
    assert not found["interactive"].stale


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([], "there is none in namespace ns; `gemma-operator profile` prints it"),
        ([config_map(key="other")], "it has no key profile.yaml: it has other"),
        ([{**config_map(), "data": None}], "it has no key profile.yaml: it is empty"),
        ([config_map("")], "it must be a map with costs and points"),
        ([config_map("- 1")], "it must be a map"),
        ([config_map("a: [")], "it is no YAML"),
        ([config_map("a: &x [1]\nb: *x")], "it has YAML aliases"),
        ([config_map("points: 3")], "points: must be a list"),
        (
            [config_map("points: [{mediaShare: 0.1, load: -2}]")],
            "points.0.load: Input should be greater than 0 (value -2)",
        ),
        ([config_map("speed: 3")], "speed: unknown field"),
        ([config_map("burstiness: .nan")], "burstiness"),
        ([config_map("#" * 70_000)], "70000 characters long; at most 65536"),
    ],
)
async def test_a_profile_that_cannot_be_read_is_told_and_the_built_in_one_trusted_less(objects, said):
    found = (await Reader(*objects).read())["interactive"]
    assert found.unreadable
    assert found.stale
    assert found.points == DEFAULT_PROFILE.points
    assert said in found.doubt
    assert found.doubt.startswith("the profile in ConfigMap measured can't be used")


async def test_the_last_good_profile_stays_where_a_new_one_is_broken():
    reader = Reader(config_map())
    await reader.read()
    reader.cluster.objects.clear()
    for _ in range(2):
        found = (await reader.read())["interactive"]
        assert found.points == (Point(0.1, 1.0, 2.5),)
        assert (found.unreadable, found.stale, found.name) == (True, False, "last good")
    reader.profiles.forget(("ns", "chat"))
    assert (await reader.read())["interactive"].points == DEFAULT_PROFILE.points


async def test_a_right_that_is_missing_is_told(monkeypatch):
    reader = Reader(config_map())

    async def refused(*_: object) -> None:
        raise Refused('configmaps "measured" is forbidden')

    monkeypatch.setattr(reader.cluster, "get", refused)
    assert "is forbidden" in (await reader.read())["interactive"].doubt


@pytest.mark.parametrize(
    ("measured", "doubt"),
    [
        ({}, ""),
        ({"model": "google/gemma-4-E4B-it", "engineVersion": "0.32.9", "gpu": "h100"}, ""),
        ({"model": "gemma-4-E4B-it"}, ""),
        ({"model": "google/gemma-4-26B-A4B-it"}, "with model google/gemma-4-26B-A4B-it, now google/gemma-4-E4B-it"),
        ({"engineVersion": "0.31.0"}, "with vLLM 0.31.0, now 0.32.0"),
        ({"engineVersion": "nightly"}, ""),
        ({"gpu": "NVIDIA-A100-SXM4-80GB"}, "with GPU NVIDIA-A100-SXM4-80GB, now h100"),
        ({"gpu": "some new one"}, ""),
        ({"engineVersion": "0.31.0", "gpu": "l4"}, "with vLLM 0.31.0, now 0.32.0, GPU l4, now h100"),
    ],
)
async def test_a_profile_of_another_engine_is_stale(measured, doubt):
    selector = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
    text = f"measuredWith: {measured}\n{GOOD}"
    found = (await Reader(config_map(text), pool=selector).read())["interactive"]
    assert (found.stale, found.doubt) == (bool(doubt), doubt)
    assert found.points == (Point(0.1, 1.0, 2.5),)


async def test_a_profile_in_the_spec_is_judged_too():
    reader = Reader(pool={"scaling": {"profile": {"measuredWith": {"engineVersion": "0.19.0"}}}})
    assert (await reader.read())["interactive"].stale


@given(st.text(max_size=200))
def test_any_text_is_a_profile_or_a_clear_sentence(text):
    try:
        stored_profile(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017
