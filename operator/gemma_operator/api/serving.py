"""GemmaServing v1alpha1: what a user may write, with its units, limits and messages.

Defaults that depend on the pool's class or on the engine's version live in `engine/`, not in the CRD,
so that a stored object never changes by itself. `None` always means "not set".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from gemma_operator.api.values import Duration, FreeForm, Quantity, Schema, duration_seconds

GROUP = "gemmaserving.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GemmaServing"
PLURAL = "gemmaservings"

PoolClass = Literal["interactive", "batch"]
POOL_NAME = "^[a-z]([-a-z0-9]{0,29}[a-z0-9])?$"
# vLLM 0.33 gemma4_mm.py: a video costs 32 frames x (70 soft tokens + 2 markers + 6 timestamp tokens).
VIDEO_TOKENS = 2496
MAX_VIDEO_FRAMES = 32

ShortText = Annotated[str, Field(min_length=1, max_length=512)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Schema({"maxProperties": 64})]


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules for `ConfigDict(json_schema_extra=...)`: (expression, message) pairs."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def _distinct(items: list[Any]) -> list[Any]:
    """Kubernetes keeps such lists as maps by name and refuses a name that comes twice."""
    names = [getattr(item, "name", item) for item in items]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} is there more than once; remove all but one")
    return items


class ApiModel(BaseModel):
    """Base of every API type: camelCase outside, frozen inside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class SecretKey(ApiModel):
    """One key of a Secret in the namespace of the GemmaServing."""

    name: Name
    """Name of the Secret."""
    key: Name = "token"
    """Key within the Secret."""


class Model(ApiModel):
    """Which model is served."""

    id: Annotated[str, Field(min_length=1, max_length=512, pattern="^[^-]")]
    """Model id on the hub (for instance google/gemma-4-E4B-it) or an absolute path inside the engine image."""
    revision: ShortText | None = None
    """Commit, branch or tag on the hub. Pin a commit for repeatable starts."""
    served_name: ShortText | None = None
    """Name that clients put in `model`; the id where absent."""
    token_secret_ref: SecretKey | None = None
    """Secret with the hub token, given to the engine as environment variable HF_TOKEN."""


class Engine(ApiModel):
    """Which vLLM build serves, for all pools."""

    image: ShortText | None = None
    """Image of the engine; the operator's default where absent."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a Pod."""
    image_pull_secrets: Annotated[
        list[Name], Field(max_length=16), AfterValidator(_distinct), Schema({"x-kubernetes-list-type": "set"})
    ] = []
    """Names of Secrets for pulling the image."""
    version: Annotated[str, Field(pattern=r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?.*$", max_length=64)] | None = None
    """vLLM version in the image (for instance 0.32.0), where its tag doesn't say so. Flags are rendered for it."""
    command: Annotated[list[ShortText], Field(max_length=32)] = []
    """Command that starts the engine before our arguments; vLLM's API server module where absent."""


class Replicas(ApiModel):
    """Bounds for the number of engines; equal bounds switch autoscaling off."""

    min: Annotated[int, Field(ge=0, le=10000)] = 1
    """Fewest engines. 0 is allowed for batch pools only."""
    max: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Most engines; `min` where absent (a fixed size, at least 1)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.max) || self.max >= (has(self.min) ? self.min : 1)",
                "replicas.max must be at least replicas.min (default 1)",
            )
        )
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"replicas.max is {self.max}, replicas.min is {self.min}: max must be at least min")
        return self

    @property
    def ceiling(self) -> int:
        """Most engines, in pieces."""
        return max(1, self.min) if self.max is None else self.max


