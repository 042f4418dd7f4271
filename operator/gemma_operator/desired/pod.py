"""The Pod template of a pool."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma_operator.api.kubernetes import node_at, unions
from gemma_operator.api.pod import OWN_VOLUMES
from gemma_operator.api.pool import PoolClass
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.desired.overlay import merge
from gemma_operator.desired.tenancy import USUAL, Grant
from gemma_operator.engine import plugin
from gemma_operator.engine.commandline import Command, engine_command
from gemma_operator.engine.environment import Variable, environment, startup_budget_seconds
from gemma_operator.engine.findings import Finding, RefusedSpec
from gemma_operator.engine.settings import PORT, to_json
from gemma_operator.engine.versions import engine_version
from gemma_operator.engine.view import PoolView, drain_seconds, served_name

# research/gitops.md section 6: the image's user; caches must be writable for it.
USER = 2000
# research/gitops.md section 6 and research/vllm.md section 4.1: vLLM goes on accepting during its drain,
# so an engine must be out of the endpoints before it is told to stop.
PRESTOP_SECONDS = 10
GRACE_MARGIN_SECONDS = 10
STARTUP_PERIOD_SECONDS = 2
# The plugin's probe sends golden requests once per start, and the first of each kind may have to compile.
GOLDEN_SECONDS = 120
_PROBE = node_at("Probe")
# Flags that don't change what is compiled: pools that differ only by these share their cache.
_NOT_COMPILED = (
    "--served-model-name", "--host", "--port", "--shutdown-timeout", "--api-server-count", "--custom-histogram-buckets",
    "--max-num-queued-tokens", "--max-num-queued-reqs", "--reasoning-parser", "--tool-call-parser",
    "--enable-auto-tool-choice", "--chat-template", "--media-io-kwargs", "--load-format", "--model-loader-extra-config",
    "--enable-logging-iteration-details", "--disable-log-stats", "--middleware", "--ec-manager-config",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator's installation decides where a GemmaServing doesn't."""

    engine_image: str
    engine_version: str = ""
    engine_command: tuple[str, ...] = ()
    engine_plugin: bool = False
    priority_classes: tuple[tuple[PoolClass, str], ...] = ()
    tenants_may: tuple[Grant, ...] = USUAL


@dataclass(frozen=True)
class Engine:
    """One pool's engine: how it is started, in which image and environment."""

    view: PoolView
    image: str
    server: tuple[str, ...]
    command: Command
    environment: tuple[Variable, ...]


def engine_of(serving: GemmaServing, pool: str, defaults: Defaults) -> Engine:
    """What a pool's engine runs. Raises UnknownVersion or RefusedSpec."""
    own = serving.spec.engine
    image = own.image or defaults.engine_image
    version = engine_version(image, own.version or ("" if own.image else defaults.engine_version))
    has_plugin = (not own.image and defaults.engine_plugin) if own.plugin is None else own.plugin
    view = PoolView(serving.spec, pool, version, custom_command=bool(own.command), plugin=has_plugin)
    command = engine_command(view)
    server = tuple(own.command) or (() if own.image else defaults.engine_command) or command.server
    return Engine(view, image, server, command, environment(view, _compile_cache(image, command)))


def _compile_cache(image: str, command: Command) -> str:
    """Name of the folder for what an engine compiles: equal for pools whose engines compile the same."""
    compiled = [[s.flag, *s.values] for s in command.settings if s.flag not in _NOT_COMPILED]
    return hashlib.sha256(to_json([image, compiled, command.extra]).encode()).hexdigest()[:12]


def pod_template(serving: GemmaServing, pool_name: str, engine: Engine, defaults: Defaults) -> dict[str, Any]:
    """Labels, annotations and spec of a pool's Pods. Raises RefusedSpec where the overlay would break the operator."""
    pool, spec = engine.view.pool, serving.spec
    template = {
        "metadata": {
            "labels": {
                **pool.pod_labels,
                **names.labels(serving.name, pool_name),
                names.CLASS: spec.class_of(pool_name),
            },
            "annotations": {
                **pool.pod_annotations,
                names.SERVING: serving.name,
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(PORT),
                "prometheus.io/path": "/metrics",
            },
        },
        "spec": _pod(serving, pool_name, engine, defaults),
    }
    if not pool.pod_template:
        return template
    try:
        return merge(template, pool.pod_template)
    except ValueError as error:
        text = f"{engine.view.path}.podTemplate{error}"
        raise RefusedSpec((Finding("InvalidPodTemplate", "refuse", text),)) from error


def _pod(serving: GemmaServing, pool_name: str, engine: Engine, defaults: Defaults) -> dict[str, Any]:
    spec, pool = serving.spec, engine.view.pool
    priority = pool.priority_class_name or dict(defaults.priority_classes).get(spec.class_of(pool_name))
    security = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod: dict[str, Any] = {
        "serviceAccountName": pool.service_account_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRESTOP_SECONDS + drain_seconds(spec, pool_name) + GRACE_MARGIN_SECONDS,
        "securityContext": {**security, **(pool.pod_security_context or {})},
        "initContainers": pool.init_containers,
        "containers": [_container(engine), *pool.sidecars],
        "volumes": [*_volumes(serving, engine), *pool.volumes],
        "imagePullSecrets": [{"name": name} for name in spec.engine.image_pull_secrets],
        "resourceClaims": pool.resource_claims,
        "nodeSelector": pool.node_selector,
        "tolerations": pool.tolerations,
        "affinity": pool.affinity,
        "topologySpreadConstraints": pool.topology_spread_constraints or _spread(serving.name, pool_name),
        "priorityClassName": priority,
        "runtimeClassName": pool.runtime_class_name,
        "schedulerName": pool.scheduler_name,
    }
    return _set_only(pod)


