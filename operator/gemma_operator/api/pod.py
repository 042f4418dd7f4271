"""How the Pods of a pool look: what a Pod spec offers, passed through with Kubernetes' own types."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from gemma_operator.api.base import ApiModel, Labels, Name, Rule, distinct
from gemma_operator.api.kubernetes import (
    SECRET_VARIABLES,
    Affinity,
    Containers,
    EnvFrom,
    EnvVarSource,
    InitContainers,
    PodResourceClaims,
    PodSecurityContext,
    PodTemplateOverlay,
    Probe,
    ResourceClaims,
    SecurityContext,
    Tolerations,
    TopologySpreadConstraints,
    VolumeMounts,
    Volumes,
)
from gemma_operator.api.values import Quantity, Schema

# What the operator mounts by itself: volume -> folder.
OWN_VOLUMES = {
    "shm": "/dev/shm", "cache": "/cache", "tmp": "/tmp", "model": "/models", "chat-template": "/etc/gemma/chat-template",
}  # fmt: skip


class EnvVar(ApiModel):
    """One environment variable, as in a Pod."""

    name: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=253)]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Its value."""
    value_from: EnvVarSource | None = None
    """Where its value comes from, as in a Pod (secretKeyRef, configMapKeyRef, fieldRef)."""

    RULES = (
        Rule(
            "no-secret-in-env",
            f"!has(self.value) || !(self.name in {list(SECRET_VARIABLES)})",
            lambda e: e.value is None or e.name not in SECRET_VARIABLES,
            "a secret must not stand in the spec: use valueFrom.secretKeyRef, model.tokenSecretRef or engine.apiKeySecretRef",
            shows=("name",),
            source="research/gitops.md 6",
        ),
        Rule(
            "env-one-value",
            "!has(self.value) || !has(self.valueFrom)",
            lambda e: e.value is None or e.value_from is None,
            "value and valueFrom are both set: keep one",
            shows=("name",),
        ),
    )


class Resources(ApiModel):
    """Compute resources of an engine, beside its GPUs. Fractions need quotes or a suffix: "0.5" or 500m."""

    requests: Annotated[dict[str, Quantity], Schema({"maxProperties": 32})] = {}
    """As in a Pod."""
    limits: Annotated[dict[str, Quantity], Schema({"maxProperties": 32})] = {}
    """As in a Pod."""
    claims: ResourceClaims = []
    """As in a Pod: which of resourceClaims the engine uses; all of them where absent."""


class PodSettings(ApiModel):
    """What a pool's Pods have beside the engine's own settings. Absent is absent: nothing is written for it."""

    gpu_resource: Annotated[str, Field(min_length=1, max_length=253)] = "nvidia.com/gpu"
    """Resource name of a GPU; not used where resourceClaims bring the GPUs."""
    resources: Resources = Resources()
    """CPU, memory and other resources."""
    resource_claims: PodResourceClaims = []
    """As in a Pod: devices by dynamic resource allocation, in place of gpuResource."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, which counts against the memory limit; 2Gi, or half of a smaller limit, where absent."""
    env: Annotated[
        list[EnvVar],
        Field(max_length=128),
        AfterValidator(distinct),
        Schema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = []
    """Environment variables, as in a Pod; they win over ours."""
    env_from: EnvFrom = []
    """As in a Pod."""
    volumes: Volumes = []
    """Further volumes, as in a Pod."""
    volume_mounts: VolumeMounts = []
    """Further mounts of the engine's container, as in a Pod."""
    init_containers: InitContainers = []
    """As in a Pod; they run before the engine, beside it with restartPolicy Always."""
    sidecars: Containers = []
    """Further containers, as in a Pod."""
    node_selector: Labels = {}
    """As in a Pod."""
    tolerations: Tolerations = []
    """As in a Pod."""
    affinity: Affinity | None = None
    """As in a Pod."""
    topology_spread_constraints: TopologySpreadConstraints = []
    """As in a Pod; where absent, Pods keep apart by zone and node as far as there is room."""
    priority_class_name: Name | None = None
    """As in a Pod; the operator's class for interactive or batch where absent."""
    runtime_class_name: Name | None = None
    """As in a Pod."""
    scheduler_name: Name | None = None
    """As in a Pod."""
    service_account_name: Name | None = None
    """As in a Pod, for instance for a cloud's workload identity; its token is not mounted."""
    pod_labels: Labels = {}
    """Further labels of the Pods, for instance for a queue; never part of a selector."""
    pod_annotations: Annotated[dict[str, Annotated[str, Field(max_length=8192)]], Schema({"maxProperties": 64})] = {}
    """Further annotations of the Pods."""
    pod_security_context: PodSecurityContext | None = None
    """As in a Pod; laid over ours, which runs as user 2000 and never as root."""
    security_context: SecurityContext | None = None
    """As in a container; laid over ours, which drops all capabilities."""
    startup_probe: Probe | None = None
    """As in a Pod, instead of ours, which waits as long as the model's size asks for; without a handler it changes ours."""
    readiness_probe: Probe | None = None
    """As in a Pod, instead of ours; without a handler it changes ours."""
    liveness_probe: Probe | None = None
    """As in a Pod, instead of ours; without a handler it changes ours."""
    pod_template: PodTemplateOverlay | None = None
    """What has no field of its own: part of a Pod template, merged over ours as kubectl patch does ($patch: delete removes)."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "own-volumes",
            f"!has(self.volumes) || self.volumes.all(v, !(v.name in {list(OWN_VOLUMES)}))",
            lambda p: not any(volume.get("name") in OWN_VOLUMES for volume in p.volumes),
            f"volumes {', '.join(OWN_VOLUMES)} are the operator's: choose another name",
        ),
        Rule(
            "own-mounts",
            f"!has(self.volumeMounts) || self.volumeMounts.all(m, !(m.mountPath in {list(OWN_VOLUMES.values())}))",
            lambda p: not any(mount.get("mountPath") in OWN_VOLUMES.values() for mount in p.volume_mounts),
            f"{', '.join(OWN_VOLUMES.values())} are mounted by the operator: choose another mountPath "
            "(model.cache and model.source fill /cache and /models)",
        ),
        Rule(
            "engine-container",
            "!has(self.sidecars) || self.sidecars.all(c, c.name != 'engine')",
            lambda p: not any(container.get("name") == "engine" for container in p.sidecars),
            "a sidecar can't be called engine: that is the engine's own container",
        ),
        Rule(
            "own-labels",
            "!has(self.podLabels) || self.podLabels.all(k, !k.startsWith('gemmaserving.dev/') && !k.startsWith('app.kubernetes.io/'))",
            lambda p: not any(key.startswith(("gemmaserving.dev/", "app.kubernetes.io/")) for key in p.pod_labels),
            "podLabels under gemmaserving.dev/ and app.kubernetes.io/ are the operator's: choose other keys",
            source="research/practice.md B4",
        ),
    )
