"""An operator with many servings on a real API server, with pretended nodes and a scripted Prometheus.

Pods become Ready by kwok's word, the scheduler, controllers and API server are real. The engines' counters are made up from the
clock: each pool answers so many requests per second, all of them within its SLO unless the world says otherwise.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from gemma_operator.api.crd import CRD_NAME, crd
from gemma_operator.api.serving import GROUP, PLURAL, VERSION
from tests.support.operator import Operator
from tests.support.scripted_prometheus import ScriptedEngine, ScriptedPrometheus, scripted_prometheus
from tools.cluster.api import Api
from tools.cluster.pretended import PretendedNodes
from tools.fleet.process import Usage, usage

PER_NAMESPACE = 50
SPEC: dict[str, Any] = yaml.safe_load(Path("examples/quick-start/serving.yaml").read_text())["spec"]
OURS = "app.kubernetes.io/managed-by=gemma-operator"
LOOK_SECONDS = 15
"""A list of 2,000 Pods costs the API server half a second."""


def namespace_of(number: int) -> str:
    """The namespace of the n-th serving."""
    return f"team-{number // PER_NAMESPACE}"


@dataclass
class Traffic:
    """The counters of every engine that there is, as functions of the time."""

    api: Api
    rate: Callable[[str, float], float] = lambda pool, now: 2.0
    """(`namespace/serving/pool`, epoch seconds) -> requests per second of the pool."""
    engines: dict[str, ScriptedEngine] = field(default_factory=dict)
    _pools: dict[str, list[str]] = field(default_factory=dict)
    _before: float = field(default_factory=time.time)

    def look(self) -> None:
        """Which Pods there are."""
        pools: dict[str, list[str]] = {}
        for pod in self.api.get(f"/api/v1/pods?labelSelector={OURS}&resourceVersion=0")["items"]:
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta and "podIP" in pod.get("status", {}):
                labels = meta["labels"]
                named = "/".join(
                    (meta["namespace"], labels["gemmaserving.dev/serving"], labels["gemmaserving.dev/pool"])
                )
                pools.setdefault(named, []).append(meta["uid"])
        self._pools = pools

    def advance(self) -> list[ScriptedEngine]:
        """Count what has been answered since the last call."""
        now = time.time()
        passed, self._before = now - self._before, now
        alive = {}
        for pool, uids in list(self._pools.items()):
            rate = self.rate(pool, now)
            for uid in uids:
                engine = self.engines.get(uid) or ScriptedEngine(uid, started_at=now)
                engine.good += rate * passed / len(uids)
                engine.prompt_tokens = 500 * engine.good
                engine.running = min(8.0, rate / len(uids))
                engine.at = now
                alive[uid] = engine
        self.engines = alive
        return list(alive.values())


class World:
    """`with World("name") as world:` a cluster, the CRD, a Prometheus; `start` starts the operator."""

    def __init__(self, name: str, folder: Path, **settings: str) -> None:
        self._name = name
        self._folder = folder
        self._settings = settings
        self.queries = 0
        self.operator: Operator | None = None

    def __enter__(self) -> Self:
        self.plane = PretendedNodes.start(self._name)
        self.api = self.plane.api
        self.api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}", crd())
        served = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
        await_all("the CRD is served", lambda: int(self.api.exists(served)), 1, 60, 0.2)
        self.traffic = Traffic(self.api)
        self._serving = scripted_prometheus()
        self.prometheus: ScriptedPrometheus = self._serving.__enter__()
        answer = self.prometheus.answer

        def from_traffic(query: str) -> Any:
            self.queries += 1
            self.prometheus.engines = self.traffic.advance()
            self.prometheus.now = time.time()
            return answer(query)

        self.prometheus.answer = from_traffic  # type: ignore[method-assign]
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look_for_ever, daemon=True)
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop_looking()
        if self.operator is not None and self.operator.is_running():
            self.operator.stop()
        self._serving.__exit__(kind, error, tb)
        self.plane.__exit__(kind, error, tb)

    def stop_looking(self) -> None:
        """No list of Pods any more: without an operator nobody asks for their counters."""
        self._ended.set()
        self._looking.join()

    def _look_for_ever(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.traffic.look()
            except Exception as error:  # a busy API server
                print(f"the Pods can't be listed: {error}", flush=True)

    def start(self, **settings: str) -> Operator:
        """Start the operator; returns when it answers its probe."""
        defaults = {
            "GEMMA_PROMETHEUS_URL": self.prometheus.url,
            "GEMMA_SCALING_TICK_SECONDS": "15",
            "POD_NAMESPACE": "default",
            "POD_NAME": "fleet",
        }
        self.operator = Operator(
            self.plane.kubeconfig, self._folder / "operator.log", **defaults | self._settings | settings
        ).start()
        return self.operator

    def usage(self) -> Usage:
        """What the operator's process has used until now."""
        assert self.operator is not None
        return usage(self.operator.pid)

    def metrics(self) -> dict[str, float]:
        """The operator's own metrics, less those of pools."""
        assert self.operator is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.operator.metrics_port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines)
            if not name.startswith("#") and "pool=" not in name
        }

    def create(self, numbers: Iterable[int], spec: dict[str, Any] = SPEC) -> None:
        """Create servings by number."""
        for number in numbers:
            if number % PER_NAMESPACE == 0:
                self.create_namespace(number)
            self.put(number, spec)

    def create_namespace(self, number: int) -> None:
        """The namespace of the n-th serving."""
        name = namespace_of(number)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.api.apply(f"/api/v1/namespaces/{name}", body)

    def put(self, number: int, spec: dict[str, Any] = SPEC) -> None:
        """Create or change a serving."""
        name = f"fleet-{number}"
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GemmaServing", "metadata": {"name": name}, "spec": spec}
        self.api.apply(f"/apis/{GROUP}/{VERSION}/namespaces/{namespace_of(number)}/{PLURAL}/{name}", body)

    def servings(self) -> list[dict[str, Any]]:
        """All servings as they are."""
        return list(self.api.get(f"/apis/{GROUP}/{VERSION}/{PLURAL}?resourceVersion=0")["items"])

    def count(self, kind: str) -> int:
        """How many objects of ours there are: `deployments`, or `pods`."""
        group = "/apis/apps/v1" if kind == "deployments" else "/api/v1"
        return len(self.api.get(f"{group}/{kind}?labelSelector={OURS}&resourceVersion=0")["items"])

    def writes(self) -> list[str]:
        """Writes of the operator until now by the audit log, its Lease left out: verb, kind and name."""
        return list(
            self._requests(('"verb":"create"', '"verb":"update"', '"verb":"patch"', '"verb":"delete"'), "dryRun")
        )

    def requests(self) -> list[str]:
        """Requests of the operator until now by the audit log, its Lease left out."""
        return list(self._requests(("",), '"leases"'))

    def _requests(self, any_of: Iterable[str], without: str) -> Iterator[str]:
        with self.plane.audit_log.open() as log:
            for line in log:
                if '"gemma-operator/' not in line or '"leases"' in line or without in line:
                    continue
                if not any(part in line for part in any_of):
                    continue
                entry = json.loads(line)
                if entry["stage"] == "ResponseComplete":
                    about = entry.get("objectRef", {})
                    what = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
                    verb = f"dry-{entry['verb']}" if "dryRun" in entry["requestURI"] else entry["verb"]
                    yield f"{verb} {what} {about.get('namespace', '')}/{about.get('name', '')}"


def condition(serving: dict[str, Any], kind: str) -> str:
    """The status of a condition, "" where absent."""
    found = serving.get("status", {}).get("conditions") or []
    return next((str(one["status"]) for one in found if one["type"] == kind), "")


def is_current(serving: dict[str, Any]) -> bool:
    """The status speaks of the newest spec."""
    return bool(serving.get("status", {}).get("observedGeneration") == serving["metadata"]["generation"])


def await_all(what: str, probe: Callable[[], int], wanted: int, seconds: float, every: float = 2) -> float:
    """Wait until `probe` gives `wanted`; returns the seconds that it took. Raises TimeoutError."""
    started = time.monotonic()
    while (found := probe()) < wanted:
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"{what}: {found} of {wanted} after {seconds:.0f} s")
        time.sleep(every)
    return time.monotonic() - started
