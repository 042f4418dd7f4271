"""Random specs of a GemmaServing, mostly right and often wrong: every field of the schema, and what no schema allows."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from gemma_operator.api.kubernetes import Kubernetes, node_at
from gemma_operator.api.pod import EnvVar, PodSettings, Resources
from gemma_operator.api.schema import openapi
from gemma_operator.api.serving import Spec
from tests.support.pod_values import QUANTITIES, value

SCHEMA = openapi(Spec)
Path = tuple[str, ...]

_TEXT = st.text(max_size=12)
_NAMES = st.sampled_from(["alpha", "beta-2", "hub.token", "x" * 63])
_LABELS = st.dictionaries(
    st.sampled_from(["app", "example.com/tier", "nvidia.com/gpu.product"]),
    st.sampled_from(["", "a", "NVIDIA-H100-80GB-HBM3", "nvidia-l4", "Tesla-T4"]),
    max_size=2,
)
_ARGUMENTS = st.sampled_from(
    [
        ["--max-num-seqs", "8"], ["--max_num_seqs=8"], ["--enforce-eager"], ["--no-enable-prefix-caching"], ["-tp", "2"],
        ["--compilation-config", '{"mode": 3}'], ["--compilation-config.mode=3"], ["--tokenizer=$(X)"], ["--max-num-s", "4"],
        ["--override-generation-config", '{"temperature": 0.5, "note": "ünï {}"}'], ["--kv-cache-dtype", "fp8"],
        ["--swap-space=16"], ["--port", "1"], ["--dtype", "float16"], ["--api-key", "s"], ["stray"], ["--dtype auto"], [""],
    ]
)  # fmt: skip
_VARIABLES = st.sampled_from(["HOME", "VLLM_X", "a.b", "HF_TOKEN", "_"])
_DURATIONS = st.sampled_from(["300ms", "2s", "0.5s", "10ms", "10m", "9ms"])
# Where any string or number would be refused. By the end of a field's path.
_LIKELY: dict[Path, st.SearchStrategy[Any]] = {
    ("model", "id"): st.sampled_from(
        ["google/gemma-4-E2B-it", "google/gemma-4-E4B-it", "google/gemma-4-12B-it", "google/gemma-4-26B-A4B-it",
         "google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-FP8-dynamic", "my/own", "/models/gemma 4", "módel-🦒", "$(HOME)"]
    ),
    ("engine", "image"): st.sampled_from(
        ["vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.19.1", "mirror.example:5000/vllm:v0.33.0-cu130", "vllm:v0.26.0", "vllm:nightly"]
    ),
    ("engine", "version"): st.sampled_from(["0.32.0", "v0.25", "0.33.0", "0.18.0", "2.0"]),
    ("engine", "command"): st.sampled_from([[], ["vllm", "serve"], ["/bin/start me", "$(HOME)", "ü"]]),
    ("extraArgs",): st.lists(_ARGUMENTS, max_size=3).map(lambda lists: [item for items in lists for item in items]),
    ("slo", "ttft", "target"): _DURATIONS,
    ("gpus",): st.sampled_from([0, 1, 1, 1, 2, 64]),
    ("maxNumBatchedTokens",): st.sampled_from([64, 2496, 4096, 8192, 262144]),
    ("tensorParallel",): st.sampled_from([1, 2, 4]),
    ("pipelineParallel",): st.sampled_from([1, 2]),
    ("dataParallel",): st.sampled_from([1, 2]),
    ("sharedMemory",): st.sampled_from(QUANTITIES),
    ("resources", "limits"): st.dictionaries(
        st.sampled_from(["cpu", "memory", "ephemeral-storage"]), st.sampled_from(["4", "64Gi", "100G", 8]), max_size=2
    ),
    ("resources", "requests"): st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["0.5", "1Gi", 1]), max_size=2),
    ("cache", "size"): st.sampled_from(["100Gi", "0.5Ti", 1000000000]),
    ("nodeSelector",): _LABELS,
    ("podLabels",): _LABELS,
    ("podAnnotations",): st.dictionaries(st.sampled_from(["a", "example.com/b"]), st.text(max_size=8), max_size=2),
    ("loaderConfig",): st.dictionaries(_TEXT, st.integers(0, 9) | _TEXT | st.lists(st.booleans(), max_size=2), max_size=2),
    ("source", "pvc", "path"): st.sampled_from(["models/gemma 4", "a", ".hidden/x"]),
    ("source", "image", "path"): st.sampled_from(["models/gemma 4", "a"]),
    ("endpoint",): st.sampled_from(["https://hub.example", "http://10.0.0.1:9000/x"]),
    ("hostnames",): st.lists(st.sampled_from(["chat.example", "*.example.com", "a.b-c.d"]), max_size=2, unique=True),
    ("kind",): st.sampled_from(["Service", "Gateway", "Other"]),
    ("group",): st.sampled_from(["", "gateway.networking.k8s.io", "example.com"]),
    ("timeouts", "request"): st.sampled_from(["0s", "10m", "1h30m"]),
    ("backendRequest",): st.sampled_from(["0s", "30s", "2h"]),
    ("uri",): st.sampled_from(["s3://bucket/gemma", "gs://b/ü"]),
    ("gpuResource",): st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
    **{(name,): _NAMES for name in ("name", "claimName", "secretName", "storageClassName", "priorityClassName",
                                    "runtimeClassName", "schedulerName", "serviceAccountName", "key")},
}  # fmt: skip


# Fields of which one is wanted, by the last part of their type's path.
_RIVALS = {"source": ("hub", "pvc", "image", "objectStore"), "cache": ("claimName", "size")}


def _kubernetes(annotation: Any) -> str | None:
    """Where Kubernetes' schema has the field that a type is taken from; None for types of our own."""
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Kubernetes):
            return part.path
    return next((path for part in typing.get_args(annotation) if (path := _kubernetes(part))), None)


def _of_kubernetes() -> Iterator[tuple[Path, str]]:
    for model, above in ((PodSettings, ()), (Resources, ("resources",)), (EnvVar, ("env", "[]"))):
        for name, annotation in typing.get_type_hints(model, include_extras=True).items():
            if name in model.model_fields and (path := _kubernetes(annotation)):
                yield (*above, model.model_fields[name].alias or name), path


KUBERNETES = dict(_of_kubernetes())
# Making a strategy takes far longer than drawing from it.
_MADE: dict[Path, st.SearchStrategy[Any]] = {}


def specs() -> st.SearchStrategy[Any]:
    """Specs as they stand in a stored object. Of four, three keep to the schema and one is spoiled in a place or two."""
    kept = _spec()
    return st.one_of(kept, kept, kept, _spoiled(kept))


@st.composite
def _spec(draw: st.DrawFn) -> dict[str, Any]:
    fields = SCHEMA["properties"]
    model = draw(_value(fields["model"], ("model",)))
    spec = {"model": _mended(model) if draw(st.integers(0, 9)) != 7 else model}
    for name in ("engine", "heartbeat"):
        if draw(st.booleans()):
            spec[name] = draw(_value(fields[name], (name,)))
    pool = fields["pools"]["additionalProperties"]
    kinds = st.sampled_from([["interactive"], ["batch"], ["own"], ["interactive", "batch"], ["interactive", "own"], []])
    if pools := draw(kinds):
        spec["pools"] = {kind: draw(_pool(pool, kind)) for kind in pools}
    if draw(st.integers(0, 2)) == 0:
        routing = draw(_value(fields["routing"], ("routing",)))
        pickers = zip(pools or ["interactive", "batch"], routing.pop("inferencePools", {}).values(), strict=False)
        spec["routing"] = {**routing, "inferencePools": dict(pickers)}
    return spec


def _mended(model: dict[str, Any]) -> dict[str, Any]:
    """The model without fields that exclude others of it."""
    gone = {"tokenSecretRef", "revision"} if "hub" not in model.get("source", {"hub": {}}) else set()
    kept = {name: item for name, item in model.items() if name not in gone}
    if "claimName" in kept.get("cache", {}):
        kept["cache"] = {"claimName": kept["cache"]["claimName"]}
    return kept


