"""Reading a GemmaServing: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.serving import GemmaServing
from tests.unit.builders import MODEL, body


def refusal(spec: Any) -> str:
    with pytest.raises(InvalidServing) as refused:
        parse(body(spec))
    return str(refused.value)


def pool(name: str = "interactive", **fields: Any) -> dict[str, Any]:
    return {"pools": {name: fields}}


def gateway(**fields: Any) -> dict[str, Any]:
    return {"routing": {"gateway": {"parentRefs": [{"name": "gateway"}], **fields}}}


def test_a_name_and_a_model_are_enough() -> None:
    spec = parse(body()).spec
    assert list(spec.pools) == ["interactive", "batch"]
    assert [spec.class_of(name) for name in spec.pools] == ["interactive", "batch"]
    assert spec.pools["interactive"].replicas.ceiling == 1


@pytest.mark.parametrize(
    ("spec", "field", "value", "remedy"),
    [
        ({"modle": {}}, "spec.modle", "", "unknown field"),
        (pool(replica=3), "spec.pools.interactive.replica", "", "unknown field"),
        ({"model": {}}, "spec.model.id", "", "required"),
        ({"model": "google/gemma-4-E4B-it"}, "spec.model", "gemma-4-E4B-it", "must be a map"),
        ({"model": {"id": ""}}, "spec.model.id", "''", "at least 1 character"),
        *(({"model": {"id": "m", **field}}, f"spec.model.{next(iter(field))}", "-x", "should match pattern '^[^-]'") for field in (
            {"id": "-x"}, {"revision": "-x"}, {"servedName": "-x"}, {"aliases": ["-x"]}, {"checkpoint": "-x"})),
        ({"model": {"id": "x" * 513}}, "spec.model.id", "xxx", "at most 512 characters"),
        (pool(replicas={"min": 3, "max": 2}), "spec.pools.interactive.replicas", "max is 2", "replicas.max must be at least replicas.min"),
        (pool(replicas={"max": 0}), "spec.pools.interactive.replicas.max", "value 0", "greater than or equal to 1"),
        (pool(replicas={"min": -1}), "spec.pools.interactive.replicas.min", "value -1", "greater than or equal to 0"),
        (pool(replicas={"min": 0}), "pools interactive", "replicas.min", "at least 1"),
        (pool("chat", **{"class": "interactive", "replicas": {"min": 0}}), "pools chat", "replicas.min", "at least 1"),
        (pool("chat"), "pools chat", "class", "interactive or batch"),
        (pool("chat", **{"class": "fast"}), "spec.pools.chat.class", "'fast'", "'interactive' or 'batch'"),
        (pool("Chat", **{"class": "batch"}), "spec.pools.Chat", "'Chat'", "should match pattern"),
        (pool("a" * 32, **{"class": "batch"}), "spec.pools.a", "aaa", "should match pattern"),
        ({"pools": {}}, "spec.pools", "", "at least 1 item"),
        (pool(maxNumBatchedTokens=2495), "spec.pools.interactive", "maxNumBatchedTokens is 2495",
         "at least 2496 while video is on (one video's tokens); raise it or set modalities.video.count to 0"),
        (pool(gpus=1, tensorParallel=2), "spec.pools.interactive", "gpus is 1, tensorParallel is 2", "tensorParallel x pipelineParallel x"),
        (pool(slo={"ttft": {"target": "300"}}), "spec.pools.interactive.slo.ttft.target", "'300'", "such as 300ms"),
        (pool(slo={"ttft": {"target": 300}}), "spec.pools.interactive.slo.ttft.target", "300", "such as 300ms"),
        (pool(slo={"ttft": {"target": "9ms"}}), "spec.pools.interactive.slo.ttft", "target is 9ms", "10ms to 10m"),
        (pool(slo={"ttft": {"percentile": 100}}), "spec.pools.interactive.slo.ttft.percentile", "100", "less than or equal to 99.9"),
        (pool(resources={"limits": {"memory": "16 Gi"}}), "spec.pools.interactive.resources.limits.memory", "'16 Gi'", "such as 500m, 2, 16Gi"),
        (pool(resources={"limits": {"memory": "7Ei7"}}), "spec.pools.interactive.resources.limits.memory", "'7Ei7'", "such as 500m"),
        (pool(sharedMemory="1e999999999"), "spec.pools.interactive.sharedMemory", "1e999999999", "out of range"),
        (pool(env=[{"name": "A"}, {"name": "B"}, {"name": "A"}]), "spec.pools.interactive.env", "'A'", "remove all but one"),
        (pool(env=[{"name": "1A"}]), "spec.pools.interactive.env.0.name", "", "should match pattern"),
        ({"engine": {"imagePullSecrets": ["a", "a"]}}, "spec.engine.imagePullSecrets", "'a'", "remove all but one"),
        ({"engine": {"version": "newest"}}, "spec.engine.version", "'newest'", "should match pattern"),
        (pool(extraArgs=[None]), "spec.pools.interactive.extraArgs.0", "", "put it in quotes"),
        (pool(max_num_seqs=4), "spec.pools.interactive.max_num_seqs", "", "unknown field"),
        (pool(replicas=3), "spec.pools.interactive.replicas", "value 3", "must be a map"),
        ({"routing": {"gateway": {}}}, "spec.routing.gateway.parentRefs", "", "required"),
        ({"routing": {"gateway": {"parentRefs": []}}}, "spec.routing.gateway.parentRefs", "", "at least 1 item"),
        ({"routing": {"gateway": {"parentRefs": [{}]}}}, "spec.routing.gateway.parentRefs.0.name", "", "required"),
        (gateway(parentRefs=[{"name": "a", "port": 0}]), "spec.routing.gateway.parentRefs.0.port", "value 0", "greater than or equal to 1"),
        (gateway(hostnames=["https://a.example"]), "spec.routing.gateway.hostnames.0", "'https://a.example'", "should match pattern"),
        (gateway(timeouts={"request": "1.5s"}), "spec.routing.gateway.timeouts.request", "'1.5s'", "such as 30s, 10m or 1h30m; 0s means without"),
        (gateway(timeouts={"request": 30}), "spec.routing.gateway.timeouts.request", "30", "such as 30s"),
        (gateway(host="a"), "spec.routing.gateway.host", "", "unknown field"),
        ({"routing": {"inferencePools": {"batch": {}}}}, "spec.routing.inferencePools.batch.endpointPickerRef", "", "required"),
        ([], "spec.model", "", "required"),
        ("x", "spec", "'x'", "must be a map"),
    ],
)  # fmt: skip
def test_a_refusal_names_field_value_and_what_is_allowed(spec: Any, field: str, value: str, remedy: str) -> None:
    said = refusal(spec)
    assert field in said
    assert value in said
    assert remedy in said
    assert "\n" not in said
    assert "[key]" not in said


def test_one_video_fits_in_exactly_2496_tokens() -> None:
    assert parse(body(pool(maxNumBatchedTokens=2496)))
    assert parse(body(pool(maxNumBatchedTokens=2495, modalities={"video": {"count": 0}})))


def test_several_faults_are_told_at_once_but_not_without_end() -> None:
    said = refusal({f"field{n}": n for n in range(50)})
    assert said.count("unknown field") == 5


@pytest.mark.parametrize("missing", [{}, {"metadata": None}, {"metadata": {"name": None}}, {"metadata": []}])
def test_an_object_without_a_name_is_refused(missing: Any) -> None:
    with pytest.raises(InvalidServing, match=r"metadata\.name: required"):
        parse({"spec": MODEL, **missing})


def test_null_is_the_same_as_absent() -> None:
    nulls: dict[str, Any] = {
        "replicas": None,
        "slo": None,
        "env": None,
        "resources": {"limits": None, "requests": {"cpu": None}},
    }
    assert parse(body({"engine": None, **pool(**nulls)})).spec == parse(body(pool())).spec
    assert parse(body({"pools": None})) == parse(body())


def test_a_pool_without_a_body_is_a_pool_with_defaults() -> None:
    assert list(parse(body({"pools": {"interactive": None, "batch": None}})).spec.pools) == ["interactive", "batch"]
    assert list(parse(body({"pools": {"batch": None}})).spec.pools) == ["batch"]


def test_a_private_value_is_never_repeated() -> None:
    assert "hf_secret" not in refusal({"model": {"id": "m", "tokenSecretRef": "hf_secret"}})
    assert "s3cret" not in refusal({"engine": {"apiKeySecretRef": "s3cret"}})
    assert "s3cret" not in refusal(pool(extraArgs=["--api-key s3cret"]))
    assert "424242" not in refusal(pool(env=[{"name": "PIN", "value": 424242}]))
    assert "hf_secret" not in refusal(pool(env=[{"name": "T", "value": "hf_secret" * 5000}]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
QUANTITIES = st.text("0123456789.eEiKMGnum+-", max_size=8) | JSON


def perhaps(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of the fields, or something quite different."""
    return st.fixed_dictionaries({}, optional=fields) | JSON


