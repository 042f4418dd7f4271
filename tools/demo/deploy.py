"""Brings up what the demo shows, by the commands that a user would type, and takes it down again."""

import asyncio
import difflib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tools.cluster import binaries
from tools.demo.console import DemoError, Shell, say
from tools.demo.watch import Watch

RELEASE, SYSTEM_NAMESPACE, NAMESPACE = "gemma-operator", "gemma-system", "gemma-demo"
EXAMPLES = {"standin": "examples/quick-start/serving.yaml", "vllm": "examples/tiny-cpu/serving.yaml"}
OVERLAY = "tools/demo/no-gpu-overlay.yaml"
VALUES = "tools/demo/values-demo.yaml"
ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
IMAGES = {"standin": ("operator", "prometheus"), "vllm": ("operator", "prometheus", "engine-cpu")}
PRETENDED_GPUS = 8
READY_WITHIN_SECONDS = {"standin": 120.0, "vllm": 600.0}

_context = os.environ.get("CONTEXT", "")
KUBECTL = ["kubectl", *(["--context", _context] if _context else [])]
HELM = ["helm", *(["--kube-context", _context] if _context else [])]


def cluster_exists(shell: Shell) -> bool:
    """Whether a cluster runs that isn't ours to take down."""
    return bool(shell.read([PYTHON, "-m", "tools.cluster", "kubeconfig"], needed=False))


def start_cluster(shell: Shell) -> None:
    # All that this demo will need, in one go: the builds share two cores better than one after the other.
    programs = ("helm", "kubectl", "prometheus", *(() if _context else binaries.NODE))
    shell.show([PYTHON, "-m", "tools.cluster", "build", "--tools", ",".join(programs)])
    shell.show([PYTHON, "-m", "tools.cluster", "up", "--gpus", str(PRETENDED_GPUS)])
    use_cluster(shell)


def use_cluster(shell: Shell) -> None:
    """Take over KUBECONFIG and PATH, as a user's shell would with eval."""
    exports = f'eval "$({PYTHON} -m tools.cluster env)" && env -0'
    for pair in shell.read(["sh", "-c", exports]).split("\0"):
        name, separator, value = pair.partition("=")
        if separator:
            shell.environment[name] = value


def load_images(shell: Shell, engine: str) -> None:
    names = IMAGES[engine]
    shell.show([PYTHON, "-m", "tools.images", "build", *names])
    archives = [shell.read([PYTHON, "-m", "tools.images", "archive", name]).strip() for name in names]
    shell.show([PYTHON, "-m", "tools.cluster", "load", *archives])


def install_chart(shell: Shell) -> None:
    if shell.read([*HELM, "status", RELEASE, "--namespace", SYSTEM_NAMESPACE], needed=False):
        say("An earlier demo is still installed here: removing it first.")
        remove(shell)
    where = ["--namespace", SYSTEM_NAMESPACE, "--create-namespace"]
    command = [*HELM, "install", RELEASE, "charts/gemma-operator", *where, "--values", VALUES]
    shell.show([*command, "--wait", "--timeout", "2m"])


def apply_example(shell: Shell, engine: str, folder: Path) -> tuple[str, str]:
    """Apply the example for an engine; return the object's name and its YAML."""
    path = Path(EXAMPLES[engine])
    if engine == "standin" and not _has_gpus(shell):
        path = _with_overlay(path, folder)
    text = (ROOT / path).read_text()
    if not shell.read([*KUBECTL, "get", "namespace", NAMESPACE], needed=False):
        shell.show([*KUBECTL, "create", "namespace", NAMESPACE])
    shell.show([*KUBECTL, "apply", "--namespace", NAMESPACE, "-f", str(path)])
    return str(yaml.safe_load(text)["metadata"]["name"]), text


def _has_gpus(shell: Shell) -> bool:
    """Whether a node offers GPUs; our own one pretends some, a cluster of the user's may have none."""
    return bool(
        shell.read([*KUBECTL, "get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"]).strip()
    )


def _with_overlay(path: Path, folder: Path) -> Path:
    """The example changed for a cluster without GPUs, in a file of its own; says what was changed and why."""
    overlay = (ROOT / OVERLAY).read_text()
    example = yaml.safe_load((ROOT / path).read_text())
    changed = merge_patch(example, yaml.safe_load(overlay))
    before, after = (yaml.safe_dump(text, sort_keys=False) for text in (example, changed))
    say(f"{path} with the changes of {OVERLAY}:")
    say("\n".join(line[2:] for line in overlay.splitlines() if line.startswith("# ")))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "example", "applied", lineterm="", n=1)
    say("\n".join(lines), indent=8)
    applied = folder / "applied.yaml"
    applied.write_text(after)
    return applied


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


async def await_ready(watch: Watch, within: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Wait for Ready=True, telling every change on the way."""
    began, told = clock(), ""
    while True:
        status = await watch.status()
        conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
        line = _state(status, conditions)
        if line != told:
            say(f"{clock() - began:4.0f} s  {line}")
            told = line
        if conditions.get("Ready", {}).get("status") == "True":
            return
        if conditions.get("Stalled", {}).get("status") == "True":
            raise DemoError(f"the GemmaServing is stalled: {conditions['Stalled'].get('message', 'no message')}")
        if clock() - began > within:
            raise DemoError(f"the GemmaServing was not Ready within {within:.0f} s: {line}")
        await asyncio.sleep(0.5)


def _state(status: dict[str, Any], conditions: dict[str, Any]) -> str:
    pools = [f"{name} {p.get('ready', 0)}/{p.get('desired', '?')}" for name, p in (status.get("pools") or {}).items()]
    ready = conditions.get("Ready", {})
    return f"{', '.join(pools) or 'no pool yet'}; Ready={ready.get('status', '-')} {ready.get('message', '')}".rstrip()


def troubled_pods(shell: Shell) -> list[str]:
    """Each container of ours that isn't Ready, with the kubelet's reason and the last line of its log."""
    found = []
    for namespace in (SYSTEM_NAMESPACE, NAMESPACE):
        listed = shell.read([*KUBECTL, "get", "pods", "--namespace", namespace, "-o", "json"], needed=False)
        for pod in json.loads(listed or '{"items": []}')["items"]:
            for container in pod["status"].get("containerStatuses", []):
                if not container["ready"]:
                    name = pod["metadata"]["name"]
                    log = shell.read([*KUBECTL, "logs", "--namespace", namespace, name, "--tail=1"], needed=False)
                    waiting = container["state"].get("waiting") or {}
                    reason = " ".join(waiting.get(part, "") for part in ("reason", "message")).strip()
                    found.append(
                        f"Pod {name}: {reason or 'not Ready'}; its log ends with: {log.strip() or '(nothing)'}"
                    )
    return found


def diagnose(shell: Shell, folder: Path) -> Path:
    """Write down what someone needs to find out why it failed."""
    operator = f"deployment/{RELEASE}"
    questions = (
        ["get", "pods", "--all-namespaces", "-o", "wide"],
        ["get", "gemmaservings", "--all-namespaces", "-o", "yaml"],
        ["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        ["logs", "--namespace", SYSTEM_NAMESPACE, operator, "--tail=300"],
        ["logs", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/name=gemma-engine", "--tail=60", "--prefix"],
    )
    parts = [f"$ kubectl {' '.join(q)}\n{shell.read([*KUBECTL, *q], needed=False) or '(failed)'}" for q in questions]
    file = folder / "diagnostics.txt"
    file.write_text("\n\n".join(parts))
    return file


def remove(shell: Shell) -> None:
    """Take the demo's objects out of a cluster that stays; the CRD stays as well, as the chart keeps it."""
    for command in (
        [*KUBECTL, "delete", "namespace", NAMESPACE, "--ignore-not-found"],
        [*HELM, "uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--ignore-not-found", "--wait"],
        [*KUBECTL, "delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found"],
    ):
        shell.show(command)


def stop(shell: Shell) -> None:
    """End the cluster; in someone else's (CONTEXT) only the demo's objects go."""
    if _context:
        use_cluster(shell)
        remove(shell)
        return
    shell.show([PYTHON, "-m", "tools.cluster", "down"])
