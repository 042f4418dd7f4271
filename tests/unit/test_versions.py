"""Which vLLM is in an image, and which flags it takes."""

from __future__ import annotations

import pytest

from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.versions import NEWEST, UnknownVersion, engine_version

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "explicit", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", None, (0, 32, 0)),
        ("vllm/vllm-openai:0.32", None, (0, 32, 0)),
        ("vllm/vllm-openai:v0.32.1-cu130", None, (0, 32, 1)),
        ("vllm/vllm-openai:v0.33.0rc2", None, (0, 33, 0)),
        ("registry.example:5000/vllm:v0.19.0", None, (0, 19, 0)),
        (f"registry.example:5000/ai/vllm:v0.32.0@{DIGEST}", None, (0, 32, 0)),
        ("vllm/vllm-openai:nightly", "0.33.0", (0, 33, 0)),
        ("vllm/vllm-openai:v0.32.0", "v0.30", (0, 30, 0)),
        (f"vllm@{DIGEST}", "0.31.2", (0, 31, 2)),
    ],
)
def test_the_version_is_that_of_the_tag_or_the_explicit_one(
    image: str, explicit: str | None, version: tuple[int, int, int]
) -> None:
    assert engine_version(image, explicit) == version


@pytest.mark.parametrize(
    "image",
    [
        "vllm:nightly",
        "vllm:latest",
        "vllm",
        f"vllm@{DIGEST}",
        "registry.example:5000/vllm",
        "localhost:5000/vllm:v32",
        "v:",
    ],
)
def test_a_tag_without_a_version_says_what_to_set(image: str) -> None:
    with pytest.raises(UnknownVersion, match=r"has no version in its tag: set engine\.version") as refused:
        engine_version(image, None)
    assert image in str(refused.value)


def test_an_old_engine_is_refused_with_the_oldest_that_will_do() -> None:
    with pytest.raises(UnknownVersion, match=r"vLLM 0\.18\.9 is too old: 0\.19\.0 is the oldest"):
        engine_version("vllm:v0.18.9", None)


def test_a_newer_engine_than_we_know_gets_the_flags_of_the_newest() -> None:
    assert known_flags((1, 2, 3)) == known_flags(NEWEST)


def test_flags_come_and_go_with_the_version() -> None:
    assert "--custom-histogram-buckets" not in known_flags((0, 31, 9))
    assert "--custom-histogram-buckets" in known_flags((0, 32, 0))
    assert "--calculate-kv-scales" in known_flags((0, 27, 1))
    assert "--calculate-kv-scales" not in known_flags((0, 28, 0))


@pytest.mark.parametrize(
    "argument", ["--enable-x", "--no-enable-x", "--enable_x", "--enable-x=1", "--no_enable_x", "--enable_x=a_b=c"]
)
def test_every_spelling_of_a_flag_is_one_flag(argument: str) -> None:
    assert flag_name(argument) == "--enable-x"
