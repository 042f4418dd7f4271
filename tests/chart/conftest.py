"""Fixture `helm`: renders the chart with the real program."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.cluster.binaries import ensure_one

CHART = Path(__file__).resolve().parents[2] / "charts" / "gemma-operator"
VALUES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
Manifest = dict[str, Any]


def find_program(name: str) -> str:
    """Path of a program: from the variable of its name, else as tools/cluster finds or compiles it."""
    return os.environ.get(name.upper()) or str(ensure_one(name))


@dataclass(frozen=True)
class Helm:
    program: str

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)

    @cache  # noqa: B019 - one object per session
    def text(self, *arguments: str, values: str = "", release: str = "r", namespace: str = "system") -> str:
        """What `helm template` prints; `values` names a file in ci/, `arguments` are further ones such as --set."""
        files = ["--values", str(CHART / "ci" / f"{values}-values.yaml")] if values else []
        done = self.run("template", release, CHART, "--namespace", namespace, *files, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def render(self, *arguments: str, **options: str) -> list[Manifest]:
        return [document for document in yaml.safe_load_all(self.text(*arguments, **options)) if document]

    def refusal(self, *arguments: str) -> str:
        """The message with which the chart is refused."""
        done = self.run("template", "r", CHART, *arguments)
        assert done.returncode != 0, f"accepted: {arguments}"
        return done.stderr

    def one(self, kind: str, name: str, *arguments: str, **options: str) -> Manifest:
        (found,) = [m for m in self.render(*arguments, **options) if (m["kind"], m["metadata"]["name"]) == (kind, name)]
        return found

    @staticmethod
    def names(manifests: list[Manifest], *kinds: str) -> set[str]:
        return {m["metadata"]["name"] for m in manifests if m["kind"] in kinds}

    def deployments(self, *arguments: str, **options: str) -> list[Manifest]:
        return [manifest for manifest in self.render(*arguments, **options) if manifest["kind"] == "Deployment"]

    def pod_specs(self, *arguments: str, **options: str) -> list[Manifest]:
        """Of the Deployments and of the test."""
        pods = [m["spec"] for m in self.render(*arguments, **options) if m["kind"] == "Pod"]
        return [m["spec"]["template"]["spec"] for m in self.deployments(*arguments, **options)] + pods

    def operator(self, *arguments: str, **options: str) -> Manifest:
        """Pod spec of the operator of release `r`."""
        spec: Manifest = self.one("Deployment", "r-gemma-operator", *arguments, **options)["spec"]["template"]["spec"]
        return spec

    def operator_env(self, *arguments: str, **options: str) -> dict[str, Any]:
        """Environment of the operator container of release `r`: values, or where they come from."""
        (container,) = self.operator(*arguments, **options)["containers"]
        env = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
        assert len(env) == len(container["env"]), "the API server refuses a name given twice"
        return env


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(find_program("helm"))


@pytest.fixture(scope="session")
def promtool() -> str:
    return find_program("promtool")


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(params=["", *VALUES])
def values(request: pytest.FixtureRequest) -> str:
    """Each values file of ci/ in turn, and none."""
    return str(request.param)
