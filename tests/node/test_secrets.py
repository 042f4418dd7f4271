"""Canaries in every Secret that the product touches, and then everything that it says, writes and starts is searched for them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.conftest import MODEL, RELEASE, SYSTEM, Helm, address, await_ready, serving
from tests.node.load import ask
from tests.support.kube import Kube, condition, eventually
from tools.demo import traffic

HUB, KEY, STORE, PROMETHEUS = (f"canary-{name}-5d1f8b" for name in ("hub", "key", "store", "prometheus"))
CANARIES = (HUB, KEY, STORE, PROMETHEUS)
OBJECTS = "gsv,deployment,replicaset,pod,service,poddisruptionbudget,configmap,lease,event,serviceaccount"
SPEC = {
    "model": {"id": MODEL, "tokenSecretRef": {"name": "hub"}},
    "engine": {"apiKeySecretRef": {"name": "key", "key": "key"}},
    "pools": {"interactive": {"envFrom": [{"secretRef": {"name": "store"}}]}},
}


def secret(kube: Kube, name: str, key: str, value: str) -> None:
    kube.run("delete", "secret", name, "--ignore-not-found")
    kube.run("create", "secret", "generic", name, f"--from-literal={key}={value}")


@pytest.fixture(scope="module")
def told(installed: Kube, helm: Helm, kube: Kube) -> Iterator[Kube]:
    """An operator that sends a secret header to Prometheus, and engines with three Secrets: one serves, others fail."""
    secret(installed, "access", "headers", json.dumps({"X-Scope-OrgID": PROMETHEUS}))
    where = ("-n", SYSTEM, "--values", "tests/node/values.yaml", "--wait", "--timeout", "2m")
    source = "extraEnv[0].valueFrom.secretKeyRef"
    helm(
        "upgrade", RELEASE, "charts/gemma-operator", *where, "--set", "extraEnv[0].name=GEMMA_PROMETHEUS_HEADERS",
        "--set", f"{source}.name=access,{source}.key=headers", "--set", "log.level=debug",
    )  # fmt: skip
    for name, key, value in (("hub", "token", HUB), ("key", "key", KEY), ("store", "AWS_SECRET_ACCESS_KEY", STORE)):
        secret(kube, name, key, value)
    refused = {"interactive": {**SPEC["pools"]["interactive"], "extraArgs": ["--max-num-batched-tokens=many"]}}  # type: ignore[index]
    kube.apply(serving("keeper", **SPEC), serving("failing", **{**SPEC, "pools": refused}))
    await_ready(kube, "keeper")
    eventually("the other fails", lambda: condition(kube.get("gsv", "failing"), "Stalled").get("status") == "True", 60)
    ask(address(kube, "keeper-interactive"), traffic.text_body(MODEL, 1))
    yield kube
    helm("upgrade", RELEASE, "charts/gemma-operator", *where)


def cli(kube: Kube, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "PYTHONPATH": "operator"}
    command = [sys.executable, "-m", "gemma_operator", *arguments, "-n", kube.namespace]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def command_lines() -> str:
    """Of every process on this machine, the containers' with it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has just ended
    return "\n".join(line for line in found if "gemma" in line)


def said(kube: Kube, installed: Kube, helm: Helm) -> dict[str, str]:
    """Everything by where it stands."""
    logs = {
        f"log of {pod['metadata']['name']}": space.run(
            "logs", pod["metadata"]["name"], "--all-containers", check=False
        ).stdout
        for space in (kube, installed)
        for pod in space.list("pod")
    }
    engine, operator, prometheus = (
        next(pod["status"]["podIP"] for pod in space.list("pod", selector))
        for space, selector in (
            (kube, "gemmaserving.dev/serving=keeper"),
            (installed, "app.kubernetes.io/component=operator"),
            (installed, "app.kubernetes.io/component=prometheus"),
        )
    )
    return logs | {
        "objects": kube.run("get", OBJECTS, "-A", "-o", "yaml", "--show-managed-fields").stdout,
        "described": kube.run("describe", "gsv,deployment,pod", "-A").stdout,
        "engine's metrics": fetched(f"http://{engine}:8000/metrics"),
        "operator's metrics": fetched(f"http://{operator}:8080/metrics"),
        "Prometheus' configuration": fetched(f"http://{prometheus}:9090/api/v1/status/config"),
        "Prometheus' targets": fetched(f"http://{prometheus}:9090/api/v1/targets"),
        "Prometheus' series": fetched(f"http://{prometheus}:9090/api/v1/series?match[]=%7B__name__!=%22%22%7D"),
        "Helm's release": helm("get", "all", RELEASE, "-n", SYSTEM),
        "top": cli(kube, "top", "--once"),
        "top as JSON": cli(kube, "top", "-o", "json"),
        "explain": cli(kube, "explain", "keeper"),
        "command lines": command_lines(),
    }  # fmt: skip


def test_no_canary_is_told_anywhere(told: Kube, installed: Kube, helm: Helm) -> None:
    everything = said(told, installed, helm)
    assert "keeper" in everything["top"]
    assert "standin" in everything["command lines"]
    assert any("keeper" in text for where, text in everything.items() if where.startswith("log of gemma-operator"))
    assert [where for where, text in everything.items() if not text.strip() and not where.startswith("log of")] == []
    spelled = {form for canary in CANARIES for form in (canary, base64.b64encode(canary.encode()).decode())}
    assert [(where, form) for where, text in everything.items() for form in spelled if form in text] == []


def test_the_engine_has_them_all_the_same(told: Kube) -> None:
    (pod,) = told.list("pod", "gemmaserving.dev/serving=keeper")
    variables = told.run("exec", pod["metadata"]["name"], "--", "env").stdout
    assert [canary for canary in (HUB, KEY, STORE) if canary not in variables] == []
