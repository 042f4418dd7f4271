"""Argo CD's Applications as a test sees them: a git repository on disk, the state of one Application, and all states in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.support.kube import Kube, eventually
from tools.cluster import binaries

REFRESH = "argocd.argoproj.io/refresh"


class Repository:
    """What the documentation calls your repository: the chart, and a folder of GemmaServings; Argo CD reads its bare twin."""

    def __init__(self, folder: Path) -> None:
        self._tree = folder / "tree"
        self._bare = folder / "models.git"
        self.url = f"file://{self._bare}"
        shutil.copytree("charts/gemma-operator", self._tree / "charts/gemma-operator")
        shutil.copytree("examples/argocd/servings", self._tree / "servings")
        self._git("init", "-q", "-b", "main")
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self._bare)], check=True)
        self.revision = self.commit("the chart and a GemmaServing")

    def edit(self, path: str, change: Callable[[dict[str, Any]], None]) -> str:
        """Change one YAML file and commit; returns the commit."""
        file = self._tree / path
        body = yaml.safe_load(file.read_text())
        change(body)
        file.write_text(yaml.safe_dump(body, sort_keys=False))
        return self.commit(f"change {path}")

    def commit(self, message: str) -> str:
        self._git("add", "-A")
        self._git(
            "-c", "user.name=t", "-c", "user.email=t@example.test", "commit", "-q", "--allow-empty", "-m", message
        )
        self._git("push", "-q", str(self._bare), "main")
        self.revision = self._git("rev-parse", "HEAD").strip()
        return self.revision

    def _git(self, *args: str) -> str:
        command = ["git", "-C", str(self._tree), *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class App:
    """One Application. Nothing watches git: `refresh` does what a webhook of the git server would."""

    kube: Kube
    name: str

    @property
    def body(self) -> dict[str, Any]:
        return self.kube.get("application", self.name) or {}

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.body.get("status", {}))

    @property
    def sync(self) -> str:
        return str(self.status.get("sync", {}).get("status", ""))

    @property
    def health(self) -> str:
        return str(self.status.get("health", {}).get("status", ""))

    @property
    def started_at(self) -> str:
        """When the newest sync began: it moves with each sync, of self-heal too."""
        return str(self.status.get("operationState", {}).get("startedAt", ""))

    def refresh(self, how: str = "normal") -> None:
        """Compare git and cluster now; returns when that is done. `hard` renders anew as well."""
        self.kube.run("annotate", "application", self.name, f"{REFRESH}={how}", "--overwrite")
        eventually(f"{self.name} is refreshed", lambda: REFRESH not in self.body["metadata"].get("annotations", {}), 60)

    def await_synced(self, revision: str, seconds: float = 60) -> None:
        """Wait until git's commit is what the cluster has, and no sync is under way."""

        def done() -> bool:
            status = self.status
            sync = status.get("sync", {})
            phase = status.get("operationState", {}).get("phase")
            return revision in (sync.get("revision"), *sync.get("revisions", [])) and (sync["status"], phase) == (
                "Synced",
                "Succeeded",
            )

        eventually(f"{self.name} is Synced at {revision[:8]}; {self.said()}", done, seconds)

    def await_health(self, health: str, seconds: float = 90) -> None:
        eventually(f"{self.name} is {health}", lambda: self.health == health, seconds)

    def resources(self) -> dict[str, dict[str, Any]]:
        """What the Application holds, by `Kind/name`."""
        return {f"{r['kind']}/{r['name']}": r for r in self.status.get("resources", [])}

    def said(self) -> str:
        """What Argo CD has to complain of."""
        status = self.status
        told = [condition["message"] for condition in status.get("conditions", [])]
        return "; ".join([*told, status.get("operationState", {}).get("message", "")])

    def gone(self) -> bool:
        return not self.body


@dataclass(frozen=True)
class Row:
    """An Application at one moment, `seconds` after the start."""

    seconds: float
    name: str
    sync: str
    health: str
    operation: str
    started_at: str

    @property
    def shown(self) -> tuple[str, ...]:
        return self.name, self.sync, self.health, self.operation, self.started_at


class Timeline:
    """Every state of every Application, from a watch: also what lasted too short for a poll."""

    FIELDS = ".metadata.name .status.sync.status .status.health.status .status.operationState.phase .status.operationState.startedAt"

    def __init__(self, kube: Kube) -> None:
        self.rows: list[Row] = []
        columns = "|".join(f"{{{field}}}" for field in self.FIELDS.split())
        command = [str(binaries.ensure_one("kubectl")), "-n", kube.namespace, "get", "applications", "--watch"]
        self._watch = subprocess.Popen(
            [*command, "-o", f'jsonpath={columns}{{"\\n"}}'],
            env={**os.environ, "KUBECONFIG": str(kube.kubeconfig)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.terminate()
        self._watch.wait()
        self._thread.join()

    def _read(self) -> None:
        last: dict[str, tuple[str, ...]] = {}
        assert self._watch.stdout
        for line in self._watch.stdout:
            row = Row(time.monotonic() - self._start, *line.rstrip("\n").split("|"))
            if last.get(row.name) != row.shown:
                last[row.name] = row.shown
                self.rows.append(row)

    def of(self, name: str, since: int = 0) -> list[Row]:
        """States of one Application; `since`: a former length of `rows`."""
        return [row for row in self.rows[since:] if row.name == name]

    def healths(self, name: str, since: int = 0) -> list[str]:
        """Its health codes in order, each run of equal ones once."""
        found: list[str] = []
        for row in self.of(name, since):
            if row.health and row.health != (found[-1] if found else ""):
                found.append(row.health)
        return found

    def table(self) -> str:
        lines = ["| s | Application | sync | health | operation |", "|---|---|---|---|---|"]
        before = ""
        for row in self.rows:
            shown = f"{row.name} | {row.sync} | {row.health} | {row.operation}"
            if shown != before:
                lines.append(f"| {row.seconds:.1f} | {shown} |")
            before = shown
        return "\n".join(lines) + "\n"
