"""The user's own arguments: byte for byte in the engine's argv, and told about where they go wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma_operator.api.parse import InvalidServing
from gemma_operator.engine.commandline import Command, engine_command
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.versions import Version
from gemma_operator.engine.view import PoolView
from tests.support.expansion import kubernetes_expands
from tests.unit.builders import argv, serving, value_after, wanted

ENVIRONMENT = {"HOME": "/cache", "X": "expanded"}
TRICKY = [
    '{"temperature": 0.5, "stop": ["a b", "c"]}',
    '{"a": {"b": "it\'s \\"quoted\\""}}',
    "{{ messages[0]['content'] }} {% if x %}",
    "$(X)",
    "$$(X) $x ${X} `id`",
    "a b  c ",
    "módel/ジェマ-🦒",
    "new\nline\ttab\\",
    "%s %d",
    "=",
    "a=b=c",
]


def command(
    extra: list[str], version: Version = (0, 32, 0), pool: str = "interactive", custom: bool = False, **fields: Any
) -> Command:
    spec = serving({pool: {"extraArgs": extra, **fields}}).spec
    return engine_command(PoolView(spec, pool, version, custom_command=custom))


def refusal(extra: list[str], **more: Any) -> str:
    with pytest.raises(RefusedSpec) as refused:
        command(extra, **more)
    return str(refused.value)


def warnings(extra: list[str], **more: Any) -> dict[str, str]:
    return {finding.id: finding.message for finding in command(extra, **more).warnings}


@given(st.text(max_size=60))
@example(TRICKY[0])
@example("-x")
@example("")
def test_an_argument_reaches_the_engine_byte_for_byte(value: str) -> None:
    """Through Kubernetes, which expands $(NAME) in args."""
    extra = [f"--tokenizer={value}"]
    if not value.startswith("-"):
        extra += ["--generation-config", value]
    seen = [
        kubernetes_expands(argument, ENVIRONMENT)
        for argument in argv(serving({"batch": {"extraArgs": extra}}), "batch")
    ]
    assert seen[len(seen) - len(extra) :] == extra


@pytest.mark.parametrize("value", TRICKY)
def test_braces_quotes_blanks_and_dollars_are_no_language_of_ours(value: str) -> None:
    extra = ["--generation-config", value, f"--tokenizer={value}"]
    seen = [
        kubernetes_expands(argument, ENVIRONMENT)
        for argument in argv(serving({"interactive": {"extraArgs": extra}}), "interactive")
    ]
    assert seen[-3:] == extra


def test_a_command_of_the_user_is_no_language_either() -> None:
    of = serving(engine={"command": ["$(HOME)/serve", "$x", "{}"]})
    container = wanted(of)[0]["spec"]["template"]["spec"]["containers"][0]
    assert [kubernetes_expands(part, ENVIRONMENT) for part in container["command"]] == ["$(HOME)/serve", "$x", "{}"]


def test_unicode_of_a_served_name_reaches_the_engine_and_no_label() -> None:
    """A4."""
    of = serving({"interactive": {}}, model={"id": "google/gemma-4-E4B-it", "servedName": "gémma 🦒"})
    assert value_after(argv(of, "interactive"), "--served-model-name") == "gémma 🦒"
    assert "🦒" not in json.dumps([child["metadata"] for child in wanted(of)], ensure_ascii=False)


@pytest.mark.parametrize(
    ("extra", "gone"),
    [
        (["--max-num-seqs", "4"], "--max-num-seqs"),
        (["--max-num-seqs=4"], "--max-num-seqs"),
        (["--max_num_seqs=4"], "--max-num-seqs"),
        (["--max-num-se", "4"], "--max-num-seqs"),
        (["--enable-prefix-caching"], "--no-enable-prefix-caching"),
        (["--no-enable-prefix-caching"], "--no-enable-prefix-caching"),
        (["--dtype", "auto"], "--dtype"),
        (["--mm-processor-cache-gb=1"], "--mm-processor-cache-gb"),
        (["--max-num-batched-tokens=8k"], "--max-num-batched-tokens"),
        (["--reasoning-parser", "own"], "--reasoning-parser"),
    ],
)
def test_the_users_value_takes_the_place_of_ours_and_a_warning_says_so(extra: list[str], gone: str) -> None:
    ours, theirs = command([]).args, command(extra).args
    assert theirs[-len(extra) :] == extra
    assert gone in ours
    assert gone not in theirs[: -len(extra)]
    name = gone.replace("--no-", "--")
    assert (
        warnings(extra)["UserArgumentWins"]
        == f"pools.interactive.extraArgs: {name} replaces what the operator would set"
    )


def test_an_argument_of_its_own_replaces_nothing_and_warns_of_nothing() -> None:
    extra = ["--enforce-eager", "--seed", "7", "--compilation-config", '{"mode": 0}']
    assert command(extra).args == [*command([]).args, *extra]
    assert warnings(extra) == {}


@pytest.mark.parametrize(
    "extra",
    [
        ["--seed=1", "--seed=2"],
        ["--max-num-seqs", "1", "--max_num_seqs=2"],
        ["--max-num-se", "1", "--max-num-seqs", "2"],
        ["--enforce-eager", "--no-enforce-eager"],
        ["--block-size", "16", "--seed", "1", "--block_size", "32"],
    ],
    ids=["the same", "underscores", "a beginning", "its opposite", "apart"],
)
def test_a_flag_that_is_there_twice_in_any_spelling_is_told(extra: list[str]) -> None:
    assert "is there 2 times; vLLM takes the last" in warnings(extra)["ArgumentTwice"]
    assert command(extra).args[-len(extra) :] == extra


@pytest.mark.parametrize(
    ("extra", "flag", "instead"),
    [
        (["--port", "9"], "--port", "remove it"),
        (["--port=9"], "--port", "remove it"),
        (["--por=1"], "--port", "remove it"),
        (["--host", "::"], "--host", "remove it"),
        (["--uds", "/s"], "--uds", "remove it"),
        (["--root-path=/x"], "--root-path", "remove it"),
        (["--ssl-keyfile=/k"], "--ssl-keyfile", "remove it"),
        (["--disable-log-stats"], "--disable-log-stats", "remove it"),
        (["--help"], "--help", "remove it"),
        (["--model", "x"], "--model", "set model.id, model.checkpoint or model.source"),
        (["--served-model-name=x"], "--served-model-name", "set model.servedName or model.aliases"),
        (["--served_model_name=x"], "--served-model-name", "set model.servedName or model.aliases"),
        (["--served_model=x"], "--served-model-name", "set model.servedName or model.aliases"),
        (["--config", "f.yaml"], "--config", "write its settings as fields and arguments"),
        (["--shutdown-timeout", "9"], "--shutdown-timeout", "set drainSeconds"),
        (["-tp", "2"], "--tensor-parallel-size", "set tensorParallel"),
        (["--tensor-parallel-size=2"], "--tensor-parallel-size", "set tensorParallel"),
        (["-pp=2"], "--pipeline-parallel-size", "set pipelineParallel"),
        (["--data-parallel-size", "2"], "--data-parallel-size", "set dataParallel"),
        (["--api-server-count", "2"], "--api-server-count", "set apiServers"),
        (["--headless"], "--headless", "remove it"),
    ],
)  # fmt: skip
def test_what_the_operator_relies_on_is_refused_with_what_to_do_instead(
    extra: list[str], flag: str, instead: str
) -> None:
    said = refusal(extra)
    assert said.startswith("pools.interactive.extraArgs[0]: ")
    assert flag in said
    assert said.endswith(f": {instead}")


@pytest.mark.parametrize(
    "extra", [["--api-key", "s3cret"], ["--api-key=s3cret"], ["--api_key=s3cret"], ["--api-k=s3cret"]]
)
def test_a_key_in_the_arguments_is_refused_and_not_repeated(extra: list[str]) -> None:
    said = refusal(extra)
    assert "set engine.apiKeySecretRef" in said
    assert "s3cret" not in said


def test_a_token_in_the_arguments_is_refused_and_not_repeated() -> None:
    said = refusal(["--hf-token", "s3cret"])
    assert "set model.tokenSecretRef" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "extra",
    [
        ["--max-num-batched-tokens", "9" * 4000],
        ["--compilation-config", "[" * 4000],
        ["--speculative-config=" + "1" * 4000],
    ],
)
def test_absurd_values_are_no_accident_of_ours(extra: list[str]) -> None:
    try:
        assert command(extra).args[-len(extra) :] == extra
    except RefusedSpec as refused:
        assert "extraArgs[0]" in str(refused)  # noqa: PT017


@pytest.mark.parametrize(
    ("value", "fits"), [("2k", False), ("2.4k", False), ("2.5k", True), ("2K", False), ("3K", True), ("1m", True)]
)
def test_counts_are_read_as_vllm_reads_them(value: str, fits: bool) -> None:
    if fits:
        assert command(["--max-num-batched-tokens", value]).args[-1] == value
    else:
        assert "2496" in refusal(["--max-num-batched-tokens", value])


@pytest.mark.parametrize("extra", [["--dtype", "half"], ["--dtype=float16"], ["--seed", "1", "--dty", "float16"]])
def test_fp16_is_refused_since_gemma_4_answers_nothing_in_it(extra: list[str]) -> None:
    assert "use bfloat16, or remove it" in refusal(extra)


@pytest.mark.parametrize("extra", [["--dtype", "bfloat16"], ["--dtype=auto"]])
def test_other_types_are_the_users(extra: list[str]) -> None:
    assert command(extra).args[-len(extra) :] == extra


@pytest.mark.parametrize(
    ("extra", "version", "said"),
    [
        pytest.param(["--swap-space=16"], (0, 32, 0), "has no flag --swap-space", id="A8 gone before"),
        pytest.param(["--disable-log-requests"], (0, 32, 0), "has no flag --disable-log-requests", id="A8 --disable-log-requests"),
        pytest.param(["--enable-metrics"], (0, 32, 0), "has no flag --enable-metrics", id="A8 never there"),
        (["--logging-config={}"], (0, 30, 0), "vLLM 0.30.0 has no flag --logging-config"),
        (["--calculate-kv-scales"], (0, 28, 0), "vLLM 0.28.0 has no flag --calculate-kv-scales"),
        (["--enforce-eagre"], (0, 32, 0), "did you mean --enforce-eager?"),
        (["--max-num"], (0, 32, 0), "may mean --max-num-"),
        (["--no-disable-log-stats"], (0, 32, 0), "vLLM 0.32.0 has no flag --no-disable-log-stats: did you mean"),
    ],
)  # fmt: skip
def test_a_flag_that_the_version_does_not_have_is_refused(extra: list[str], version: Version, said: str) -> None:
    assert said in refusal(extra, version=version)


def test_an_unknown_flag_only_warns_where_the_engine_may_know_it() -> None:
    for more in ({"custom": True}, {"version": (0, 34, 0)}):
        assert "--brand-new" in warnings(["--brand-new=1"], **more)["ArgumentUnknown"]
        assert command(["--brand-new=1"], **more).args[-1] == "--brand-new=1"


@pytest.mark.parametrize(
    ("extra", "index"),
    [(["stray"], 0), (["--seed", "1", "2"], 2), (["--seed=1", "2"], 1), (["--enforce-eager", "x"], 1), ([""], 0)],
    ids=["alone", "after its value", "after an inline value", "after a switch", "empty"],
)
def test_a_word_that_belongs_to_no_flag_is_refused_with_its_place(extra: list[str], index: int) -> None:
    said = refusal(extra)
    assert f"extraArgs[{index}]" in said
    assert "remove it" in said


def test_values_of_one_flag_may_be_many() -> None:
    extra = ["--allowed-media-domains", "a.example", "b.example", "--seed", "-1"]
    assert command(extra).args[-5:] == extra
    assert warnings(extra) == {}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--seed"], "--seed needs a value"),
        (["--seed", "--enforce-eager"], "--seed needs a value"),
        (["--enforce-eager=1"], "takes no value"),
        (["--kv-cache-dtype", "fp7"], "is 'fp7': allowed are auto"),
        (["--compilation-config", "{mode: 3}"], "it must be JSON"),
        (["--max-num-batched-tokens", "2048"], "is 2048"),
    ],
)
def test_a_value_that_the_engine_would_exit_on_is_refused(extra: list[str], said: str) -> None:
    assert said in refusal(extra)


def test_a_small_step_is_the_users_where_nothing_large_can_come() -> None:
    """A10, by the escape hatch."""
    off = {kind: {"count": 0} for kind in ("image", "video", "audio")}
    assert command(["--max-num-batched-tokens", "2048"], modalities=off).args[-1] == "2048"
    assert "2496" in refusal(["--max-num-batched-tokens=2495"])
    assert command(["--max-num-batched-tokens=2496"]).args[-1] == "--max-num-batched-tokens=2496"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--limit-mm-per-prompt.image=2"], "set modalities"),
        (["--language-model-only"], "set modalities"),
        (["--custom-histogram-buckets={}"], "slo.ttft.target"),
        (["--mm-encoder-only"], "remove it"),
        (["-dpl", "0"], "remove it"),
        (["-cc.cudagraph_mm_encoder=true"], "set encoder.cudaGraphs"),
        (["--compilation-config", '{"cudagraph_mm_encoder": true}'], "set encoder.cudaGraphs"),
    ],
)
def test_what_the_rules_of_fields_rest_on_is_no_argument(extra: list[str], said: str) -> None:
    assert said in refusal(extra)


def test_a_connector_that_mixes_images_up_is_for_text_only() -> None:
    extra = ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']
    off = {kind: {"count": 0} for kind in ("image", "video", "audio")}
    assert "another image" in refusal(extra)
    assert command(extra, modalities=off).args[-2:] == extra


def test_an_argument_that_may_be_a_misspelt_secret_is_not_repeated() -> None:
    for extra in (["--api=sk-1234"], ["--apikey=sk-1234"], ["--api-kye=sk-12 34"]):
        assert "sk-12" not in refusal(extra)


def test_keys_of_one_flag_add_up() -> None:
    assert "ArgumentTwice" not in warnings(["--compilation-config.mode=3", "--compilation-config.level=1"])
    assert "ArgumentTwice" in warnings(["--seed=1", "--seed=2"])


def test_trust_in_every_request_is_warned_of() -> None:
    assert "ends the engine" in warnings(["--trust-request-mm-kwargs"])["RequestsTrusted"]
    assert "RequestsTrusted" not in warnings(["--no-trust-request-mm-kwargs"])


def test_what_has_no_effect_on_this_model_is_told() -> None:
    assert "has no effect on Gemma 4's encoder" in warnings(["--mm-encoder-tp-mode", "data"])["ArgumentWithoutEffect"]


@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from(["--seed", "--port", "-tp", "--x.y=1", "--no-", "--", "-", "-1", "--=", "-O3"]),
        max_size=5,
    )
)
def test_whatever_is_written_is_taken_or_refused_in_words(extra: list[str]) -> None:
    try:
        made = command(extra)
    except (RefusedSpec, InvalidServing) as refused:
        assert "extraArgs" in str(refused)  # noqa: PT017
        assert "\n" not in str(refused)  # noqa: PT017
    else:
        assert made.args[len(made.args) - len(extra) :] == extra
