"""Which flags a version takes, and which flag an argument means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.engine.flag_table import ALIASES, FLAGS, VERSIONS
from gemma_operator.engine.flags import UnknownFlag, canonical, choices, flag_name, known_flags, split
from gemma_operator.engine.versions import NEWEST, OLDEST, Version, spell

V19, V23, V28, V32, V33 = (0, 19, 0), (0, 23, 0), (0, 28, 0), (0, 32, 0), (0, 33, 0)


def test_the_table_spans_the_versions_that_we_serve() -> None:
    assert VERSIONS[0] == OLDEST
    assert VERSIONS[-1] == NEWEST
    assert list(VERSIONS) == sorted(set(VERSIONS))
    assert {minor for _, minor, _ in VERSIONS} == set(range(19, 34))


def test_a_version_newer_than_the_table_has_the_flags_of_the_newest() -> None:
    assert known_flags((0, 40, 0)) == known_flags(NEWEST)
    assert choices("--load-format", (1, 0, 0)) == choices("--load-format", NEWEST)
    assert canonical("--disable-lora", (0, 40, 0)) == "--enable-lora"


def test_a_flag_that_went_has_not_come_back() -> None:
    names = [flag for flag, *_ in FLAGS]
    assert len(names) == len(set(names))


def test_few_flags_ever_went() -> None:
    assert {flag: spell(until) for flag, _, _, until in FLAGS if until != NEWEST} == {
        "--max-num-partial-prefills": "0.26.0",
        "--max-long-partial-prefills": "0.26.0",
        "--calculate-kv-scales": "0.27.1",
        "--override-attention-dtype": "0.27.1",
        "--enable-bf16x3-router-gemm": "0.29.0",
        "--enable-mamba-fine-grained-prefix-cache": "0.30.0",
    }


# research/vllm.md section 4.2, which had not seen 0.20.0, 0.25.0 and 0.27.0.
GATES = {
    "--numa-bind": (0, 20, 0),
    "--mm-encoder-attn-dtype": (0, 21, 0),
    "--fingerprint-mode": (0, 21, 0),
    "--spec-method": (0, 22, 0),
    "--spec-model": (0, 22, 0),
    "--spec-tokens": (0, 22, 0),
    "--quantization-config": (0, 22, 0),
    "--watermark": (0, 24, 0),
    "--prefill-schedule-interval": (0, 24, 0),
    "--device-ids": (0, 24, 0),
    "--model-class-overrides": (0, 25, 0),
    "--enable-per-request-metrics": (0, 25, 0),
    "--prefix-match-unit": (0, 26, 0),
    "--mm-hasher-algorithm": (0, 27, 0),
    "--enable-fault-tolerance": (0, 27, 0),
    "--ec-manager-config": (0, 28, 0),
    "--mm-processor-device": (0, 28, 0),
    "--max-num-queued-reqs": (0, 29, 0),
    "--max-num-queued-tokens": (0, 29, 0),
    "--sse-keep-alive-interval": (0, 29, 0),
    "--prefix-cache-retention-interval": (0, 29, 0),
    "--enable-scale-out": (0, 30, 0),
    "--max-num-active-seqs": (0, 31, 0),
    "--trust-request-mm-kwargs": (0, 31, 0),
    "--logging-config": (0, 31, 0),
    "--custom-histogram-buckets": (0, 32, 0),
    "--grpc-port": (0, 32, 0),
    "--watchdog-config": (0, 33, 0),
    "--sleep-mode-backend": (0, 33, 0),
    "--reasoning-effort-map": (0, 33, 0),
    "--shutdown-timeout": (0, 19, 0),
    "--language-model-only": (0, 19, 0),
    "--api-server-count": (0, 19, 0),
}


@pytest.mark.parametrize("flag", GATES)
def test_a_flag_begins_where_the_research_says(flag: str) -> None:
    assert [spell(since) for name, _, since, _ in FLAGS if name == flag] == [spell(GATES[flag])]


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--max-num-seqs", "--max-num-seqs"),
        ("--max_num_seqs=4", "--max-num-seqs"),
        ("--max-num-se", "--max-num-seqs"),
        ("--served", "--served-model-name"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("--no_enable-prefix_caching", "--enable-prefix-caching"),
        ("--no-enable-pref", "--enable-prefix-caching"),
        ("--compilation-config.pass_config.fuse=true", "--compilation-config"),
        ("--compilation_config.mode", "--compilation-config"),
        ('--hf-overrides={"a.b":"--x y"}', "--hf-overrides"),
        ("-cc.mode=3", "--compilation-config"),
        ("-tp", "--tensor-parallel-size"),
        ("-tp=2", "--tensor-parallel-size"),
        ("-t", "--tensor-parallel-size"),
        ("-n2", "--nnodes"),
        ("-qfp8", "--quantization"),
        ("-O3", "--optimization-level"),
        ("-O=3", "--optimization-level"),
        ("--device-memory-utilization", "--gpu-memory-utilization"),
        ("--help=all", "--help"),
    ],
)
def test_an_argument_means_a_flag(argument: str, flag: str) -> None:
    assert canonical(argument, V32) == flag


@pytest.mark.parametrize(
    ("argument", "version", "says"),
    [
        ("--max-num", V32, "--max-num may mean --max-num-active-seqs, --max-num-batched-tokens"),
        ("--api=sk-1", V32, "--api may mean --api-key, --api-server-count: write"),
        ("--swap-spaces=1 2", V32, "vLLM 0.32.0 has no flag --swap-spaces: "),
        ("--max-model-length", V32, "vLLM 0.32.0 has no flag --max-model-length: did you mean --max-model-len?"),
        ("--max-num-seqs 4", V32, "give the flag and its value as two"),
        ("--calculate-kv-scales", V32, "vLLM 0.32.0 has no flag --calculate-kv-scales, only 0.19.0 to 0.27.1 have it"),
        ("--swap-space", V19, "vLLM 0.19.0 has no flag --swap-space"),
        ("--custom-histogram-buckets={}", V28, "only 0.32.0 to 0.33.0 have it"),
        ("--disable-lora", V32, "vLLM 0.32.0 has no flag --disable-lora"),
        ("--device-memory-utilization", V28, "vLLM 0.28.0 has no flag --device-memory-utilization"),
        ("--", V32, "vLLM 0.32.0 has no flag --"),
        ("-tp2", V32, "vLLM 0.32.0 has no flag -tp2"),
    ],
)
def test_an_argument_that_the_engine_refuses(argument: str, version: Version, says: str) -> None:
    with pytest.raises(UnknownFlag, match=re.escape(says)):
        canonical(argument, version)


def test_since_033_disable_and_enable_are_two_spellings_of_one_flag() -> None:
    assert canonical("--disable-prefix-caching", V33) == "--enable-prefix-caching"
    assert canonical("--enable-uvicorn-access-log", V33) == "--disable-uvicorn-access-log"


@given(st.sampled_from(FLAGS), st.sampled_from(VERSIONS))
def test_a_flag_means_itself_in_the_versions_that_have_it(
    row: tuple[str, str, Version, Version], version: Version
) -> None:
    name, kind, since, until = row
    if not since <= version <= until:
        assert name not in known_flags(version)
        return
    assert known_flags(version)[name].kind == kind
    for argument in (name, name + "=1", name.replace("-", "_").replace("_", "-", 2), name + ".a=1"):
        assert canonical(argument, version) == name == flag_name(name)
    if kind == "switch":
        assert canonical("--no-" + name[2:], version) == name


def test_an_alias_names_a_flag_of_the_same_versions() -> None:
    for spelling, flag, since, until in ALIASES:
        for version in (since, until):
            assert canonical(spelling, version) == flag
            assert flag in known_flags(version)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("--max-num-seqs", None), ("--max-num-seqs=4", "4"), ("--max-num-se=4", "4"), ("--api-key=", ""),
        ("--hf-overrides=a=b", "a=b"), ("--compilation-config.mode=3", "3"), ("-tp", None), ("-tp=2", "2"), ("-n2", "2"),
        ("-O", None), ("-O3", "3"), ("-O=3", "3"),
    ],
)  # fmt: skip
def test_the_value_in_the_same_argument(argument: str, value: str | None) -> None:
    assert split(argument, V32)[1] == value


def test_the_values_of_a_flag_with_a_list() -> None:
    assert " ".join(sorted(choices("--kv-cache-dtype", V19))) == (
        "auto bfloat16 float16 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc"
    )
    assert choices("--kv-cache-dtype", V32) > choices("--kv-cache-dtype", V19) | {"nvfp4", "int4_per_token_head"}
    assert "octave_k3v3" in choices("--kv-cache-dtype", V33) - choices("--kv-cache-dtype", V32)
    assert "gguf" in choices("--load-format", V23) - choices("--load-format", V28)
    assert {"runai_streamer", "instanttensor", "fastsafetensors"} < choices("--load-format", V19)
    assert choices("--max-lora-rank", V32) == {"1", "8", "16", "32", "64", "128", "256", "320", "512"}
    assert choices("--model", V32) == frozenset()
