"""Every check of model, GPU and version: a spec that it speaks up on, the nearest that it doesn't, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from gemma_operator.engine.checks import CHECKS, findings
from gemma_operator.engine.versions import Version
from gemma_operator.engine.view import PoolView
from tests.unit.builders import serving

GPU = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Case:
    """A pool of a serving on a version; `on` is the label of its GPU."""

    size: str = "E4B"
    version: Version = (0, 32, 0)
    pool: str = "interactive"
    on: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def found(self) -> dict[str, str]:
        """What is said, by the check's name."""
        fields = {**self.fields, **({"nodeSelector": {GPU: self.on}} if self.on else {})}
        model = {"id": f"google/gemma-4-{self.size}-it", **self.model}
        spec = serving({self.pool: fields}, model=model, engine=self.engine).spec
        view = PoolView(spec, self.pool, self.version, plugin=bool(spec.engine.plugin))
        return {finding.id: finding.message for finding in findings(view)}


def case(**given: Any) -> Case:
    """A case; what is no field of it is a field of the pool."""
    own = {key: given.pop(key) for key in list(given) if key in Case.__dataclass_fields__}
    return Case(**own, fields=given)


NONE = {"image": {"count": 0}, "video": {"count": 0}}
ONLY_IMAGES = {"video": {"count": 0}}
GRAPHS = {"encoder": {"cudaGraphs": {"enabled": True}}, "modalities": ONLY_IMAGES}
MTP = {"enabled": True}
BY_LOAD = {"enabled": True, "byLoad": [{"requests": 4, "tokens": 2}]}
LORA = [{"name": "a", "path": "/a"}]