def _spread(serving: str, pool: str) -> list[dict[str, Any]]:
    """Apart by zone and node as far as there is room: one lost node should not take a whole pool."""
    selector = {"matchLabels": names.selector(serving, pool)}
    return [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def _volumes(serving: GemmaServing, engine: Engine) -> list[dict[str, Any]]:
    model, cache = serving.spec.model, serving.spec.model.cache
    claim = (cache.claim_name or names.cache_name(serving.name)) if cache else None
    kept: dict[str, Any] = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": engine.view.pool.shm}},
        {"name": "cache", **kept},
        {"name": "tmp", "emptyDir": {}},
    ]
    if model.source and (pvc := model.source.pvc):
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": pvc.claim_name, "readOnly": True}})
    if model.source and (image := model.source.image):
        volumes.append(
            {"name": "model", "image": _set_only({"reference": image.reference, "pullPolicy": image.pull_policy})}
        )
    if template := model.chat_template:
        items = [{"key": template.key, "path": template.key}]
        volumes.append({"name": "chat-template", "configMap": {"name": template.name, "items": items}})
    return volumes


def _mounts(serving_volumes: list[str], read_only: Mapping[str, bool]) -> list[dict[str, Any]]:
    return [
        {"name": name, "mountPath": OWN_VOLUMES[name]} | ({"readOnly": True} if read_only.get(name) else {})
        for name in serving_volumes
    ]


def _container(engine: Engine) -> dict[str, Any]:
    spec, pool = engine.view.spec, engine.view.pool
    source = spec.model.source
    mounted = ["shm", "cache", "tmp"]
    mounted += ["model"] if source and (source.pvc or source.image) else []
    mounted += ["chat-template"] if spec.model.chat_template else []
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 10}
    fit = _fitness(engine.view) if engine.view.plugin else None
    budget = startup_budget_seconds(engine.view)
    startup = {
        **(fit or health),
        "periodSeconds": STARTUP_PERIOD_SECONDS,
        "failureThreshold": budget // STARTUP_PERIOD_SECONDS,
        **({"timeoutSeconds": GOLDEN_SECONDS} if fit else {}),
    }
    container: dict[str, Any] = {
        "name": "engine",
        "image": engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": [_literal(part) for part in engine.server],
        "args": [_literal(argument) for argument in engine.command.args],
        "env": _variables(engine),
        "envFrom": [*_store_secret(engine), *pool.env_from],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(engine),
        "startupProbe": _probe(pool.startup_probe, startup),
        "readinessProbe": _probe(pool.readiness_probe, {**(fit or health), "periodSeconds": 5, "failureThreshold": 3}),
        "livenessProbe": _probe(pool.liveness_probe, {**health, "periodSeconds": 20, "failureThreshold": 6}),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRESTOP_SECONDS}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(pool.security_context or {}),
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*_mounts(mounted, {"model": True, "chat-template": True}), *pool.volume_mounts],
    }
    return _set_only(container)


def _fitness(view: PoolView) -> dict[str, Any]:
    """The plugin's probe: the model is served, awake, and its vision encoder has been checked."""
    return {
        "exec": {"command": [_literal(part) for part in plugin.probe(served_name(view.spec))]},
        "timeoutSeconds": 20,
    }


def _probe(own: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user's probe; one that says not what to ask changes ours."""
    return own if own and unions(_PROBE) & own.keys() else {**ours, **(own or {})}


def _variables(engine: Engine) -> list[dict[str, Any]]:
    own = [variable.model_dump(by_alias=True, exclude_none=True) for variable in engine.view.pool.env]
    taken = {variable["name"] for variable in own}
    ours = [variable.as_pod_field() for variable in engine.environment if variable.name not in taken]
    # The API server stores an empty value as an absent one.
    return [_set_only(variable) for variable in (*ours, *own)]


def _store_secret(engine: Engine) -> list[dict[str, Any]]:
    source = engine.view.spec.model.source
    name = source.object_store.secret_name if source and source.object_store else None
    return [{"secretRef": {"name": name}}] if name else []


def _resources(engine: Engine) -> dict[str, Any]:
    pool = engine.view.pool
    limits = dict(pool.resources.limits)
    if pool.gpu_count and not pool.resource_claims:
        limits.setdefault(pool.gpu_resource, str(pool.gpu_count))
    claims = pool.resources.claims or [{"name": claim["name"]} for claim in pool.resource_claims]
    return _set_only({"requests": pool.resources.requests, "limits": limits, "claims": claims})


def _literal(argument: str) -> str:
    """Keep `$` as it is: Kubernetes expands `$(NAME)` and takes `$$` for `$` in command and args, and in the commands of probes."""
    return argument.replace("$", "$$")


def _set_only(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (None, "", [], {}, ())}