class LatencyTarget(ApiModel):
    """`percentile` per cent of the requests must be at or under `target`."""

    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95
    """Share of requests, in per cent."""
    target: Duration = "300ms"
    """Longest time, for instance 300ms; from 10ms to 10m."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.target) || (duration(self.target) >= duration('10ms') && duration(self.target) <= duration('10m'))",
                "slo.ttft.target must be from 10ms to 10m",
            )
        )
    )

    @property
    def seconds(self) -> float:
        """The target in seconds."""
        return duration_seconds(self.target)

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not 0.01 <= self.seconds <= 600:
            raise ValueError(f"target is {self.target}: allowed are 10ms to 10m")
        return self


class Slo(ApiModel):
    """Service level objective of a pool."""

    ttft: LatencyTarget = LatencyTarget()
    """Time to first token."""


class Switch(ApiModel):
    """A feature that is on or off."""

    enabled: bool
    """true or false."""


class Mtp(ApiModel):
    """Multi-token prediction (speculative decoding with Gemma 4's own drafters)."""

    enabled: bool
    """true or false."""
    tokens: Annotated[int, Field(ge=1, le=16)] | None = None
    """Tokens drafted per step; the catalog's value for the model where absent."""
    assistant: ShortText | None = None
    """Drafter's id or path; the catalog's one for the model where absent."""


class EnvVar(ApiModel):
    """One environment variable, as in a Pod."""

    name: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=253)]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Its value."""
    value_from: FreeForm | None = None
    """Where its value comes from, as in a Pod (secretKeyRef, configMapKeyRef, fieldRef)."""


class ImageLimit(ApiModel):
    """Images per request."""

    count: Annotated[int, Field(ge=0, le=256)]
    """Most images in one request; 0 switches images off."""


class VideoLimit(ApiModel):
    """Videos per request."""

    count: Annotated[int, Field(ge=0, le=16)]
    """Most videos in one request; 0 switches video off."""
    frames: Annotated[int, Field(ge=1, le=MAX_VIDEO_FRAMES)] | None = None
    """Frames sampled from a video file; 32 where absent, which is the most that Gemma 4 takes."""


class AudioLimit(ApiModel):
    """Audio clips per request."""

    count: Annotated[int, Field(ge=0, le=16)]
    """Most clips in one request; 0 switches audio off."""


class Modalities(ApiModel):
    """What requests may carry beside text. All counts 0 makes a text-only pool, which frees the encoders' memory."""

    image: ImageLimit = ImageLimit(count=4)
    """Images; 4 per request where absent."""
    video: VideoLimit = VideoLimit(count=1)
    """Videos; 1 per request where absent."""
    audio: AudioLimit = AudioLimit(count=0)
    """Audio; off where absent."""

    @property
    def text_only(self) -> bool:
        """True where no encoder is needed."""
        return not (self.image.count or self.video.count or self.audio.count)


class Resources(ApiModel):
    """Compute resources of an engine, beside its GPUs. Fractions need quotes or a suffix: "0.5" or 500m."""

    requests: Annotated[dict[str, Quantity], Schema({"maxProperties": 32})] = {}
    """As in a Pod."""
    limits: Annotated[dict[str, Quantity], Schema({"maxProperties": 32})] = {}
    """As in a Pod."""