# (check, what it speaks up on, what it says: field, value, remedy; the nearest that it is silent on)
CASES: list[Any] = [
    ("PrecisionUnknown", case(model={"precision": "nvfp4"}), ["model.precision is nvfp4", "bf16, fp8, w4a16", "set model.checkpoint"],
     case(model={"precision": "nvfp4", "checkpoint": "x/own-nvfp4"})),
    ("PrecisionUnknown", case(model={"id": "my/own", "precision": "fp8"}), ["'my/own'", "the catalog doesn't know it"], case(model={"id": "my/own"})),
    ("RevisionOfAnother", case(model={"precision": "fp8", "revision": "a" * 40}),
     ["model.revision is a commit of google/gemma-4-E4B-it", "RedHatAI/gemma-4-E4B-it-FP8-dynamic", "or remove revision"],
     case(model={"precision": "bf16", "revision": "a" * 40})),
    ("ModelNeedsNewerEngine", case(size="12B", version=(0, 22, 1)), ["vLLM 0.22.1 can't serve Gemma 4 12B", "raise engine.image to vLLM 0.23.0"],
     case(size="12B", version=(0, 23, 0))),
    ("NoAudio", case(size="31B", modalities={"audio": {"count": 1}}), ["pools.interactive.modalities.audio.count is 1", "set it to 0"],
     case(size="12B", modalities={"audio": {"count": 1}})),
    ("ContextTooLong", case(maxModelLen=131073), ["pools.interactive.maxModelLen is 131073", "at most 131072 tokens"], case(maxModelLen=131072)),
    ("ContextTooLong", case(size="31B", maxModelLen=262145), ["maxModelLen is 262145"], case(size="31B", maxModelLen=262144)),
    ("MtpUnavailable", case(model={"id": "my/own"}, mtp=MTP), ["pools.interactive.mtp is on", "set mtp.assistant, or mtp.enabled to false"],
     case(model={"id": "my/own"}, mtp={"enabled": True, "assistant": "my/drafter"})),
    ("MtpUnavailable", case(model={"source": {"pvc": {"claimName": "a"}}}, mtp=MTP), ["comes from no hub", "set mtp.assistant"],
     case(model={"source": {"pvc": {"claimName": "a"}}}, mtp={"enabled": True, "assistant": "/models/drafter"})),
    ("PrecisionUnknown", case(model={"id": "my/gemma-4-E4B-it-own", "precision": "fp8"}), ["the catalog doesn't know it", "set model.checkpoint"],
     case(model={"id": "my/gemma-4-E4B-it-own"})),
    ("MtpUnavailable", case(version=(0, 25, 1), mtp=MTP), ["needs vLLM 0.26 or newer", "raise engine.image"], case(version=(0, 26, 0), mtp=MTP)),
    ("DrafterName", case(mtp={"enabled": True, "assistant": "/models/eagle3-own"}),
     ["mtp.assistant is '/models/eagle3-own'", "store it under another name"],
     case(mtp={"enabled": False, "assistant": "/models/eagle3-own"})),
    ("LoraUnavailable", case(version=(0, 19, 1), loras=LORA), ["pools.interactive.loras", "vLLM 0.19.1", "0.20.0 or newer, or remove them"],
     case(version=(0, 20, 0), loras=LORA)),
    ("LoadStepsUnavailable", case(version=(0, 23, 0), mtp=BY_LOAD), ["pools.interactive.mtp.byLoad", "vLLM 0.23.0", "or remove it"],
     case(version=(0, 24, 0), mtp=BY_LOAD)),
    ("PrefillInterval", case(prefillInterval=2, version=(0, 33, 0)), ["prefillInterval is 2", "TTFT target", "remove it"],
     case(prefillInterval=1, version=(0, 33, 0))),
    ("PrefillInterval", case(pool="batch", prefillInterval=2), ["has no effect on vLLM 0.32.0 with one copy", "raise engine.image to vLLM 0.33.0"],
     case(pool="batch", prefillInterval=2, version=(0, 33, 0))),
    ("GraphsUnavailable", case(version=(0, 27, 0), **GRAPHS), ["pools.interactive.encoder.cudaGraphs", "vLLM 0.27.0", "or set enabled to false"],
     case(version=(0, 27, 1), **GRAPHS)),
    ("GraphsUnavailable", case(size="12B", **GRAPHS), ["Gemma 4 12B has no encoder", "set cudaGraphs.enabled to false"],
     case(size="26B-A4B", **GRAPHS)),
    ("BatchedEncoderUnavailable", case(version=(0, 21, 0), engine={"batchedEncoder": "Required"}),
     ["engine.batchedEncoder is Required", "or use Auto"],
     case(version=(0, 22, 0), engine={"batchedEncoder": "Required"})),
    ("PluginUnavailable", case(version=(0, 25, 1), engine={"plugin": True}),
     ["engine.plugin is true: gemma_engine works with vLLM 0.26 to 0.33", "0.25.1", "or set engine.plugin to false"],
     case(version=(0, 26, 0), engine={"plugin": True})),
    ("EncoderLimitUnavailable", case(encoder={"tokensPerStep": 800}), ["pools.interactive.encoder.tokensPerStep", "set engine.plugin to true"],
     case(encoder={"tokensPerStep": 800}, engine={"plugin": True})),
    ("PluginSwitchedOff", case(env=[{"name": "VLLM_PLUGINS", "value": "other"}], engine={"plugin": True}),
     ["pools.interactive.env: VLLM_PLUGINS is 'other'", "name gemma_engine and gemma_engine_stats"],
     case(env=[{"name": "VLLM_PLUGINS", "value": "other"}])),
    ("NoBf16", case(on="Tesla-T4"), ["pools.interactive: t4 has no bf16", "use Ampere or newer"], case(on="NVIDIA-A10")),
    ("EngineVersionUnknown", case(version=(0, 34, 0)), ["vLLM 0.34.0 is newer than this operator knows", "upgrade the operator"],
     case(version=(0, 33, 2))),
    ("PrecisionUnsuited", case(size="31B", on="NVIDIA-H100-80GB-HBM3", model={"precision": "nvfp4"}),
     ["nvfp4 is native to Blackwell", "use fp8 or bf16"],
     case(size="31B", on="NVIDIA-B200", model={"precision": "nvfp4"})),
    ("PrecisionUnsuited", case(on="NVIDIA-A100-SXM4-80GB", model={"precision": "fp8"}), ["fp8 is native from Ada on", "use w4a16 or bf16"],
     case(on="NVIDIA-L4", model={"precision": "fp8"})),
    ("KvCacheUnsuited", case(on="NVIDIA-A100-SXM4-80GB", kvCacheDtype="fp8"), ["pools.interactive.kvCacheDtype is fp8", "set it to auto"],
     case(on="NVIDIA-L4", kvCacheDtype="fp8")),
    ("MemoryShort", case(size="31B", on="NVIDIA-L40S"), ["31B in bf16 has 55 GiB of weights", "1 x l40s (44 GiB", "raise tensorParallel"],
     case(size="31B", on="NVIDIA-L40S", tensorParallel=4)),
    pytest.param("MemoryShort", case(size="31B", on="NVIDIA-H100-80GB-HBM3", maxModelLen=262144), ["no room for one request of maxModelLen 262144",
                 "lower maxModelLen, or raise tensorParallel or gpuMemoryUtilization"], case(size="31B", on="NVIDIA-H100-80GB-HBM3"),
                  id="A11 a long context"),
    pytest.param("MemoryShort", case(on="NVIDIA-L4", gpuMemoryUtilization=0.5), ["1 x l4 (12 GiB"], case(on="NVIDIA-L4"), id="A11 a small share"),
    ("KnownBadCheckpoint", case(size="31B", version=(0, 24, 0), model={"precision": "fp8"}),
     ["answers only <pad> on vLLM 0.24.0", "raise engine.image"],
     case(size="31B", version=(0, 25, 0), model={"precision": "fp8"})),
    ("KnownBadEngine", case(version=(0, 21, 0)), ["images of different sizes crash vLLM 0.21.0", "raise engine.image to vLLM 0.22.0"],
     case(version=(0, 22, 0))),
    ("KnownBadEngine", case(version=(0, 21, 0), modalities=ONLY_IMAGES), ["images of different sizes"], case(version=(0, 21, 0), modalities=NONE)),
    ("KnownBadEngine", case(version=(0, 27, 1)), ["can't load Gemma 4", "videos crash it", "raise engine.image to vLLM 0.28.0"],
     case(version=(0, 28, 0))),
    ("HashUnavailable", case(prefixCaching={"enabled": True, "hash": "xxhash"}), ["prefixCaching.hash is xxhash", "use sha256"],
     case(prefixCaching={"enabled": True, "hash": "sha256_cbor"})),
    ("HostMemoryShort", case(kvOffload={"sizeGib": 62}, resources={"limits": {"memory": "64Gi"}}),
     ["resources.limits.memory is 64Gi", "raise the limit"], case(kvOffload={"sizeGib": 61}, resources={"limits": {"memory": "64Gi"}})),
    ("HostMemoryShort", case(apiServers=3, encoder={"processorCacheGb": 4}, resources={"limits": {"memory": "16Gi"}}), ["need 16 GiB"],
     case(apiServers=1, encoder={"processorCacheGb": 4}, resources={"limits": {"memory": "16Gi"}})),
    ("MtpIneffective", case(size="31B", pool="batch", kvCacheDtype="fp8", mtp=MTP),
     ["pools.batch: with a KV cache in fp8", "set kvCacheDtype to auto or mtp.enabled to false"],
     case(size="31B", pool="batch", kvCacheDtype="fp8")),
    ("CachePerProcess", case(encoder={"processorCacheGb": 4}, apiServers=2),
     ["pools.interactive.encoder.processorCacheGb", "costs that memory per process"],
     case(encoder={"processorCacheGb": 4})),
    ("CachePerProcess", case(encoder={"processorCacheGb": 4}, dataParallel=2), ["processorCacheGb"],
     case(encoder={"processorCacheGb": 0}, apiServers=2)),
    ("RequestsTrusted", case(version=(0, 30, 0)),
     ["pools.interactive.modalities: vLLM 0.30.0 lets any request say", "raise engine.image to vLLM 0.31.0", "engine.plugin set to true"],
     case(version=(0, 31, 0))),
    ("RequestsTrusted", case(version=(0, 30, 0)), ["patch_size 1 ends the engine"], case(version=(0, 30, 0), engine={"plugin": True})),
    ("RequestsTrusted", case(version=(0, 30, 0), modalities=ONLY_IMAGES), ["patch_size 1"], case(version=(0, 30, 0), modalities=NONE)),
    ("AdmissionTooTight", case(admission={"enabled": True, "maxQueuedTokens": 4095}),
     ["pools.interactive.admission.maxQueuedTokens is 4095", "(4096)", "raise it"],
     case(admission={"enabled": True, "maxQueuedTokens": 4096})),
    pytest.param("GpuCount", case(resources={"limits": {"nvidia.com/gpu": 4}}),
                 ["pools.interactive.resources.limits[nvidia.com/gpu] is 4", "is 1: remove the limit"],
                 case(resources={"limits": {"nvidia.com/gpu": 4}}, tensorParallel=4), id="A21 as a limit"),
    ("ClaimMissing", case(resources={"claims": [{"name": "gpu"}]}),
     ["pools.interactive.resources.claims", "'gpu' is not in pools.interactive.resourceClaims", "add it there"],
     case(resources={"claims": [{"name": "gpu"}]}, resourceClaims=[{"name": "gpu", "resourceClaimName": "g"}])),
]  # fmt: skip


