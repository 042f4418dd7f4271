"""The operator's settings: the only reader of the environment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from gemma_operator.api.pool import PoolClass
from gemma_operator.desired import Defaults
from gemma_operator.desired.tenancy import GRANTS, USUAL, Grant

DEFAULT_ENGINE_IMAGE = "vllm/vllm-openai:v0.32.0"


class BadSetting(ValueError):
    """A variable of the environment can't be used; the text names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All durations are in seconds. Without `pod_namespace` there is no election: a run outside of a cluster."""

    namespaces: tuple[str, ...]
    prometheus_url: str
    prometheus_token_file: str
    prometheus_ca_file: str
    prometheus_skip_tls_verify: bool
    prometheus_headers: Mapping[str, str]
    metrics_source: str
    tick_seconds: float
    resync_seconds: float
    metrics_port: int
    health_port: int
    log_level: str
    log_json: bool
    routing: bool
    """The operator may read and write routes and InferencePools."""
    pod_name: str
    pod_namespace: str
    operator_name: str
    defaults: Defaults


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `environment`, by default the process's own. Raises BadSetting."""
    env = os.environ if environment is None else environment
    return Settings(
        namespaces=tuple(part.strip() for part in env.get("GEMMA_WATCH_NAMESPACES", "").split(",") if part.strip()),
        prometheus_url=env.get("GEMMA_PROMETHEUS_URL", "").rstrip("/"),
        prometheus_token_file=env.get("GEMMA_PROMETHEUS_TOKEN_FILE", ""),
        prometheus_ca_file=env.get("GEMMA_PROMETHEUS_CA_FILE", ""),
        prometheus_skip_tls_verify=_choice(env, "GEMMA_PROMETHEUS_SKIP_TLS_VERIFY", "false", ("true", "false"))
        == "true",
        prometheus_headers=_headers(env.get("GEMMA_PROMETHEUS_HEADERS", "")),
        metrics_source=_metrics_source(env),
        tick_seconds=_positive(env, "GEMMA_SCALING_TICK_SECONDS", 15),
        resync_seconds=_positive(env, "GEMMA_RESYNC_SECONDS", 300),
        metrics_port=_port(env, "GEMMA_METRICS_PORT", 8080),
        health_port=_port(env, "GEMMA_HEALTH_PORT", 8081),
        log_level=_choice(env, "GEMMA_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
        log_json=_choice(env, "GEMMA_LOG_FORMAT", "json", ("json", "plain")) == "json",
        routing=_choice(env, "GEMMA_ROUTING", "false", ("true", "false")) == "true",
        pod_name=env.get("POD_NAME", "gemma-operator"),
        pod_namespace=env.get("POD_NAMESPACE", ""),
        operator_name=env.get("GEMMA_OPERATOR_NAME", "gemma-operator"),
        defaults=_defaults(env),
    )


def _defaults(env: Mapping[str, str]) -> Defaults:
    classes: tuple[PoolClass, ...] = ("interactive", "batch")
    named = ((kind, env.get(f"GEMMA_PRIORITY_CLASS_{kind.upper()}", "")) for kind in classes)
    return Defaults(
        engine_image=env.get("GEMMA_ENGINE_IMAGE") or DEFAULT_ENGINE_IMAGE,
        engine_version=env.get("GEMMA_ENGINE_VERSION", ""),
        engine_command=_command(env.get("GEMMA_ENGINE_COMMAND", "")),
        engine_plugin=_choice(env, "GEMMA_ENGINE_PLUGIN", "false", ("true", "false")) == "true",
        priority_classes=tuple((kind, name) for kind, name in named if name),
        tenants_may=_grants(env.get("GEMMA_TENANTS_MAY")),
    )


def _grants(text: str | None) -> tuple[Grant, ...]:
    """Absent is the usual, empty is nothing."""
    if text is None:
        return USUAL
    named = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := sorted(set(named) - set(GRANTS)):
        raise BadSetting(f"GEMMA_TENANTS_MAY has {', '.join(unknown)}: allowed are {', '.join(GRANTS)}")
    return tuple(grant for grant in GRANTS if grant in named)


def _command(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        command = json.loads(text)
    except json.JSONDecodeError:
        command = None
    if not isinstance(command, list) or not all(isinstance(part, str) for part in command):
        raise BadSetting(
            f'GEMMA_ENGINE_COMMAND is {text!r}: it must be a JSON list of strings, for instance ["vllm", "serve"]'
        )
    return tuple(command)


def _headers(text: str) -> dict[str, str]:
    try:
        headers = json.loads(text or "{}")
    except json.JSONDecodeError:
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        # Not shown: it may hold a secret.
        raise BadSetting(
            'GEMMA_PROMETHEUS_HEADERS must be a JSON object of strings, for instance {"X-Scope-OrgID": "a"}'
        )
    return headers


def _metrics_source(env: Mapping[str, str]) -> str:
    """Where the engines' metrics come from; a Prometheus if one is named."""
    is_named = bool(env.get("GEMMA_PROMETHEUS_URL"))
    source = _choice(env, "GEMMA_METRICS_SOURCE", "prometheus" if is_named else "engines", ("prometheus", "engines"))
    if source == "prometheus" and not is_named:
        raise BadSetting("GEMMA_METRICS_SOURCE is 'prometheus': name it in GEMMA_PROMETHEUS_URL, or use engines")
    return source


def _positive(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1
    if not (value > 0 and math.isfinite(value)):
        raise BadSetting(f"{name} is {text!r}: it must be a number above 0")
    return value


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isdecimal() and 0 < int(text) < 1 << 16):
        raise BadSetting(f"{name} is {text!r}: it must be a port, 1 to 65535")
    return int(text)


def _choice(env: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name) or default
    for choice in allowed:
        if value.lower() == choice.lower():
            return choice
    raise BadSetting(f"{name} is {value!r}: it must be one of {', '.join(allowed)}")
