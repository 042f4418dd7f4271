"""Random specs: each becomes objects or a sentence, the same each time, and no secret ever stands in either."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, example, given, settings

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.desired import CHILD_KINDS, ROUTE_KINDS, Desired, desired
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.versions import UnknownVersion
from tests.support.specs import KUBERNETES, SCHEMA, specs
from tests.unit.builders import DEFAULTS, body

# The machine is shared, and a spec is large: how long drawing one takes says nothing.
unhurried = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
)


FULL: dict[str, Any] = {
    "routing": {
        "gateway": {
            "parentRefs": [{"name": "a", "namespace": "b", "sectionName": "c", "port": 443, "group": "g", "kind": "K"}],
            "hostnames": ["chat.example"],
            "timeouts": {"request": "2h", "backendRequest": "1h"},
        },
        "inferencePools": {
            "batch": {
                "endpointPickerRef": {"name": "p", "port": {"number": 9002}, "failureMode": "FailOpen", "group": "", "kind": "Service"}
            }
        },
    },
    "model": {
        "id": "google/gemma-4-E4B-it", "revision": "main", "precision": "fp8", "servedName": "chat", "aliases": ["g"],
        "tokenSecretRef": {"name": "hub", "key": "token"}, "source": {"hub": {"endpoint": "https://hub.example"}},
        "cache": {"size": "1Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"}, "loadFormat": "auto",
        "loaderConfig": {"a": {"b": 1}}, "reasoning": {"enabled": True}, "toolCalling": {"enabled": True}, "chatTemplate": {"name": "t", "key": "k"},
    },
    "engine": {
        "image": "vllm/vllm-openai:v0.33.0", "imagePullPolicy": "Always", "imagePullSecrets": ["s"], "version": "0.33.0",
        "command": ["vllm", "serve"], "batchedEncoder": "Required", "apiKeySecretRef": {"name": "key", "key": "k"},
    },
    "pools": {
        "batch": {
            "class": "batch", "replicas": {"min": 0, "max": 4}, "scaling": {"backlogQuery": "q", "deadline": "6h"},
            "slo": {"ttft": {"percentile": 90, "target": "10s"}},
            "prefixCaching": {"enabled": True, "hash": "sha256", "salt": 3}, "mtp": {"enabled": True, "tokens": 2, "assistant": "a/b"},
            "modalities": {"image": {"count": 1, "softTokens": 280}, "video": {"count": 1, "frames": 4, "fps": 1}, "audio": {"count": 1}},
            "encoder": {"cudaGraphs": {"enabled": False, "tokenBudgets": [280], "maxItems": 2}, "processorCacheGb": 1},
            "loras": [{"name": "a", "path": "/a"}],
            "loraRank": 16, "maxModelLen": 8192, "maxNumSeqs": 8, "maxNumBatchedTokens": 4096, "prefillInterval": 1,
            "admission": {"enabled": True, "maxQueuedTokens": 8192, "maxQueuedRequests": 9}, "gpuMemoryUtilization": 0.9, "kvCacheDtype": "fp8",
            "kvOffload": {"sizeGib": 4}, "tensorParallel": 2, "pipelineParallel": 1, "dataParallel": 1, "apiServers": 2, "gpus": 2, "drainSeconds": 9,
            "extraArgs": ["--seed", "1"], "gpuResource": "nvidia.com/gpu", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "64Gi"}},
            "sharedMemory": "4Gi", "env": [{"name": "A", "value": "1"}], "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
            "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}, "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"},
            "podSecurityContext": {"runAsUser": 1}, "securityContext": {"privileged": False}, "podTemplate": {"spec": {"hostname": "a"}},
        },
    },
}  # fmt: skip


def outcome(spec: Any) -> Desired | str:
    """What a spec becomes, or what is said against it."""
    try:
        return desired(parse(body(spec)), DEFAULTS)
    except (InvalidServing, UnknownVersion, RefusedSpec) as refused:
        return str(refused)


@unhurried
@given(specs())
@example({"model": {"id": "m"}, "two\nlines": 1})
def test_a_spec_becomes_objects_or_a_sentence_that_names_a_field(spec: Any) -> None:
    found = outcome(spec)
    if isinstance(found, str):
        assert found.strip()
        assert len(found.splitlines()) == 1, repr(found)
        assert re.search(r"\b(spec|pools|model|engine)\b", found), found
    else:
        assert {check(child) for child in found.objects} <= {*CHILD_KINDS, *ROUTE_KINDS}
        assert [warning.message for warning in found.warnings if len(warning.message.splitlines()) != 1] == []
    assert text_of(outcome(json.loads(json.dumps(spec)))) == text_of(found), "rendering must be the same each time"


def text_of(found: Desired | str) -> str:
    return found if isinstance(found, str) else json.dumps(found.objects)


def check(child: dict[str, Any]) -> str:
    """Kind of a child; fails where a secret stands in it."""
    pod = child["spec"].get("template", {}).get("spec", {})
    for variable in (v for c in pod.get("containers", []) if c["name"] == "engine" for v in c.get("env", [])):
        assert variable["name"] not in ("HF_TOKEN", "VLLM_API_KEY") or "value" not in variable
    return str(child["kind"])


def without_each(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document without one of its parts, for each part."""
    for key, item in value.items():
        yield {k: v for k, v in value.items() if k != key}
        if isinstance(item, dict):
            yield from ({**value, key: less} for less in without_each(item))


def test_every_optional_part_may_be_missing() -> None:
    """A15: no field that is looked into without being there."""
    assert not isinstance(outcome(FULL), str), outcome(FULL)
    for less in without_each(FULL):
        found = outcome(less)
        assert not isinstance(found, str) or re.search(
            r": required$|exactly one of|at least 1 item|gpus is 2|replicas.min is 0|names of pools|port.number is needed",
            found,
        ), (
            less,
            found,
        )


def paths(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of the schema that is our own."""
    for name, child in node.get("properties", {}).items():
        yield (*path, name)
        if not any((*path, name)[-len(field) :] == field for field in KUBERNETES):
            yield from paths(child, (*path, name))
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from paths(node[key], (*path, "[]"))


def drawn(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for name, item in value.items():
            own = (*path, "[]" if path == ("pools",) else name)
            yield own
            yield from drawn(item, own)
    elif isinstance(value, list):
        for item in value:
            yield from drawn(item, (*path, "[]"))


def test_a_few_hundred_specs_miss_hardly_a_field_and_are_often_right() -> None:
    fields: set[tuple[str, ...]] = set()
    outcomes: list[bool] = []

    @settings(unhurried, max_examples=250, database=None, derandomize=True)
    @given(specs())
    def draw(spec: Any) -> None:
        fields.update(drawn(spec))
        if len(outcomes) < 100:
            outcomes.append(isinstance(outcome(spec), Desired))

    draw()
    known = set(paths(SCHEMA))
    assert len(known - fields) < len(known) / 6, known - fields
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.9
