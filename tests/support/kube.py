"""kubectl for tests: apply, get, await a condition, count the operator's writes in the audit log."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.reader import reader
from tools.cluster import binaries

T = TypeVar("T")
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True)
class Kube:
    """One cluster, by its kubeconfig."""

    kubeconfig: Path
    namespace: str = "default"

    def run(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """kubectl with `args`; with `check`, a failure shows what kubectl said."""
        done = subprocess.run(
            [str(binaries.ensure_one("kubectl")), "-n", self.namespace, *args],
            input=stdin, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)} failed: {done.stderr}")
        return done

    def apply(self, *objects: dict[str, Any], server_side: bool = False) -> None:
        """kubectl apply; raises with kubectl's message where it is refused."""
        flags = ["--server-side"] if server_side else []
        self.run("apply", *flags, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def refusal(self, obj: dict[str, Any]) -> str:
        """What kubectl apply says about an object that must be refused."""
        done = self.run("apply", "-f", "-", stdin=json.dumps(obj), check=False)
        assert done.returncode != 0, f"accepted: {done.stdout}"
        return done.stderr

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        return reader(self.kubeconfig).get(kind, self.namespace, name)

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind, or of several with commas between them."""
        read = reader(self.kubeconfig)
        return [found for one in kind.split(",") for found in read.list(one, self.namespace, selector)]


@contextmanager
def namespace_of(kube: Kube, test: str) -> Iterator[Kube]:
    """kubectl in a namespace made for one test, by its id; what is left in it goes afterwards."""
    own = Kube(kube.kubeconfig, f"t-{abs(hash(test)) % 10**8}")
    kube.run("create", "namespace", own.namespace)
    # Until the controller has made it, no Pod is admitted, and a serving rightly says so.
    eventually("the namespace's ServiceAccount", lambda: own.get("serviceaccount", "default"), 60)
    yield own
    own.run("delete", "gsv", "--all", "--wait=false")
    kube.run("delete", "namespace", own.namespace, "--wait=false")


def condition(obj: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """A status condition, {} where absent."""
    conditions = (obj or {}).get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def eventually(what: str, probe: Callable[[], T], seconds: float = 30) -> T:
    """Await a probe that returns something true; the failure shows what it returned last."""
    end = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s for: {what}; last saw {value!r}")
        time.sleep(0.1)


def audit(log: Path, user: str) -> Iterator[dict[str, Any]]:
    """Finished requests of one user in an audit log, oldest first."""
    for line in log.read_text().splitlines():
        if user not in line:
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry.get("stage") == "ResponseComplete" and entry.get("user", {}).get("username") == user:
            yield entry


def writes(log: Path, user: str, agent: str = "") -> list[str]:
    """`verb resource/name[/subresource]` of every write of one user, by a client that calls itself something with `agent`."""
    found = []
    for entry in audit(log, user):
        if agent not in entry.get("userAgent", ""):
            continue
        ref = entry.get("objectRef", {})
        if entry["verb"] in WRITES and "dryRun" not in entry.get("requestURI", ""):
            parts = [ref.get("resource", ""), ref.get("name", ""), ref.get("subresource", "")]
            found.append(f"{entry['verb']} {'/'.join(part for part in parts if part)}")
    return found
