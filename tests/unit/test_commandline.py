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
from gemma_operator.engine.commandline import MTP_SINCE, RefusedArgs, engine_args
from gemma_operator.engine.flags import known_flags
from tests.unit.builders import argv, body, serving, value_after, wanted

E4B = {"id": "google/gemma-4-E4B-it"}


def args(
    pool: str = "interactive", version: tuple[int, int, int] = (0, 32, 0), model: Any = None, **fields: Any
) -> list[str]:
    kind = {} if pool in ("interactive", "batch") else {"class": "interactive"}
    return engine_args(serving({pool: {**kind, **fields}}, model=model or E4B).spec, pool, version)


def kubernetes_expands(text: str, environment: dict[str, str]) -> str:
    """What a container gets as an argument: k8s.io/kubernetes/third_party/forked/golang/expansion, in our words.

    `$(NAME)` becomes the variable's value where it is known and stays where not; `$$` becomes `$`.
    """
    out, rest = "", text
    while rest:
        head, dollar, rest = rest.partition("$")
        out += head
        if dollar and rest.startswith("$"):
            out, rest = out + "$", rest[1:]
        elif dollar and rest.startswith("(") and ")" in rest:
            name, _, rest = rest[1:].partition(")")
            out += environment.get(name, f"$({name})")
        else:
            out += dollar
    return out


def test_the_expansion_is_that_of_kubernetes() -> None:
    known = {"HOME": "/root"}
    for text, becomes in [
        ("$(HOME)", "/root"),
        ("$$(HOME)", "$(HOME)"),
        ("$(NO)", "$(NO)"),
        ("$", "$"),
        ("$$", "$"),
        ("$(", "$("),
    ]:
        assert kubernetes_expands(text, known) == becomes


@given(st.text(min_size=1, max_size=60))
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


@given(st.lists(st.text(max_size=20).filter(lambda text: not text.startswith("--")), max_size=4))
def test_every_argument_and_command_of_the_user_reaches_the_engine_as_it_was_written(extra: list[str]) -> None:
    of = serving({"batch": {"extraArgs": extra}}, engine={"command": ["$(HOME)/serve", "$x"]})
    arguments = [kubernetes_expands(argument, {"HOME": "/cache"}) for argument in argv(of, "batch")]
    assert arguments[len(arguments) - len(extra) :] == extra
    container = wanted(of)[0]["spec"]["template"]["spec"]["containers"][0]
    assert [kubernetes_expands(part, {"HOME": "/cache"}) for part in container["command"]] == ["$(HOME)/serve", "$x"]


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


@pytest.mark.parametrize(
    ("extra", "gone"),
    [
        (["--max-num-seqs", "4"], "--max-num-seqs"),
        (["--max-num-seqs=4"], "--max-num-seqs"),
        (["--max_num_seqs=4"], "--max-num-seqs"),
        (["--enable-prefix-caching"], "--no-enable-prefix-caching"),
        (["--custom-histogram-buckets={}"], "--custom-histogram-buckets"),
        (["--dtype", "auto"], "--dtype"),
    ],
)
def test_an_argument_of_the_user_takes_the_place_of_ours(extra: list[str], gone: str) -> None:
    arguments = args(extraArgs=extra)
    assert arguments[-len(extra) :] == extra
    assert gone in args()
    assert gone not in arguments[: -len(extra)]


@pytest.mark.parametrize(
    "extra",
    [["--port", "9"], ["--port=9"], ["--host", "::"], ["--model", "x"], ["--served-model-name=x"], ["--served_model_name=x"],
     ["--uds", "/s"], ["--root-path=/x"], ["--disable-log-stats"], ["--no-disable-log-stats"], ["--ssl-keyfile=/k"],
     ["--por=1"], ["--served_model=x"]],
)  # fmt: skip
def test_arguments_that_the_operator_relies_on_are_refused(extra: list[str]) -> None:
    with pytest.raises(RefusedArgs, match=r"pools\.interactive\.extraArgs: --.*: remove it"):
        args(extraArgs=extra)


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
        ("RedHatAI/gemma-4-31B-it-FP8-dynamic", "google/gemma-4-31B-it-assistant", 4),
        ("google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it-assistant", 4),
    ],
)
def test_batch_pools_draft_with_the_drafter_of_the_catalog(model: str, drafter: str, tokens: int) -> None:
    expected = {"method": "mtp", "model": drafter, "num_speculative_tokens": tokens}
    assert speculative(pool="batch", model={"id": model}) == expected


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
        RefusedArgs, match=r"no drafter for model 'my/own': set mtp\.assistant, or mtp\.enabled to false"
    ):
        args(model={"id": "my/own"}, mtp={"enabled": True})
    with pytest.raises(
        RefusedArgs, match=r"needs vLLM 0\.26 or newer: raise engine\.image, or set mtp\.enabled to false"
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
    with pytest.raises(RefusedArgs):
        wanted(serving({"interactive": {}, "batch": {"extraArgs": ["--port=1"]}}))


def test_the_version_of_the_installation_is_not_that_of_the_users_image() -> None:
    defaults = Defaults(engine_image="vllm:custom", engine_version="0.31.0", engine_command=("serve",))
    assert "--custom-histogram-buckets" not in argv(serving(), "interactive", defaults)
    own = serving(engine={"image": "mine:v0.32.0"})
    assert "--custom-histogram-buckets" in argv(own, "interactive", defaults)
    assert wanted(own, defaults)[0]["spec"]["template"]["spec"]["containers"][0]["command"][0] == "python3"
