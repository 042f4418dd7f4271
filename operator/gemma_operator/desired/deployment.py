"""The Deployment of one pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma_operator.api.serving import GemmaServing, Pool, PoolClass
from gemma_operator.desired import names
from gemma_operator.engine.commandline import PORT, SERVER, drain_seconds, engine_args
from gemma_operator.engine.versions import engine_version

# research/gitops.md section 6: the image's user; caches must be writable for it.
USER = 2000
CACHE = "/cache"
# research/gitops.md section 6 and research/vllm.md section 4.1: vLLM goes on accepting during its drain,
# so an engine must be out of the endpoints before it is told to stop.
PRESTOP_SECONDS = 10
GRACE_MARGIN_SECONDS = 10
# research/vllm.md section 4.1: a cold start may take 15 minutes and more.
STARTUP_BUDGET_SECONDS = 1800
STARTUP_PERIOD_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator's installation decides where a GemmaServing doesn't."""

    engine_image: str
    engine_version: str = ""
    engine_command: tuple[str, ...] = ()
    priority_classes: tuple[tuple[PoolClass, str], ...] = ()


def deployment(serving: GemmaServing, pool_name: str, defaults: Defaults) -> dict[str, Any]:
    """The Deployment of a pool, without `spec.replicas`: who owns that is decided in plan.py.

    Raises UnknownVersion or RefusedArgs where no command line can be rendered.
    """
    spec, pool = serving.spec, serving.spec.pools[pool_name]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(serving, pool_name),
        "spec": {
            "selector": {"matchLabels": names.selector(serving.name, pool_name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "progressDeadlineSeconds": STARTUP_BUDGET_SECONDS + 600,
            "revisionHistoryLimit": 3,
            "template": {
                "metadata": {
                    "labels": {**names.labels(serving.name, pool_name), names.CLASS: spec.class_of(pool_name)},
                    "annotations": {
                        names.SERVING: serving.name,
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(PORT),
                        "prometheus.io/path": "/metrics",
                    },
                },
                "spec": _pod(serving, pool_name, pool, defaults),
            },
        },
    }


def _pod(serving: GemmaServing, pool_name: str, pool: Pool, defaults: Defaults) -> dict[str, Any]:
    spec = serving.spec
    priority = pool.priority_class_name or dict(defaults.priority_classes).get(spec.class_of(pool_name))
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRESTOP_SECONDS + drain_seconds(spec, pool_name) + GRACE_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(serving, pool_name, pool, defaults)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pool.shared_memory}},
            {"name": "cache", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
        "imagePullSecrets": [{"name": name} for name in spec.engine.image_pull_secrets],
        "nodeSelector": pool.node_selector,
        "tolerations": pool.tolerations,
        "affinity": pool.affinity,
        "topologySpreadConstraints": pool.topology_spread_constraints,
        "priorityClassName": priority,
        "runtimeClassName": pool.runtime_class_name,
    }
    return _set_only(pod)


def _container(serving: GemmaServing, pool_name: str, pool: Pool, defaults: Defaults) -> dict[str, Any]:
    engine = serving.spec.engine
    image = engine.image or defaults.engine_image
    version = engine_version(image, engine.version or ("" if engine.image else defaults.engine_version))
    command = engine.command or (() if engine.image else defaults.engine_command) or SERVER
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 10}
    container: dict[str, Any] = {
        "name": "engine",
        "image": image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": [_literal(part) for part in command],
        "args": [_literal(argument) for argument in engine_args(serving.spec, pool_name, version)],
        "env": _environment(serving, pool),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(pool),
        "startupProbe": {
            **health,
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "failureThreshold": STARTUP_BUDGET_SECONDS // STARTUP_PERIOD_SECONDS,
        },
        "readinessProbe": {**health, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 20, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRESTOP_SECONDS}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "cache", "mountPath": CACHE},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return _set_only(container)


def _environment(serving: GemmaServing, pool: Pool) -> list[dict[str, Any]]:
    # The API server stores an empty value as an absent one.
    own = [_set_only(variable.model_dump(by_alias=True, exclude_none=True)) for variable in pool.env]
    taken = {variable["name"] for variable in own}
    ours: list[dict[str, Any]] = [
        {"name": "HOME", "value": CACHE},
        {"name": "USER", "value": "vllm"},
        {"name": "HF_HOME", "value": f"{CACHE}/huggingface"},
        {"name": "VLLM_CACHE_ROOT", "value": f"{CACHE}/vllm"},
        {"name": "TORCHINDUCTOR_CACHE_DIR", "value": f"{CACHE}/inductor"},
        {"name": "TRITON_CACHE_DIR", "value": f"{CACHE}/triton"},
        {"name": "XDG_CACHE_HOME", "value": f"{CACHE}/xdg"},
        {"name": "XDG_CONFIG_HOME", "value": f"{CACHE}/config"},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        {"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "0"},
    ]
    if secret := serving.spec.model.token_secret_ref:
        ours.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}})
    return [variable for variable in ours if variable["name"] not in taken] + own


def _resources(pool: Pool) -> dict[str, Any]:
    gpus = pool.tensor_parallel if pool.gpus is None else pool.gpus
    limits = dict(pool.resources.limits)
    if gpus:
        limits.setdefault(pool.gpu_resource, str(gpus))
    return {key: value for key, value in (("requests", pool.resources.requests), ("limits", limits)) if value}


def _literal(argument: str) -> str:
    """Keep `$` as it is: Kubernetes expands `$(NAME)` and takes `$$` for `$` in command and args."""
    return argument.replace("$", "$$")


def _set_only(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (None, "", [], {}, ())}