@st.composite
def _pool(draw: st.DrawFn, schema: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    if kind != "own" and draw(st.integers(0, 9)) == 0:
        return None
    pool: dict[str, Any] = draw(_value(schema, ("pools", "[]")))
    return {"class": draw(st.sampled_from(["interactive", "batch"])), **pool} if kind == "own" else pool


def _value(node: Mapping[str, Any], path: Path) -> st.SearchStrategy[Any]:
    """A value that keeps to the schema `node` of the field at `path`."""
    if path not in _MADE:
        _MADE[path] = _new_value(node, path)
    return _MADE[path]


def _new_value(node: Mapping[str, Any], path: Path) -> st.SearchStrategy[Any]:
    if path[-1:] == ("env",):
        plain = st.fixed_dictionaries({"name": _VARIABLES, "value": _TEXT})
        taken = st.fixed_dictionaries(
            {"name": _VARIABLES, "valueFrom": value(node_at("EnvVar.valueFrom"), "EnvVar", "valueFrom")}
        )
        return st.lists(plain | taken, max_size=3, unique_by=lambda variable: str(variable["name"]))
    for end in range(len(path)):
        if (likely := _LIKELY.get(path[end:])) is not None:
            return likely
        if kubernetes := KUBERNETES.get(path[end:]):
            return value(node_at(kubernetes), *_owner(kubernetes))
    if "properties" in node:
        return _object(node, path)
    if "additionalProperties" in node:
        return st.dictionaries(_NAMES, _value(node["additionalProperties"], (*path, "[]")), max_size=2)
    if "items" in node:
        return _list(node, path)
    if "enum" in node:
        return st.sampled_from(node["enum"])
    return _scalar(node)


def _owner(kubernetes: str) -> tuple[str, str]:
    owner, _, field = kubernetes.partition(".")
    return owner, field


@st.composite
def _object(draw: st.DrawFn, node: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What is required, and a few of the other fields."""
    required = list(node.get("required", []))
    optional = [name for name in node["properties"] if name not in required]
    rivals = _RIVALS.get(path[-1], ())
    optional = [name for name in optional if name not in rivals]
    fewest = 1 if len(optional) > 1 else 0
    # Hypothesis prefers the first of several, and every field should come up.
    random = draw(st.randoms(use_true_random=False))
    chosen = random.sample(optional, random.randint(fewest, min(8, len(optional))))
    if rivals:
        chosen.append(draw(st.sampled_from(rivals)))
    return {name: draw(_value(node["properties"][name], (*path, name))) for name in [*required, *chosen]}


def _list(node: Mapping[str, Any], path: Path) -> st.SearchStrategy[list[Any]]:
    keys = node.get("x-kubernetes-list-map-keys", [])
    most = min(3, node.get("maxItems", 3))
    item = _value(node["items"], (*path, "[]"))
    if keys:
        return st.lists(item, max_size=most, unique_by=lambda entry: tuple(str(entry.get(key)) for key in keys))
    plain = "properties" not in node["items"]
    return st.lists(item, min_size=node.get("minItems", 0), max_size=most, unique_by=repr if plain else None)


def _scalar(node: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    match node["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = node["minimum"], node["maximum"]
            return st.sampled_from([low, high]) | st.integers(low, min(high, low + 64)) | st.integers(low, high)
        case "number":
            open_below = node.get("exclusiveMinimum", False)
            return st.floats(node["minimum"], node["maximum"], exclude_min=open_below) | st.just(node["maximum"])
    if "pattern" in node:
        return st.from_regex(node["pattern"]).filter(
            lambda text: len(text) <= node.get("maxLength", 512) and "\n" not in text
        )
    return st.text(min_size=max(1, node.get("minLength", 0)), max_size=min(24, node.get("maxLength", 24)))


ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, "", [], {}, True, False, 0, -1, 2**31, 2**63, 10**40, 0.5, -0.0, 1e300, "x" * 600, "1e9", "null", "١"]),
    st.text(max_size=8),
    st.lists(st.none() | _TEXT, max_size=2),
    st.dictionaries(_TEXT, st.none() | _TEXT, max_size=2),
)  # fmt: skip


@st.composite
def _spoiled(draw: st.DrawFn, kept: st.SearchStrategy[Any]) -> Any:
    """A spec in which some place holds what it must not: another type, nothing, too much, or an unknown field."""
    whole = {"spec": copy.deepcopy(draw(kept))}
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.randoms(use_true_random=False)).choice(list(_places(whole)))
        match draw(st.sampled_from(["odd", "odd", "gone", "more", "twice"])):
            case "odd":
                holder[key] = draw(ODD)
            case "gone" if holder is not whole:
                del holder[key]
            case "more" if isinstance(holder[key], dict):
                holder[key][draw(_TEXT)] = draw(ODD)
            case "twice" if isinstance(holder[key], list):
                holder[key] = holder[key] * 2
            case _:
                holder[key] = [holder[key]]
    return whole["spec"]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document, as what holds it and its key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)
