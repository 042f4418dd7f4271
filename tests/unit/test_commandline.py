"""The engine's arguments: what each choice of the user does to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma_operator.api.parse import parse
from gemma_operator.api.values import duration_seconds
from gemma_operator.desired import Defaults
from gemma_operator.engine.commandline import engine_command
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.flag_table import VERSIONS
from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.settings import MTP_SINCE
from gemma_operator.engine.versions import NEWEST, Version, spell
from gemma_operator.engine.view import PoolView
from tests.support.expansion import kubernetes_expands
from tests.unit.builders import argv, body, serving, value_after, wanted

GPU = "nvidia.com/gpu.product"
E4B = {"id": "google/gemma-4-E4B-it"}


def args(
    pool: str = "interactive", version: tuple[int, int, int] = (0, 32, 0), model: Any = None, **fields: Any
) -> list[str]:
    kind = {} if pool in ("interactive", "batch") else {"class": "interactive"}
    return engine_command(PoolView(serving({pool: {**kind, **fields}}, model=model or E4B).spec, pool, version)).args


@given(st.text(min_size=1, max_size=60).filter(lambda text: not text.startswith("-")))
@example("/models/gemma 4/it")
@example("$(HOME)/gemma")
@example("$$(HOME)")
@example("$")
@example("x" * 512)
@example("módel/ジェマ-4-🦒")
@example('it\'s "quoted" `id` \\ ; && $HOME %s {}')
def test_every_model_id_reaches_the_engine_as_it_was_written(model_id: str) -> None:
    of = parse(body({"model": {"id": model_id}, "pools": {"interactive": {}}}))
    seen = [kubernetes_expands(argument, {"HOME": "/cache"}) for argument in argv(of, "interactive")]
    assert value_after(seen, "--model") == model_id
    assert value_after(seen, "--served-model-name") == model_id


def test_the_classes_differ_as_the_design_says() -> None:
    interactive, batch = args("interactive"), args("batch")
    assert value_after(interactive, "--max-num-batched-tokens") == "4096"
    assert value_after(batch, "--max-num-batched-tokens") == "16384"
    assert "--no-enable-prefix-caching" in interactive
    assert "--enable-prefix-caching" in batch
    assert "--speculative-config" not in interactive
    assert "--speculative-config" in batch
    assert value_after(interactive, "--mm-processor-cache-gb") == "0"
    assert "--mm-processor-cache-gb" not in batch


def test_what_is_refused_is_kept_in_no_cache_of_media_unless_somebody_asks_for_one() -> None:
    """One half of the cache would know it, the other not, and it would fail once when it comes again (vLLM 0.32, seen)."""
    full = {"admission": {"enabled": True}, "prefixCaching": {"enabled": True}}
    for more, size in (({}, "0"), ({"encoder": {"processorCacheGb": 2}}, "2")):
        args = argv(serving({"interactive": {**full, **more}}), "interactive")
        assert value_after(args, "--mm-processor-cache-gb") == size


def test_a_flag_that_the_engine_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {name: flag for name, flag in known_flags((0, 32, 0)).items() if name != "--shutdown-timeout"}
    monkeypatch.setattr("gemma_operator.engine.commandline.known_flags", lambda version: fewer)
    arguments = args()
    assert "--shutdown-timeout" not in arguments
    assert "30" not in arguments


def speculative(**given: Any) -> dict[str, Any] | None:
    arguments = args(**given)
    if "--speculative-config" not in arguments:
        return None
    config: dict[str, Any] = json.loads(value_after(arguments, "--speculative-config"))
    return config


@pytest.mark.parametrize(
    ("model", "drafter", "tokens"),
    [
        ("google/gemma-4-E2B-it", "google/gemma-4-E2B-it-assistant", 2),
        ("google/gemma-4-E4B-it", "google/gemma-4-E4B-it-assistant", 4),
        ("google/gemma-4-31B-it", "google/gemma-4-31B-it-assistant", 4),
        ("google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it-assistant", 4),
    ],
)
def test_batch_pools_draft_with_the_drafter_of_the_catalog(model: str, drafter: str, tokens: int) -> None:
    expected = {"method": "mtp", "model": drafter, "num_speculative_tokens": tokens}
    assert speculative(pool="batch", model={"id": model}) == expected


def test_no_default_drafts_what_is_known_to_be_rejected() -> None:
    model = {"id": "RedHatAI/gemma-4-31B-it-FP8-dynamic"}
    assert speculative(pool="batch", model=model) is None
    assert speculative(pool="batch", model=model, kvCacheDtype="auto")
    assert speculative(pool="batch", model=model, mtp={"enabled": True})


def test_no_default_keeps_the_kv_cache_in_fp8_where_that_is_slower() -> None:
    model = {"id": "google/gemma-4-E4B-it", "precision": "fp8"}
    on = {gpu: {"nvidia.com/gpu.product": gpu} for gpu in ("NVIDIA-A100-SXM4-80GB", "NVIDIA-L4")}
    assert "--kv-cache-dtype" not in args(model=model, nodeSelector=on["NVIDIA-A100-SXM4-80GB"])
    assert value_after(args(model=model, nodeSelector=on["NVIDIA-L4"]), "--kv-cache-dtype") == "fp8"


def test_mtp_is_what_the_user_says() -> None:
    assert speculative(pool="batch", mtp={"enabled": False}) is None
    asked = speculative(mtp={"enabled": True, "tokens": 2, "assistant": "/models/drafter"})
    assert asked == {"method": "mtp", "model": "/models/drafter", "num_speculative_tokens": 2}


def test_mtp_by_default_stays_off_where_it_can_not_be_had() -> None:
    assert speculative(pool="batch", version=(0, 25, 9)) is None
    assert speculative(pool="batch", version=MTP_SINCE) is not None
    assert speculative(pool="batch", model={"id": "my/own-model"}) is None


def test_mtp_asked_for_that_can_not_be_had_is_refused() -> None:
    with pytest.raises(
        RefusedSpec, match=r"no drafter for model 'my/own': set mtp\.assistant, or mtp\.enabled to false"
    ):
        args(model={"id": "my/own"}, mtp={"enabled": True})
    with pytest.raises(
        RefusedSpec, match=r"needs vLLM 0\.26 or newer: raise engine\.image, or set mtp\.enabled to false"
    ):
        args(version=(0, 25, 0), mtp={"enabled": True})


@given(st.integers(10, 9999).map(lambda n: f"{n}ms") | st.integers(1, 600).map(lambda n: f"{n}s") | st.just("0.3s"))
def test_one_ttft_edge_is_exactly_the_objective(target: str) -> None:
    slo = {"ttft": {"target": target}}
    edges = json.loads(value_after(args(slo=slo), "--custom-histogram-buckets"))["time_to_first_token"]
    assert duration_seconds(target) in edges
    assert edges == sorted(set(edges))


def test_engines_without_custom_buckets_get_none() -> None:
    assert "--custom-histogram-buckets" not in args(version=(0, 31, 0))


def test_text_only_pools_drop_the_encoders_and_every_media_flag() -> None:
    none = {"image": {"count": 0}, "video": {"count": 0}, "audio": {"count": 0}}
    arguments = args(modalities=none)
    assert "--language-model-only" in arguments
    assert not {"--limit-mm-per-prompt", "--media-io-kwargs", "--mm-processor-cache-gb"} & set(arguments)


def test_media_limits_are_those_of_the_pool() -> None:
    arguments = args(modalities={"image": {"count": 2}, "video": {"count": 3, "frames": 6}, "audio": {"count": 1}})
    assert json.loads(value_after(arguments, "--limit-mm-per-prompt")) == {"image": 2, "video": 3, "audio": 1}
    assert json.loads(value_after(arguments, "--media-io-kwargs")) == {"video": {"num_frames": 6}}


def test_a_refused_argument_of_one_pool_leaves_no_half_made_set() -> None:
    with pytest.raises(RefusedSpec):
        wanted(serving({"interactive": {}, "batch": {"extraArgs": ["--port=1"]}}))


@pytest.mark.parametrize("version", VERSIONS, ids=spell)
@pytest.mark.parametrize("pool", ["interactive", "batch"])
def test_every_flag_of_ours_is_one_that_the_version_takes(version: Version, pool: str) -> None:
    for size in ("E4B", "31B"):
        made = engine_command(
            PoolView(serving({pool: {}}, model={"id": f"google/gemma-4-{size}-it"}).spec, pool, version)
        )
        assert [s.flag for s in made.settings if flag_name(s.flag) not in known_flags(version)] == []


def test_a_newer_engine_than_we_know_is_rendered_like_the_newest() -> None:
    assert args(version=(0, 99, 0)) == args(version=NEWEST)


@pytest.mark.parametrize(
    ("fields", "version", "field", "flag"),
    [
        ({"admission": {"enabled": True}}, (0, 28, 0), "pools.interactive.admission", "--max-num-queued-tokens"),
        (
            {"admission": {"enabled": True, "maxQueuedRequests": 1}},
            (0, 28, 0),
            "pools.interactive.admission",
            "--max-num-queued-reqs",
        ),
        ({"prefillInterval": 1}, (0, 23, 0), "pools.interactive.prefillInterval", "--prefill-schedule-interval"),
    ],
)
def test_a_field_that_the_version_has_no_flag_for_is_refused(
    fields: Any, version: Version, field: str, flag: str
) -> None:
    """What the user asked for is never left out in silence; a default is."""
    with pytest.raises(RefusedSpec) as refused:
        args(version=version, **fields)
    assert (
        f"{field}: vLLM {spell(version)} has no {flag}: choose a version that has it in engine.image, or remove the field"
        in str(refused.value)
    )


@pytest.mark.parametrize(
    ("fields", "flag", "value"),
    [
        ({"maxModelLen": 8192}, "--max-model-len", "8192"),
        ({"maxNumSeqs": 7}, "--max-num-seqs", "7"),
        ({"gpuMemoryUtilization": 0.85}, "--gpu-memory-utilization", "0.85"),
        ({"kvCacheDtype": "bfloat16"}, "--kv-cache-dtype", "bfloat16"),
        ({"kvOffload": {"sizeGib": 64}}, "--kv-offloading-size", "64.0"),
        ({"drainSeconds": 0}, "--shutdown-timeout", "0"),
        ({"prefixCaching": {"enabled": True, "hash": "xxhash"}}, "--prefix-caching-hash-algo", "xxhash"),
        ({"tensorParallel": 4}, "--tensor-parallel-size", "4"),
        ({"pipelineParallel": 2}, "--pipeline-parallel-size", "2"),
        ({"dataParallel": 3}, "--data-parallel-size", "3"),
        ({"apiServers": 2}, "--api-server-count", "2"),
        ({"loras": [{"name": "a", "path": "/a"}], "loraRank": 32}, "--max-lora-rank", "32"),
        ({"modalities": {"image": {"softTokens": 560}}}, "--mm-processor-kwargs", '{"max_soft_tokens":560}'),
        ({"modalities": {"video": {"frames": 8, "fps": 2}}}, "--media-io-kwargs", '{"video":{"fps":2.0,"num_frames":8}}'),
        ({"encoder": {"processorCacheGb": 0.5}}, "--mm-processor-cache-gb", "0.5"),
    ],
)  # fmt: skip
def test_a_field_becomes_its_flag(fields: Any, flag: str, value: str) -> None:
    assert value_after(args(**fields), flag) == value


@pytest.mark.parametrize(
    ("model", "flag", "value"),
    [
        ({"precision": "fp8"}, "--model", "RedHatAI/gemma-4-E4B-it-FP8-dynamic"),
        ({"precision": "fp8"}, "--kv-cache-dtype", "fp8"),
        ({"checkpoint": "x/y"}, "--model", "x/y"),
        ({"revision": "abc"}, "--revision", "abc"),
        ({"loadFormat": "instanttensor"}, "--load-format", "instanttensor"),
        ({"loaderConfig": {"b": [1], "a": "ü $(X)"}}, "--model-loader-extra-config", '{"a":"ü $(X)","b":[1]}'),
        ({"source": {"pvc": {"claimName": "c"}}}, "--model", "/models"),
        ({"source": {"pvc": {"claimName": "c", "path": "gemma 4"}}}, "--model", "/models/gemma 4"),
        ({"source": {"image": {"reference": "r", "path": "m"}}}, "--model", "/models/m"),
        ({"source": {"objectStore": {"uri": "s3://b/m"}}}, "--model", "s3://b/m"),
        ({"source": {"objectStore": {"uri": "s3://b/m"}}}, "--load-format", "runai_streamer"),
        ({"source": {"hub": {"endpoint": "https://hub.example"}}}, "--model", "google/gemma-4-E4B-it"),
        ({"chatTemplate": {"name": "t", "key": "k.jinja"}}, "--chat-template", "/etc/gemma/chat-template/k.jinja"),
    ],
)
def test_a_field_of_the_model_becomes_its_flag(model: Any, flag: str, value: str) -> None:
    assert value_after(args(model=E4B | model), flag) == value


def test_names_that_clients_may_use_come_after_the_one_that_labels_the_metrics() -> None:
    arguments = args(model={**E4B, "servedName": "chat", "aliases": ["gemma", "g4"]})
    place = arguments.index("--served-model-name")
    assert arguments[place + 1 : place + 5] == ["chat", "gemma", "g4", "--dtype"]


def test_parsers_are_on_for_gemma_and_off_for_what_we_do_not_know() -> None:
    assert value_after(args(), "--reasoning-parser") == "gemma4"
    assert value_after(args(), "--tool-call-parser") == "gemma4"
    assert not {"--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"} & set(
        args(model={"id": "my/own"})
    )
    off = args(model={**E4B, "reasoning": {"enabled": False}, "toolCalling": {"enabled": False}})
    assert not {"--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"} & set(off)
    assert "--reasoning-parser" in args(model={"id": "my/own", "reasoning": {"enabled": True}})


def test_only_vllm_serve_starts_several_api_servers() -> None:
    def program(**fields: Any) -> tuple[str, ...]:
        return engine_command(PoolView(serving({"interactive": fields}).spec, "interactive", (0, 32, 0))).server

    assert program(apiServers=2) == ("vllm", "serve")
    assert program(apiServers=1) == program() == ("python3", "-m", "vllm.entrypoints.openai.api_server")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 4096),
        ({"nodeSelector": {GPU: "NVIDIA-L4"}}, 2496),
        ({"nodeSelector": {GPU: "NVIDIA-L4"}, "modalities": {"video": {"count": 0}}}, 512),
        (
            {"nodeSelector": {GPU: "NVIDIA-L4"}, "modalities": {"video": {"count": 0}, "image": {"softTokens": 1120}}},
            1152,
        ),
        ({"nodeSelector": {GPU: "NVIDIA-L4"}, "modalities": {"video": {"count": 0}}, "maxNumSeqs": 1000}, 1024),
        ({"nodeSelector": {GPU: "NVIDIA-H200"}}, 4096),
        ({"nodeSelector": {GPU: "NVIDIA-H200"}, "slo": {"ttft": {"target": "2s"}}}, 8192),
        ({"nodeSelector": {GPU: "NVIDIA-L4"}, "maxNumBatchedTokens": 3000}, 3000),
    ],
    ids=[
        "no GPU known",
        "a small GPU, with video",
        "without",
        "with large images",
        "with many requests",
        "a large GPU",
        "with time",
        "the user's",
    ],
)
def test_a_step_of_an_interactive_pool_is_what_a_third_of_the_target_takes_in(fields: Any, tokens: int) -> None:
    view = PoolView(serving({"interactive": fields}).spec, "interactive", (0, 32, 0))
    assert view.token_budget == tokens
    assert view.token_budget >= view.max_num_seqs
    assert value_after(args(**fields), "--max-num-batched-tokens") == str(tokens)


def test_what_is_turned_away_is_what_can_not_be_taken_in_within_the_target() -> None:
    assert value_after(args(admission={"enabled": True}), "--max-num-queued-tokens") == str(3 * 4096)
    assert value_after(args(admission={"enabled": True}, dataParallel=2), "--max-num-queued-tokens") == str(
        2 * 3 * 4096
    )
    assert value_after(args(admission={"enabled": True}, apiServers=2), "--max-num-queued-tokens") == str(3 * 4096 // 2)
    assert (
        value_after(args(admission={"enabled": True, "maxQueuedTokens": 99999}), "--max-num-queued-tokens") == "99999"
    )
    own = args(admission={"enabled": True, "maxQueuedRequests": 10}, maxNumSeqs=20, dataParallel=2)
    assert value_after(own, "--max-num-queued-reqs") == "50"
    assert not {"--max-num-queued-tokens", "--max-num-queued-reqs"} & set(
        args(admission={"enabled": False, "maxQueuedTokens": 1})
    )


def test_fewer_tokens_are_drafted_while_many_requests_run() -> None:
    steps = [{"requests": 16, "tokens": 2}, {"requests": 4, "tokens": 9}]
    asked = speculative(mtp={"enabled": True, "tokens": 4, "byLoad": steps})
    assert asked is not None
    assert asked["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 16, 2], [17, 4096, 0]]


@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.integers(0, 16)), min_size=1, max_size=8, unique_by=lambda step: step[0]
    )
)
def test_ranges_of_drafted_tokens_have_neither_gaps_nor_overlaps(steps: list[tuple[int, int]]) -> None:
    asked = speculative(mtp={"enabled": True, "byLoad": [{"requests": n, "tokens": t} for n, t in steps]})
    assert asked is not None
    ranges = asked["num_speculative_tokens_per_batch_size"]
    assert ranges[0][0] == 1
    assert [start for start, _, _ in ranges[1:]] == [end + 1 for _, end, _ in ranges[:-1]]
    assert all(start <= end and 0 <= tokens <= asked["num_speculative_tokens"] for start, end, tokens in ranges)


def test_adapters_are_passed_as_json_so_that_paths_may_hold_anything() -> None:
    arguments = args(loras=[{"name": "sql", "path": "/a,b=c"}, {"name": "de", "path": "hub/de"}])
    place = arguments.index("--lora-modules")
    assert [json.loads(one) for one in arguments[place + 1 : place + 3]] == [
        {"name": "sql", "path": "/a,b=c"},
        {"name": "de", "path": "hub/de"},
    ]
    assert "--enable-lora" in arguments


def test_graphs_of_the_encoder_have_explicit_budgets() -> None:
    arguments = args(
        encoder={"cudaGraphs": {"enabled": True, "tokenBudgets": [560, 280]}}, modalities={"video": {"count": 0}}
    )
    config = json.loads(value_after(arguments, "--compilation-config"))
    assert config == {
        "cudagraph_mm_encoder": True, "encoder_cudagraph_token_budgets": [280, 560], "encoder_cudagraph_max_vision_items_per_batch": 8
    }  # fmt: skip
    assert "--compilation-config" not in args(encoder={"cudaGraphs": {"enabled": False}})


def test_mtp_by_default_asks_no_hub_where_the_model_comes_from_elsewhere() -> None:
    """An air-gapped pool would fail on the drafter."""
    for source in ({"pvc": {"claimName": "c"}}, {"image": {"reference": "r"}}, {"objectStore": {"uri": "s3://b/m"}}):
        assert speculative(pool="batch", model={**E4B, "source": source}) is None
    assert speculative(pool="batch", model={"id": "/models/gemma-4-E4B-it"}) is None


def test_the_version_of_the_installation_is_not_that_of_the_users_image() -> None:
    defaults = Defaults(engine_image="vllm:custom", engine_version="0.31.0", engine_command=("serve",))
    assert "--custom-histogram-buckets" not in argv(serving(), "interactive", defaults)
    own = serving(engine={"image": "mine:v0.32.0"})
    assert "--custom-histogram-buckets" in argv(own, "interactive", defaults)
    assert wanted(own, defaults)[0]["spec"]["template"]["spec"]["containers"][0]["command"][0] == "python3"