@pytest.mark.parametrize(("check", "speaks", "said", "silent"), CASES)
def test_a_check_speaks_up_in_words_and_is_silent_on_the_nearest_that_is_well(
    check: str, speaks: Case, said: list[str], silent: Case
) -> None:
    text = speaks.found().get(check, "")
    assert [part for part in said if part not in text] == []
    assert "\n" not in text
    assert check not in silent.found()


def test_every_check_is_tried() -> None:
    tried = {one.values[0] if hasattr(one, "values") else one[0] for one in CASES}
    assert tried == {check.id for check in CHECKS}


def test_an_ordinary_serving_is_warned_of_nothing() -> None:
    for version in ((0, 32, 0), (0, 33, 0)):
        for size in ("E2B", "E4B", "12B", "26B-A4B", "31B"):
            for pool in ("interactive", "batch"):
                assert case(size=size, version=version, pool=pool).found() == {}, (size, pool)


def test_names_and_sources_of_checks_are_for_conditions_and_docs() -> None:
    for check in CHECKS:
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", check.id), check.id
        assert check.severity in ("refuse", "warn")
        assert check.what
        assert check.source


def test_what_is_not_known_is_not_judged() -> None:
    """A model of one's own, on a GPU that no label names."""
    own = case(
        model={"id": "my/own", "checkpoint": "my/own-fp8"},
        maxModelLen=1048576,
        modalities={"audio": {"count": 1}},
        kvCacheDtype="fp8",
    )
    assert own.found() == {}


def test_an_engine_on_cpu_has_no_gpu_to_be_judged_by() -> None:
    assert case(on="Tesla-T4", gpus=0).found() == {}
