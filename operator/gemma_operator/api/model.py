"""Which model is served, where its weights come from, and where they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gemma_operator.api.base import ApiModel, Name, Rule, SecretKey, ShortText, Switch, distinct
from gemma_operator.api.values import FreeForm, Quantity, Schema

Precision = Literal["bf16", "fp8", "nvfp4", "w4a16"]
# The engine takes a value that begins with a hyphen for another flag.
Argument = Annotated[str, Field(min_length=1, max_length=512, pattern="^[^-]")]
RelativePath = Annotated[
    str, Field(max_length=512, pattern=r"^([^/.][^/]*|\.[^/.][^/]*)(/([^/.][^/]*|\.[^/.][^/]*))*$")
]


class HubSource(ApiModel):
    """A hub that is not the public one."""

    endpoint: Annotated[str, Field(pattern="^https?://[^ ]+$", max_length=512)]
    """Address of the hub or mirror (environment variable HF_ENDPOINT)."""


class PvcSource(ApiModel):
    """Weights on a PersistentVolumeClaim, mounted read-only."""

    claim_name: Name
    """Name of the claim in the namespace of the GemmaServing."""
    path: RelativePath | None = None
    """Folder of the model within the volume; its root where absent."""


class ImageSource(ApiModel):
    """Weights in an OCI image, mounted read-only as an image volume (Kubernetes 1.35, or 1.31 with its feature gate)."""

    reference: ShortText
    """Reference of the image, best with a digest."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a Pod."""
    path: RelativePath | None = None
    """Folder of the model within the image; its root where absent."""


class ObjectStoreSource(ApiModel):
    """Weights in an object store, read straight into memory by the Run:ai streamer (--load-format runai_streamer)."""

    uri: Annotated[str, Field(pattern=r"^(s3|gs|az)://[^ ]+$", max_length=1024)]
    """Address of the model's folder, for instance s3://models/gemma-4-E4B-it."""
    secret_name: Name | None = None
    """Secret whose keys become environment variables (for instance AWS_ACCESS_KEY_ID); none with a workload identity."""
    endpoint: Annotated[str, Field(pattern="^https?://[^ ]+$", max_length=512)] | None = None
    """Address of an S3-compatible store (AWS_ENDPOINT_URL), which is asked for ENDPOINT/BUCKET unless its host is amazonaws.com's."""
    region: ShortText | None = None
    """Region of the store (AWS_REGION and AWS_DEFAULT_REGION)."""


class Source(ApiModel):
    """Where the weights come from: one of these; the public hub where absent."""

    hub: HubSource | None = None
    """A mirror of the hub."""
    pvc: PvcSource | None = None
    """A PersistentVolumeClaim."""
    image: ImageSource | None = None
    """An OCI image."""
    object_store: ObjectStoreSource | None = None
    """An object store."""

    RULES = (
        Rule(
            "one-source",
            "[has(self.hub), has(self.pvc), has(self.image), has(self.objectStore)].filter(x, x).size() == 1",
            lambda s: sum(x is not None for x in (s.hub, s.pvc, s.image, s.object_store)) == 1,
            "exactly one of hub, pvc, image and objectStore is needed: keep one",
        ),
    )


class Cache(ApiModel):
    """A volume for downloaded weights and compiled kernels, which makes the next start faster; an empty folder per Pod where absent."""

    claim_name: Name | None = None
    """An existing PersistentVolumeClaim."""
    size: Quantity | None = None
    """Size of a claim that the operator makes; it is deleted with the GemmaServing."""
    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """Storage class of that claim; "" for none, the cluster's default where absent."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteMany"
    """ReadWriteOnce ties all engines to one node, and an update stops the old engine before the new one starts."""

    RULES = (
        Rule(
            "cache-one-claim",
            "has(self.claimName) != has(self.size)",
            lambda c: (c.claim_name is None) != (c.size is None),
            "exactly one of claimName (an existing claim) and size (a new one) is needed",
        ),
        Rule(
            "cache-class-of-new",
            "!has(self.storageClassName) || has(self.size)",
            lambda c: c.storage_class_name is None or c.size is not None,
            "storageClassName goes with size: an existing claim has its class already",
            shows=("storageClassName",),
        ),
    )


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the namespace of the GemmaServing."""

    name: Name
    """Name of the ConfigMap."""
    key: Name = "template.jinja"
    """Key within it."""


class Model(ApiModel):
    """Which model is served."""

    id: Argument
    """Model id on the hub (for instance google/gemma-4-E4B-it) or an absolute path inside the engine image; what is
    known of the model is looked up by it."""
    revision: Argument | None = None
    """Commit, branch or tag on the hub (--revision). Pin a commit for repeatable starts."""
    precision: Precision | None = None
    """Number format of the weights: chooses the checkpoint and its flags from the catalog; the checkpoint of the id itself where absent."""
    checkpoint: Argument | None = None
    """Checkpoint to load (hub id or path) instead of the catalog's one for the precision (--model)."""
    served_name: Argument | None = None
    """Name that clients put in `model`, and label of the engine's metrics (--served-model-name); the id where absent."""
    aliases: Annotated[
        list[Argument], Field(max_length=16), AfterValidator(distinct), Schema({"x-kubernetes-list-type": "set"})
    ] = []
    """Further names that clients may use (--served-model-name)."""
    token_secret_ref: SecretKey | None = None
    """Secret with the hub token, given to the engine as environment variable HF_TOKEN."""
    source: Source | None = None
    """Where the weights come from; the public hub where absent."""
    cache: Cache | None = None
    """Volume for weights and compile cache."""
    load_format: (
        Literal["auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded",
                "sharded_state", "tensorizer", "dummy"] | None
    ) = None  # fmt: skip
    """How weights are read (--load-format); runai_streamer for an object store, vLLM's own choice else, where absent."""
    loader_config: FreeForm | None = None
    """Settings of the loader, for instance {"concurrency": 16} (--model-loader-extra-config)."""
    reasoning: Switch | None = None
    """Put the model's thoughts into their own field (--reasoning-parser gemma4); on for models of the catalog where absent."""
    tool_calling: Switch | None = None
    """Answer tool calls (--enable-auto-tool-choice --tool-call-parser gemma4); on for models of the catalog where absent."""
    chat_template: ConfigMapKey | None = None
    """Chat template to use instead of the checkpoint's own (--chat-template)."""

    RULES = (
        Rule(
            "token-needs-hub",
            "!has(self.tokenSecretRef) || !has(self.source) || has(self.source.hub)",
            lambda m: m.token_secret_ref is None or m.source is None or m.source.hub is not None,
            "tokenSecretRef is for a hub, and source names something else: remove one of the two",
        ),
        Rule(
            "revision-needs-hub",
            "!has(self.revision) || !has(self.source) || has(self.source.hub)",
            lambda m: m.revision is None or m.source is None or m.source.hub is not None,
            "revision is for a hub, and source names something else: remove one of the two",
            shows=("revision",),
        ),
        Rule(
            "store-is-streamed",
            "!has(self.source) || !has(self.source.objectStore) || !has(self.loadFormat) || "
            "self.loadFormat in ['auto', 'runai_streamer', 'runai_streamer_sharded']",
            lambda m: (
                not (m.source and m.source.object_store)
                or m.load_format in (None, "auto", "runai_streamer", "runai_streamer_sharded")
            ),
            "an object store is read by runai_streamer or runai_streamer_sharded: remove loadFormat, or use one of them",
            shows=("loadFormat",),
            source="vLLM config/vllm.py",
        ),
    )
