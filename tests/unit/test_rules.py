"""Every rule of the API: a spec that breaks it, the nearest one that keeps it, and what the refusal says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from gemma_operator.api import pool as pool_module
from gemma_operator.api.base import ApiModel, EachPool, Rule
from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.scaling import Scaling
from gemma_operator.api.schema import openapi
from gemma_operator.api.serving import Spec
from tests.unit.builders import body

OFF = {"count": 0}


def models(model: type[ApiModel] = ApiModel) -> Iterator[type[ApiModel]]:
    """Every type of the API."""
    for child in model.__subclasses__():
        yield child
        yield from models(child)


RULES = {rule.id: rule for model in models() for rule in model.RULES} | {
    pool_module.ONE_ARGUMENT.id: pool_module.ONE_ARGUMENT
}


def pool(name: str = "interactive", /, **fields: Any) -> dict[str, Any]:
    return {"pools": {name: fields}}


def model(**fields: Any) -> dict[str, Any]:
    return {"model": {"id": "google/gemma-4-E4B-it", **fields}}


def media(**counts: int) -> dict[str, Any]:
    return {kind: {"count": count} for kind, count in counts.items()}


def gateway(*parents: dict[str, str], **fields: Any) -> dict[str, Any]:
    return {"routing": {"gateway": {"parentRefs": list(parents) or [{"name": "gateway"}], **fields}}}


GATEWAY = gateway()
PICKER = {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}
GRAPHS = {"cudaGraphs": {"enabled": True}}
BY_LOAD = {"enabled": True, "byLoad": [{"requests": 4, "tokens": 2}]}

# (rule, what breaks it, what the refusal names: the field with its value and what to do, the nearest that keeps it)
CASES: list[Any] = [
    ("one-source", model(source={}), ["spec.model.source", "exactly one of hub, pvc, image and objectStore"],
     model(source={"pvc": {"claimName": "a"}})),
    ("one-source", model(source={"pvc": {"claimName": "a"}, "image": {"reference": "b"}}), ["keep one"], model(source={"image": {"reference": "b"}})),
    ("cache-one-claim", model(cache={}), ["spec.model.cache", "exactly one of claimName (an existing claim) and size"], model(cache={"size": "1Gi"})),
    ("cache-one-claim", model(cache={"claimName": "a", "size": "1Gi"}), ["exactly one of claimName"], model(cache={"claimName": "a"})),
    ("cache-class-of-new", model(cache={"claimName": "a", "storageClassName": "fast"}),
     ["spec.model.cache", "storageClassName is fast", "goes with size"], model(cache={"size": "1Gi", "storageClassName": "fast"})),
    ("token-needs-hub", model(tokenSecretRef={"name": "hub"}, source={"pvc": {"claimName": "a"}}),
     ["tokenSecretRef is for a hub", "remove one of the two"],
     model(tokenSecretRef={"name": "hub"}, source={"hub": {"endpoint": "https://hub.example"}})),
    ("revision-needs-hub", model(revision="main", source={"image": {"reference": "a"}}), ["revision is main", "remove one of the two"],
     model(revision="main")),
    ("replicas-ordered", pool(replicas={"min": 3, "max": 2}), ["spec.pools.interactive.replicas", "max is 2, min is 3", "at least replicas.min"],
     pool(replicas={"min": 3, "max": 3})),
    ("replicas-ordered", pool(replicas={"min": 2, "max": 1}), ["max is 1, min is 2"], pool(replicas={"max": 1})),
    ("target-reachable", pool(slo={"ttft": {"target": "9ms"}}), ["spec.pools.interactive.slo.ttft", "target is 9ms", "from 10ms to 10m"],
     pool(slo={"ttft": {"target": "10ms"}})),
    ("target-reachable", pool(slo={"ttft": {"target": "601s"}}), ["target is 601s"], pool(slo={"ttft": {"target": "10m"}})),
    ("itl-target-reachable", pool(slo={"itl": {"target": "0.5ms"}}), ["spec.pools.interactive.slo.itl", "target is 0.5ms", "from 1ms to 10s"],
     pool(slo={"itl": {"target": "1ms"}})),
    ("itl-target-reachable", pool(slo={"itl": {"target": "11s"}}), ["target is 11s"], pool(slo={"itl": {"target": "10s"}})),
    ("audio-needs-video", pool(modalities=media(audio=1, video=0)),
     ["spec.pools.interactive.modalities", "audio.count is 1, video.count is 0", "set audio.count to 0, or leave video on"],
      pool(modalities=media(audio=1))),
    ("no-secret-in-env", pool(env=[{"name": "HF_TOKEN", "value": "hf_abc"}]),
     ["spec.pools.interactive.env.0", "name is HF_TOKEN", "valueFrom.secretKeyRef, model.tokenSecretRef"],
     pool(env=[{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}])),
    ("env-one-value", pool(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
     ["spec.pools.interactive.env.0", "name is A", "keep one"], pool(env=[{"name": "A", "value": "1"}])),
    ("own-volumes", pool(volumes=[{"name": "cache", "emptyDir": {}}]), ["volumes shm, cache, tmp", "choose another name"],
     pool(volumes=[{"name": "caches", "emptyDir": {}}])),
    ("own-mounts", pool(volumeMounts=[{"name": "a", "mountPath": "/dev/shm"}]), ["/dev/shm", "choose another mountPath"],
     pool(volumeMounts=[{"name": "a", "mountPath": "/dev/shm2"}])),
    ("engine-container", pool(sidecars=[{"name": "engine", "image": "a"}]), ["a sidecar can't be called engine"],
     pool(sidecars=[{"name": "proxy", "image": "a"}])),
    ("own-labels", pool(podLabels={"app.kubernetes.io/name": "a"}), ["podLabels under gemmaserving.dev/", "choose other keys"],
     pool(podLabels={"example.com/app.kubernetes.io": "a"})),
    ("store-is-streamed", model(loadFormat="safetensors", source={"objectStore": {"uri": "s3://a/b"}}),
     ["loadFormat is safetensors", "remove loadFormat"],
     model(loadFormat="runai_streamer_sharded", source={"objectStore": {"uri": "s3://a/b"}})),
    pytest.param("gpus-match", pool(gpus=8, tensorParallel=4), ["gpus is 8, tensorParallel is 4", "more would idle, fewer won't start"],
                 pool(gpus=8, tensorParallel=4, dataParallel=2), id="A21 idle GPUs"),
    pytest.param("gpus-match", pool(gpus=1, tensorParallel=2), ["gpus is 1, tensorParallel is 2"], pool(gpus=0, tensorParallel=2), id="A21 too few"),
    pytest.param("video-budget", pool(maxNumBatchedTokens=2048), ["maxNumBatchedTokens is 2048", "at least 2496", "set modalities.video.count to 0"],
                 pool(maxNumBatchedTokens=2496), id="A10 2048"),
    pytest.param("video-budget", pool("batch", maxNumBatchedTokens=2495, modalities=media(video=1)), ["maxNumBatchedTokens is 2495"],
                 pool("batch", maxNumBatchedTokens=2495, modalities=media(video=0)), id="A10 2495, and without video"),
    ("image-budget", pool(maxNumBatchedTokens=1119, modalities={"video": OFF, "image": {"softTokens": 1120}}),
     ["maxNumBatchedTokens is 1119, modalities.image.softTokens is 1120", "an image is encoded in one step"],
     pool(maxNumBatchedTokens=1120, modalities={"video": OFF, "image": {"softTokens": 1120}})),
    ("image-budget", pool(maxNumBatchedTokens=64, modalities={"video": OFF, "image": {"softTokens": 70}}), ["modalities.image.softTokens is 70"],
     pool(maxNumBatchedTokens=64, modalities={"video": OFF, "image": {"count": 0, "softTokens": 70}})),
    ("seqs-within-budget", pool(maxNumBatchedTokens=2496, maxNumSeqs=2497),
     ["maxNumBatchedTokens is 2496, maxNumSeqs is 2497", "at least maxNumSeqs"],
     pool(maxNumBatchedTokens=2496, maxNumSeqs=2496)),
    ("graphs-without-video", pool(encoder=GRAPHS), ["set modalities.video.count to 0, or cudaGraphs.enabled to false"],
     pool(encoder=GRAPHS, modalities=media(video=0))),
    ("graphs-without-video", pool(encoder=GRAPHS, modalities=media(image=1)), ["encoder.cudaGraphs"],
     pool(encoder={"cudaGraphs": {"enabled": False}})),
    ("graphs-need-images", pool(encoder=GRAPHS, modalities=media(video=0, image=0)), ["encoder.cudaGraphs is on and images are off"],
     pool(encoder=GRAPHS, modalities=media(video=0, image=1))),
    ("load-steps-one-copy", pool(mtp=BY_LOAD, dataParallel=2), ["dataParallel is 2", "use replicas instead of dataParallel"], pool(mtp=BY_LOAD)),
    ("shm-within-memory", pool(resources={"limits": {"memory": "2Gi"}}, sharedMemory="2Gi"), ["sharedMemory is 2Gi", "must be below it"],
     pool(resources={"limits": {"memory": "2049Mi"}}, sharedMemory="2Gi")),
    ("shm-within-memory", pool(resources={"limits": {"memory": "16G"}}, sharedMemory="16Gi"), ["must be below it"],
     pool(resources={"limits": {"memory": "16G"}}, sharedMemory="8Gi")),
    pytest.param("one-argument-per-item", pool(extraArgs=["--seed=1", "--dtype auto"]),
     ["spec.pools.interactive.extraArgs.1", "--dtype auto", "as two items"],
                 pool(extraArgs=["--seed=1", "--dtype", "auto"]), id="A6"),
    pytest.param("one-argument-per-item", pool(extraArgs=["--tool-call-parser "]), ["extraArgs.0", "without blanks around the flag"],
                 pool(extraArgs=["--tool-call-parser"]), id="A7 a blank after it"),
    pytest.param("one-argument-per-item", pool(extraArgs=["--tool-call-parser\u00a0"]), ["extraArgs.0", "without blanks around the flag"],
                 pool(extraArgs=["--tool-call-parser="]), id="A7 a no-break space after it"),
    pytest.param("one-argument-per-item", pool(extraArgs=["\u00a0--seed"]), ["extraArgs.0"], pool(extraArgs=[" a value"]), id="A7 a blank before it"),
    ("one-argument-per-item", pool(extraArgs=["--a =1"]), ["extraArgs.0"], pool(extraArgs=["--a=1 --b 2"])),
    ("pool-class", pool("chat"), ["pools chat: a pool", "needs a class: interactive or batch"], pool("chat", **{"class": "batch"})),
    ("interactive-never-zero", pool(replicas={"min": 0}), ["pools interactive: replicas.min", "at least 1"],
     pool("batch", replicas={"min": 0}, scaling={"mode": "Off"})),
    ("interactive-never-zero", pool("batch", **{"class": "interactive", "replicas": {"min": 0}}), ["pools batch: replicas.min"],
     pool("interactive", **{"class": "batch", "replicas": {"min": 0}, "scaling": {"mode": "Off"}})),
    ("zero-needs-a-signal", pool("batch", replicas={"min": 0, "max": 2}), ["pools batch: replicas.min is 0", "scaling.backlogQuery"],
     pool("batch", replicas={"min": 0, "max": 2}, scaling={"backlogQuery": "q"})),
    ("zero-needs-a-signal", pool("batch", replicas={"min": 0}, scaling={"mode": "DryRun"}), ["pools batch"],
     pool("batch", replicas={"min": 0}, scaling={"mode": "External"})),
    ("batch-scaling", pool(scaling={"deadline": "1h"}), ["pools interactive", "for batch pools"], pool("batch", scaling={"deadline": "1h"})),
    ("batch-scaling", pool(scaling={"backlogQuery": "q"}), ["pools interactive"], pool("batch", scaling={"backlogQuery": "q"})),
    ("lending", pool(scaling={"lend": 1}), ["pools interactive: scaling.lend is for batch pools"],
     {"pools": {"interactive": {}, "batch": {"scaling": {"lend": 1}}}}),
    ("lending", pool("batch", scaling={"lend": 1}), ["pools batch", "exactly one interactive pool"],
     {"pools": {"chat": {"class": "interactive"}, "batch": {"scaling": {"lend": 1}}}}),
    ("lending", {"pools": {"interactive": None, "chat": {"class": "interactive"}, "batch": {"scaling": {"lend": 1}}}}, ["pools batch"],
     {"pools": {"interactive": None, "night": {"class": "batch", "scaling": {"lend": 3}}, "batch": None}}),
    ("floors-within-budget", {**pool(tensorParallel=2, replicas={"min": 2}), "gpuBudget": 3}, ["gpuBudget is 3", "floors of all pools"],
     {**pool(tensorParallel=2, replicas={"min": 2}), "gpuBudget": 4}),
    ("one-node-cache-one-engine", model(cache={"size": "1Gi", "accessMode": "ReadWriteOnce"}),
     ["model.cache.accessMode is ReadWriteOnce", "use ReadWriteMany, or drop the cache"],
     {**model(cache={"size": "1Gi", "accessMode": "ReadWriteOnce"}), **pool()}),
    ("one-node-cache-one-engine", {**model(cache={"size": "1Gi", "accessMode": "ReadWriteOnce"}), **pool(replicas={"max": 2})},
     ["a serving of one pool with one engine"], model(cache={"size": "1Gi"})),
    ("routing-asks-something", {"routing": {}}, ["spec.routing: it asks for nothing", "set gateway, inferencePools or both"], GATEWAY),
    ("inference-pools-are-pools", {"routing": {"inferencePools": {"chat": PICKER}}}, ["goes by the names of pools: remove what is none"],
     {"routing": {"inferencePools": {"batch": PICKER}}}),
    ("inference-pools-are-pools", {**pool(), "routing": {"inferencePools": {"batch": PICKER}}}, ["routing.inferencePools"],
     {**pool("chat", **{"class": "batch"}), "routing": {"inferencePools": {"chat": PICKER}}}),
    ("picker-port", {"routing": {"inferencePools": {"batch": {"endpointPickerRef": {"name": "epp"}}}}},
     ["spec.routing.inferencePools.batch.endpointPickerRef", "port.number is needed"],
     {"routing": {"inferencePools": {"batch": {"endpointPickerRef": {"name": "epp", "kind": "Other"}}}}}),
    ("timeouts-ordered", gateway(timeouts={"request": "1m", "backendRequest": "61s"}),
     ["spec.routing.gateway.timeouts", "backendRequest is 61s, request is 1m", "can't be longer"],
     gateway(timeouts={"request": "0s", "backendRequest": "1h30m"})),
    ("timeouts-ordered", gateway(timeouts={"request": "1s", "backendRequest": "1s1ms"}), ["backendRequest is 1s1ms"],
     gateway(timeouts={"request": "1s1ms", "backendRequest": "1s1ms"})),
    ("parents-distinct", gateway({"name": "a"}, {"name": "a", "kind": "Gateway"}), ["spec.routing.gateway", "remove one, or give each a sectionName"],
     gateway({"name": "a"}, {"name": "a", "namespace": "b"}, {"name": "c"})),
    ("parents-distinct", gateway({"name": "a"}, {"name": "a", "sectionName": "s"}), ["give each a sectionName"],
     gateway({"name": "a", "sectionName": "t"}, {"name": "a", "sectionName": "s"})),
]  # fmt: skip
# (rule, its type, what breaks it, the nearest that keeps it)
OF_SCALING = [
    ("deadline-reachable", Scaling, {"deadline": "59s"}, {"deadline": "1m"}),
    ("deadline-reachable", Scaling, {"deadline": "169h"}, {"deadline": "168h"}),
    (
        "one-profile",
        Scaling,
        {"profile": {}, "profileFrom": {"name": "measured"}},
        {"profileFrom": {"name": "measured"}},
    ),
]
# Pydantic and the schema refuse these before the rule is asked.
BEFORE_THE_RULE = {"pool-name"}


@pytest.mark.parametrize(("rule", "broken", "said", "kept"), CASES)
def test_what_breaks_a_rule_is_refused_and_the_nearest_that_keeps_it_is_taken(
    rule: str, broken: Any, said: list[str], kept: Any
) -> None:
    with pytest.raises(InvalidServing) as refused:
        parse(body(broken))
    text = str(refused.value)
    assert RULES[rule].message in text
    assert [part for part in said if part not in text] == []
    assert "\n" not in text
    assert "hf_abc" not in text
    assert parse(body(kept))


@pytest.mark.parametrize(("rule", "kind", "broken", "kept"), OF_SCALING)
def test_what_breaks_a_rule_of_scaling_is_refused(rule: str, kind: type[ApiModel], broken: Any, kept: Any) -> None:
    with pytest.raises(ValidationError, match=RULES[rule].message):
        kind.model_validate(broken)
    assert kind.model_validate(kept)


def test_every_rule_is_tried() -> None:
    tried = {case.values[0] if hasattr(case, "values") else case[0] for case in (*CASES, *OF_SCALING)}
    assert tried | BEFORE_THE_RULE == set(RULES)


def test_a_pool_is_named_by_what_it_may_be_called() -> None:
    for name in ("Chat", "a_b", "a" * 32, "1a", "a-", ""):
        with pytest.raises(InvalidServing, match=r"spec\.pools\."):
            parse(body(pool(name, **{"class": "batch"})))
        assert not RULES["pool-name"].holds(None, name)
    assert parse(body(pool("a" * 31, **{"class": "batch"})))


def test_names_of_rules_are_unique() -> None:
    each = {id(rule): rule.id for model in models() for rule in model.RULES}
    assert len(set(each.values())) == len(each)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in RULES)


def every(node: Any) -> Iterator[dict[str, str]]:
    """Every rule in a schema."""
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", ())
        for child in node.values():
            yield from every(child)


@pytest.mark.parametrize("model", [model for model in models() if model.RULES], ids=lambda model: model.__name__)
def test_the_api_server_is_told_every_rule_that_we_check(model: type[ApiModel]) -> None:
    told = list(every(openapi(model)))
    assert [rule.id for rule in model.RULES if not rule.cel or rule.validation() not in told] == []


def test_the_api_server_is_told_of_arguments() -> None:
    assert pool_module.ONE_ARGUMENT.validation() in list(every(openapi(Spec)))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_message_is_one_sentence_without_a_stop(rule: Rule) -> None:
    assert "\n" not in rule.message
    assert not rule.message.endswith(".")


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.shows], ids=lambda rule: rule.id)
def test_what_the_api_server_says_begins_with_the_values(rule: Rule) -> None:
    expression = rule.validation()["messageExpression"]
    shown = ", ".join(f"{path} is %s" for path in rule.shows)
    assert expression.startswith(f"'{shown}: ")
    assert rule.message.replace("'", "\\'") in expression
    assert [path for path in rule.shows if f"string(self.{path})" not in expression] == []


def test_a_rule_of_every_pool_names_those_that_break_it() -> None:
    with pytest.raises(InvalidServing, match="pools chat, web: a pool that is not called"):
        parse(body({"pools": {"chat": {}, "batch": {}, "web": {}}}))
    rules = [rule for rule in RULES.values() if isinstance(rule, EachPool)]
    assert len(rules) == 6
    assert all("self.pools.all(n, " in rule.validation()["rule"] for rule in rules)


def test_all_broken_rules_of_a_type_are_told_at_once() -> None:
    with pytest.raises(InvalidServing) as refused:
        parse(body(pool(maxNumBatchedTokens=64, maxNumSeqs=65, gpus=3)))
    assert [
        name
        for name in ("video-budget", "seqs-within-budget", "gpus-match")
        if RULES[name].message not in str(refused.value)
    ] == []
