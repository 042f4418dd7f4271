"""The engine's environment variables, with their reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gemma_operator.api.base import SecretKey
from gemma_operator.engine.view import PoolView

# research/gitops.md section 6: caches must be writable for the image's user.
CACHE = "/cache"
# research/vllm.md section 5: a cold start of 226 to 428 s was seen, and 15 minutes and more reported.
STARTUP_FLOOR_SECONDS = 900
# A slow hub or disk: 50 MB/s.
LOAD_BYTES_PER_SECOND = 50e6
STARTUP_UNKNOWN_SECONDS = 1800
STARTUP_CEILING_SECONDS = 7200
# What Kubernetes takes where a probe doesn't say (core/v1 Probe.periodSeconds).
KUBERNETES_PERIOD_SECONDS = 10
# Hosts of S3 itself, which wants buckets in the host's name (AWS General Reference, "Amazon S3 endpoints and quotas").
AMAZONS = re.compile(r"https?://([^/]+\.)?amazonaws\.com(\.cn)?(:\d*)?(/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: a plain value, or a key of a Secret."""

    name: str
    value: str = ""
    why: str = ""
    secret: SecretKey | None = field(default=None)

    def as_pod_field(self) -> dict[str, Any]:
        """The variable as an entry of a container's env."""
        if self.secret is None:
            return {"name": self.name, "value": self.value}
        reference = {"name": self.secret.name, "key": self.secret.key}
        return {"name": self.name, "valueFrom": {"secretKeyRef": reference}}


def startup_budget_seconds(view: PoolView) -> int:
    """How long an engine may take to start: from the size of its weights, read at LOAD_BYTES_PER_SECOND, and compilation."""
    own = view.pool.startup_probe or {}
    if own.get("failureThreshold"):
        return int(own["failureThreshold"] * own.get("periodSeconds", KUBERNETES_PERIOD_SECONDS))
    if (size := view.weight_bytes) is None:
        return STARTUP_UNKNOWN_SECONDS
    seconds = STARTUP_FLOOR_SECONDS + size / LOAD_BYTES_PER_SECOND
    return min(STARTUP_CEILING_SECONDS, round(seconds / 60) * 60)


def environment(view: PoolView, compile_cache: str) -> tuple[Variable, ...]:
    """Variables that we set; `compile_cache` is the folder's name of what this pool compiles."""
    compiled = f"{CACHE}/compiled/{compile_cache}"
    ours = [
        Variable("HOME", CACHE, "a folder that the engine's user may write"),
        Variable("USER", "vllm", "PyTorch asks for the user's name, and the image may not know the number"),
        Variable("HF_HOME", f"{CACHE}/huggingface", "downloaded weights; pools share them"),
        Variable("VLLM_CACHE_ROOT", f"{compiled}/vllm", "compiled graphs; pools with equal engines share them"),
        Variable("TORCHINDUCTOR_CACHE_DIR", f"{compiled}/inductor", "as VLLM_CACHE_ROOT"),
        Variable("TRITON_CACHE_DIR", f"{compiled}/triton", "as VLLM_CACHE_ROOT"),
        Variable("XDG_CACHE_HOME", f"{CACHE}/xdg", "other caches"),
        Variable("XDG_CONFIG_HOME", f"{CACHE}/config", "other settings"),
        Variable("VLLM_NO_USAGE_STATS", "1", "nothing leaves the cluster that the user did not ask for"),
        Variable("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0", "a media link must not lead elsewhere (vllm#43117)"),
        Variable(
            "VLLM_ENGINE_READY_TIMEOUT_S", str(startup_budget_seconds(view)), "as long as the start-up probe waits"
        ),
    ]
    return (*ours, *_of_the_model(view), *_of_the_engine(view))


def _of_the_model(view: PoolView) -> list[Variable]:
    model, source = view.spec.model, view.spec.model.source
    found = []
    if model.token_secret_ref:
        found.append(Variable("HF_TOKEN", why="spec.model.tokenSecretRef", secret=model.token_secret_ref))
    if source and source.hub:
        found.append(Variable("HF_ENDPOINT", source.hub.endpoint, "spec.model.source.hub"))
    if source and (source.pvc or source.image):
        found.append(Variable("HF_HUB_OFFLINE", "1", "spec.model.source: nothing is asked of a hub"))
    if source and (store := source.object_store):
        if store.endpoint:
            found.append(Variable("AWS_ENDPOINT_URL", store.endpoint, "spec.model.source.objectStore.endpoint"))
        if store.endpoint and not AMAZONS.match(store.endpoint):
            why = "a store of one's own answers for http://HOST/BUCKET, and seldom for http://BUCKET.HOST"
            found.append(Variable("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0", why))
        if store.region:
            found.append(Variable("AWS_REGION", store.region, "spec.model.source.objectStore.region"))
            found.append(Variable("AWS_DEFAULT_REGION", store.region, "as AWS_REGION, for boto3, which reads no other"))
    return found


def _of_the_engine(view: PoolView) -> list[Variable]:
    engine, caching = view.spec.engine, view.pool.prefix_caching
    found = []
    if engine.api_key_secret_ref:
        found.append(Variable("VLLM_API_KEY", why="spec.engine.apiKeySecretRef", secret=engine.api_key_secret_ref))
    if engine.batched_encoder in ("Required", "Off"):
        mode = "off" if engine.batched_encoder == "Off" else "on"
        found.append(Variable("GEMMA_ENGINE_ENCODER", mode, "spec.engine.batchedEncoder; read by our engine image"))
    if caching and caching.salt is not None:
        found.append(Variable("PYTHONHASHSEED", str(caching.salt), f"spec.{view.path}.prefixCaching.salt"))
    if view.spec.model.cache and view.version >= (0, 26, 0):
        found.append(
            Variable(
                "VLLM_ENABLE_STARTUP_PLAN",
                "1",
                "rule: with a cache that stays, memory profiling is skipped (vLLM 0.26)",
            )
        )
    return found
