"""What a kubelet would do to engine Pods, where there is no node."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Self

import requests

from gemma_operator.desired.names import POOL, SELECT_OURS
from tests.support.kube import Kube, condition, eventually
from tests.support.scripted_prometheus import ScriptedEngine, ScriptedPrometheus
from tests.support.session import Session


def make_ready(kube: Kube, count: int, pool: str = "") -> None:
    """Make all Pods of a pool, or of all pools, Ready once there are `count` that aren't going."""
    selector = f"gemmaserving.dev/pool={pool}" if pool else ""

    def there() -> list[str]:
        found = kube.list("pods", selector)
        names = [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return names if len(names) >= count else []

    kinds = ("PodScheduled", "Ready", "ContainersReady")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"} for kind in kinds]
    for name in eventually(f"{count} Pods", there):
        body = json.dumps({"status": {"conditions": conditions}})
        kube.run("patch", "pod", name, "--subresource=status", "--type=merge", "-p", body)


class Kubelet:
    """All engine Pods get Ready at once but for pools that fail, and Prometheus knows them as engines without requests."""

    def __init__(self, api: Session, prometheus: ScriptedPrometheus) -> None:
        self._api, self._prometheus = api, prometheus
        self._failing: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def fail(self, namespace: str, pool: str) -> None:
        """From now on the engines of this pool there are not Ready, and all others are; `""`: all are."""
        self._failing[namespace] = pool

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            try:
                self._look()
            except requests.RequestException as error:  # a busy API server: the next look makes it good
                print(f"the Pods could not be seen to: {error}", flush=True)

    def _look(self) -> None:
        ready = []
        for pod in self._api.get(f"/api/v1/pods?labelSelector={SELECT_OURS}&resourceVersion=0")["items"]:
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                continue
            wanted = self._failing.get(meta["namespace"]) != meta["labels"][POOL]
            if (condition(pod, "Ready").get("status") == "True") is not wanted:
                self._set_ready(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", wanted)
            if wanted:
                ready.append(ScriptedEngine(meta["uid"], running=0))
        self._prometheus.now = time.time()
        self._prometheus.engines = ready

    def _set_ready(self, path: str, wanted: bool) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kinds = ("PodScheduled", "Ready", "ContainersReady")
        conditions = [
            {"type": kind, "status": str(wanted or kind == "PodScheduled"), "lastTransitionTime": now} for kind in kinds
        ]
        status = {"phase": "Running", "podIP": "10.9.9.9", "conditions": conditions}
        self._api.merge(path, {"status": status})