class Pool(ApiModel):
    """One pool: engines of one class behind one Service."""

    class_: Annotated[PoolClass | None, Field(alias="class")] = None
    """interactive (holds the SLO) or batch (throughput); the pool's own name where that is one of the two."""
    replicas: Replicas = Replicas()
    """Number of engines."""
    slo: Slo | None = None
    """Objective that the autoscaler holds; p95 TTFT at or under 300ms for interactive pools where absent."""
    prefix_caching: Switch | None = None
    """Reuse of KV cache between requests with equal beginnings; off for interactive, on for batch where absent."""
    mtp: Mtp | None = None
    """Multi-token prediction; off for interactive; on for batch where the catalog has a drafter for the model."""
    modalities: Modalities = Modalities()
    """Media limits per request."""
    max_model_len: Annotated[int, Field(ge=64, le=1048576)] | None = None
    """Longest prompt plus answer in tokens; 32768 where absent."""
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Requests that run at once in one engine; 64 for interactive, 256 for batch where absent."""
    max_num_batched_tokens: Annotated[int, Field(ge=64, le=262144)] | None = None
    """Tokens per engine step, and with it the encoder's budget; 4096 for interactive, 16384 for batch where absent."""
    kv_cache_dtype: Literal["auto", "fp8"] | None = None
    """Type of the KV cache."""
    tensor_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that share one copy of the model."""
    gpus: Annotated[int, Field(ge=0, le=16)] | None = None
    """GPUs per engine; tensorParallel where absent; 0 for an engine that runs on CPU."""
    gpu_resource: Annotated[str, Field(max_length=253)] = "nvidia.com/gpu"
    """Resource name of a GPU."""
    resources: Resources = Resources()
    """CPU, memory and other resources."""
    shared_memory: Quantity = "2Gi"
    """Size of /dev/shm; it counts against the memory limit."""
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Time that running requests get to finish when an engine is stopped; 30 for interactive, 120 for batch where absent."""
    env: Annotated[
        list[EnvVar],
        Field(max_length=128),
        AfterValidator(_distinct),
        Schema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = []
    """Environment variables, as in a Pod."""
    extra_args: Annotated[list[Annotated[str, Field(max_length=8192)]], Field(max_length=256)] = []
    """Further vLLM arguments, one list item each; they win over ours."""
    node_selector: Labels = {}
    """As in a Pod."""
    tolerations: Annotated[list[FreeForm], Field(max_length=64)] = []
    """As in a Pod."""
    affinity: FreeForm | None = None
    """As in a Pod."""
    topology_spread_constraints: Annotated[list[FreeForm], Field(max_length=16)] = []
    """As in a Pod."""
    priority_class_name: Name | None = None
    """As in a Pod; the operator's class for interactive or batch where absent."""
    runtime_class_name: Name | None = None
    """As in a Pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.gpus) || self.gpus == 0 || self.gpus >= (has(self.tensorParallel) ? self.tensorParallel : 1)",
                "gpus must be at least tensorParallel (or 0 for an engine on CPU)",
            ),
            (
                f"!has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= {VIDEO_TOKENS} || "
                "(has(self.modalities) && has(self.modalities.video) && self.modalities.video.count == 0)",
                f"maxNumBatchedTokens must be at least {VIDEO_TOKENS} while video is on (one video's tokens); "
                "raise it or set modalities.video.count to 0",
            ),
        )
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.gpus not in (None, 0) and self.gpus < self.tensor_parallel:
            raise ValueError(
                f"gpus is {self.gpus}, tensorParallel is {self.tensor_parallel}: gpus must be at least tensorParallel"
            )
        budget = self.max_num_batched_tokens
        if budget is not None and budget < VIDEO_TOKENS and self.modalities.video.count:
            raise ValueError(
                f"maxNumBatchedTokens is {budget}: it must be at least {VIDEO_TOKENS} while video is on (one video's tokens); "
                "raise it or set modalities.video.count to 0"
            )
        return self


class Spec(ApiModel):
    """What is wanted."""

    model: Model
    """The model to serve."""
    engine: Engine = Engine()
    """The vLLM build to serve it with."""
    pools: Annotated[
        dict[Annotated[str, Field(pattern=POOL_NAME)], Annotated[Pool, Schema({"nullable": True})]],
        Field(min_length=1, max_length=8),
        Schema({"minProperties": 1, "maxProperties": 8}),
    ] = {"interactive": Pool(), "batch": Pool()}
    """Pools by name; one `interactive` and one `batch` pool with defaults where absent."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.pools) || self.pools.all(n, n.matches('^[a-z]([-a-z0-9]{0,29}[a-z0-9])?$'))",
                "a pool's name has at most 31 lower-case letters, digits and hyphens, and starts with a letter",
            ),
            (
                "!has(self.pools) || self.pools.all(n, n in ['interactive', 'batch'] || (self.pools[n] != null && has(self.pools[n].class)))",
                "a pool that is not called interactive or batch needs a class: interactive or batch",
            ),
            (
                "!has(self.pools) || self.pools.all(n, self.pools[n] == null || !has(self.pools[n].replicas) || "
                "!has(self.pools[n].replicas.min) || self.pools[n].replicas.min > 0 || "
                "(has(self.pools[n].class) ? self.pools[n].class == 'batch' : n == 'batch'))",
                "replicas.min of an interactive pool must be at least 1: nothing would answer while an engine starts",
            ),
        )
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_pools(cls, data: Any) -> Any:
        """`batch:` without a body means a batch pool with defaults."""
        if isinstance(data, dict) and isinstance(data.get("pools"), dict):
            return {**data, "pools": {name: {} if pool is None else pool for name, pool in data["pools"].items()}}
        return data

    @model_validator(mode="after")
    def _classes(self) -> Self:
        for name, pool in self.pools.items():
            if pool.class_ is None and name not in ("interactive", "batch"):
                raise ValueError(
                    f"pools.{name}.class is not set: a pool that is not called interactive or batch needs one of the two"
                )
            if pool.replicas.min == 0 and self.class_of(name) == "interactive":
                raise ValueError(f"pools.{name}.replicas.min is 0: an interactive pool needs at least 1")
        return self

    def class_of(self, pool: str) -> PoolClass:
        """Class of the pool called `pool`."""
        explicit = self.pools[pool].class_
        return explicit or ("batch" if pool == "batch" else "interactive")


class GemmaServing(ApiModel):
    """A parsed object: identity and spec; status is never read from here."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec
