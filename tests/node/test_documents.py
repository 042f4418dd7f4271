"""What the documents tell a user to look at, looked at: every command that only reads runs on a node that serves."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from gemma_operator.api.serving import KIND
from tests.node.conftest import RELEASE, SYSTEM, await_ready, serving
from tests.support.documents import DOCUMENTS, ROOT, commands
from tests.support.kube import Kube
from tools.cluster import binaries

NAME = "documented"
READS = r"gemma-operator (explain|top|render) \S|kubectl (get|describe|logs|explain|rollout history) \S"
SHOWN = {
    found["metadata"]["name"]
    for example in (ROOT / "examples").rglob("*.yaml")
    for found in yaml.safe_load_all(example.read_text())
    if found.get("kind") == KIND
}
"""Names of the examples' servings."""
NOT_HERE = {
    r"podmonitor|prometheus|httproute|kustomization": "the server doesn't have a resource type",
    r"--previous": "previous terminated container",
}
"""Kinds whose CRDs this node doesn't have, and a container that died: what kubectl says there."""


def read_commands() -> list[str]:
    found = {shlex.join(command) for document in DOCUMENTS for command in commands(document)}
    return sorted(text for text in found if re.match(READS, text) and "|" not in text)


@pytest.fixture(scope="module")
def pod(kube: Kube) -> str:
    """An engine's Pod of a serving that is Ready."""
    kube.apply(serving(NAME))
    await_ready(kube, NAME, 120)
    return str(kube.list("pod")[0]["metadata"]["name"])


def filled(command: str, kube: Kube, pod: str) -> list[str]:
    """With what a reader puts in for the names in capitals, and for an example's serving and namespace."""
    namespace = SYSTEM if re.search(r"RELEASE|\blease\b", command) else kube.namespace
    meant = {
        r"RELEASE-gemma-operator": RELEASE,
        r"NAME-POOL": f"{NAME}-interactive",
        r"NAME": NAME,
        r"NAMESPACE|team-a": namespace,
        r"POD": pod,
        r"FILE": "examples/quick-start/serving.yaml",
        **dict.fromkeys(SHOWN, NAME),
        **{f"{name}-interactive": f"{NAME}-interactive" for name in SHOWN},
    }
    words = shlex.split(command)
    for index, word in enumerate(words):
        if "=" not in word or word.startswith("gsv"):  # a path into a status names no object
            for shown, value in meant.items():
                words[index] = re.sub(rf"^(\w+/)?({shown})$", rf"\g<1>{value}", words[index])
    return words


@pytest.mark.parametrize("command", read_commands())
def test_a_command_of_the_documents_shows_something(kube: Kube, pod: str, command: str) -> None:
    words = filled(command, kube, pod)
    if words[0] == "kubectl":
        words = [str(binaries.ensure_one("kubectl")), "-n", kube.namespace, *words[1:]]
    else:
        at_home = [] if {"-n", "-A", "render"} & set(words) else ["-n", kube.namespace]
        once = ["--once"] if words[1] == "top" and "--once" not in words else []
        words = [sys.executable, "-m", "gemma_operator", *words[1:], *at_home, *once]
    done = subprocess.run(
        words,
        env={**os.environ, "KUBECONFIG": str(kube.kubeconfig), "PYTHONPATH": "operator"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    excuse = next((said for what, said in NOT_HERE.items() if re.search(what, command)), None)
    if done.returncode and excuse:
        assert excuse in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() or "No resources found" in done.stderr or "jsonpath" in command