POOLS = perhaps(
    **{
        "class": st.sampled_from(["interactive", "batch"]) | JSON,
        "replicas": perhaps(min=st.integers(-1, 5) | JSON, max=st.integers(-1, 5) | JSON),
        "slo": perhaps(ttft=perhaps(target=st.text("0123456789.msh", max_size=6) | JSON, percentile=JSON)),
        "maxNumBatchedTokens": st.integers(0, 5000) | JSON,
        "modalities": perhaps(video=perhaps(count=st.integers(-1, 3))),
        "tensorParallel": st.integers(0, 5),
        "gpus": st.integers(-1, 5),
        "resources": perhaps(limits=st.dictionaries(st.text(max_size=6), QUANTITIES, max_size=2)),
        "sharedMemory": QUANTITIES,
        "env": st.lists(perhaps(name=st.text(max_size=4), value=JSON, valueFrom=JSON), max_size=2) | JSON,
        "extraArgs": st.lists(st.text(max_size=8), max_size=3) | JSON,
    },
    **dict.fromkeys(("tolerations", "affinity", "nodeSelector", "mtp", "prefixCaching"), JSON),
)
POOL_NAMES = st.sampled_from(["interactive", "batch", "chat"]) | st.text(max_size=6)
SPECS = st.fixed_dictionaries(
    {"model": st.fixed_dictionaries({"id": st.text(min_size=1, max_size=8)}) | JSON},
    optional={"engine": JSON, "pools": st.dictionaries(POOL_NAMES, POOLS, max_size=3) | JSON},
)


@settings(max_examples=400)
@given(SPECS | JSON)
@example({"model": {"id": "m"}, "pools": {"batch": {"sharedMemory": "7Ei"}}})
@example({"model": {"id": "m"}, "pools": {"batch": {"sharedMemory": "1e50"}}})
def test_whatever_is_stored_becomes_a_serving_or_a_sentence(spec: Any) -> None:
    try:
        assert isinstance(parse(body(spec)), GemmaServing)
    except InvalidServing as refused:
        assert "metadata" in str(refused) or "spec" in str(refused)  # noqa: PT017
