"""A cluster in memory with what the reconciler needs of server-side apply: field owners of `replicas`, and every write."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

from kubernetes.client.exceptions import ApiException

from gemma_operator.cluster import Refused
from gemma_operator.loans import Flip
from gemma_operator.rollout import REVISION

Object = dict[str, Any]
OPERATOR, SCALER = "gemma-operator", "gemma-operator-scaler"


class FakeCluster:
    """Stands for `gemma_operator.cluster.Cluster`; `writes` are (verb, kind, name).

    `refuse` is what it says to applies of a kind, `absent` are kinds that it doesn't have.
    """

    def __init__(self, *objects: Object) -> None:
        self.objects = {self._key(found): copy.deepcopy(found) for found in objects}
        self.writes: list[tuple[str, str, str]] = []
        self.sizes: list[int] = []
        self.events: list[tuple[str, str, str]] = []
        self.refuse: dict[str, str] = {}
        self.absent: set[str] = set()
        self.logs: dict[str, str] = {}
        self.logs_read: list[str] = []
        self.asked: list[str] = []
        """Reads and dry runs, each with its kind."""
        self.last: dict[str, str] = {}

    @staticmethod
    def _key(found: Object) -> tuple[str, str, str]:
        return found["kind"], found["metadata"].get("namespace", "ns"), found["metadata"]["name"]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self.asked.append(f"get {kind}")
        found = self.objects.get((kind, namespace, name))
        return None if found is None else _versioned(found)

    async def metadata(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Object]:
        """Of all namespaces, as where the operator watches them all."""
        self.asked.append(f"metadata {kind}")
        if kind in self.refuse:
            raise Refused(self.refuse[kind])
        label, _, value = selector.partition("=")
        for (k, _, _), found in self.objects.items():
            if k == kind and (not label or found["metadata"].get("labels", {}).get(label) == value):
                yield {"namespace": "ns", **_versioned(found)["metadata"]}

    async def list_served(self, kind: str, namespace: str, selector: str) -> list[Object] | None:
        return None if kind in self.absent else await self.list(kind, namespace, selector)

    async def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        label, value = selector.split("=")
        self.asked.append(f"list {kind}")
        return [
            _versioned(found)
            for (k, n, _), found in self.objects.items()
            if (k, n) == (kind, namespace) and found["metadata"].get("labels", {}).get(label) == value
        ]

    async def log(self, namespace: str, pod: str) -> str:
        self.logs_read.append(pod)
        return self.logs.get(pod, "")

    async def last_words(self, namespace: str, pod: str, previous: bool) -> str:
        return self.last.get(pod, "")

    async def apply(self, body: Object, dry_run: bool = False, is_new: bool = False) -> Object:
        if body["kind"] in self.refuse:
            raise Refused(self.refuse[body["kind"]])
        if dry_run:
            self.asked.append(f"dry {body['kind']}")
        else:
            self._merge(body, OPERATOR)
        found = self.objects.get(self._key(body))
        return copy.deepcopy(body) if found is None else _versioned(found)

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        meta = {"name": name, "namespace": namespace}
        self._merge({"kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}}, SCALER)

    async def go_first(self, namespace: str, pod: str, cost: int) -> None:
        self.writes.append(("go first", "Pod", pod))

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        if "Eviction" in self.refuse:
            raise Refused(self.refuse["Eviction"])
        found = self.objects.get(("Pod", namespace, pod))
        if found is None:
            return False
        if found["metadata"]["uid"] != uid:
            raise ApiException(status=409, reason="Conflict")
        self.writes.append(("evict", "Pod", pod))
        del self.objects["Pod", namespace, pod]
        return True

    async def flip(self, namespace: str, flip: Flip) -> bool:
        if "Pod" in self.refuse:
            raise Refused(self.refuse["Pod"])
        found = self.objects.get(("Pod", namespace, flip.pod))
        if found is None or found["metadata"]["uid"] != flip.uid:
            return False
        self.writes.append(("flip", "Pod", flip.pod))
        for kind, values in flip.metadata.items():
            if kind != "uid":
                merged = {**found["metadata"].get(kind, {}), **values}
                found["metadata"][kind] = {key: value for key, value in merged.items() if value is not None}
        return True

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        self.writes.append(("delete", kind, name))
        self.objects.pop((kind, namespace, name), None)

    async def put_status(self, namespace: str, name: str, status: Object) -> Object:
        self.writes.append(("status", "GemmaServing", name))
        found = self.objects["GemmaServing", namespace, name]
        found["status"] = copy.deepcopy(status)
        return _versioned(found)

    async def event(self, serving: Object, kind: str, reason: str, message: str, reporter: str) -> None:
        self.events.append((kind, reason, message))

    def _merge(self, body: Object, manager: str) -> None:
        key, body = self._key(body), copy.deepcopy(body)
        self.writes.append(("apply" if manager == OPERATOR else "scale", key[0], key[2]))
        before = self.objects.get(key)
        owners = {} if before is None else self._owners(before)
        replicas = before["spec"].get("replicas") if before else None
        if "replicas" in body["spec"]:
            # By force: who held another value loses the field.
            owners = {manager: True} | ({} if body["spec"]["replicas"] != replicas else owners)
            replicas = body["spec"]["replicas"]
        elif owners.pop(manager, None) and not owners:
            replicas = 1
        found = body if manager == OPERATOR or before is None else before
        if key[0] == "Deployment":
            found["spec"]["replicas"] = 1 if replicas is None else replicas
            found["metadata"]["managedFields"] = [
                {"manager": owner, "fieldsV1": {"f:spec": {"f:replicas": {}}}} for owner in owners
            ]
            found.setdefault("status", (before or {}).get("status", {}))
            found["metadata"]["generation"] = (before or {}).get("metadata", {}).get("generation", 0) + 1
            revision = (before or {}).get("metadata", {}).get("annotations", {}).get(REVISION)
            found["metadata"].setdefault("annotations", {}).update({REVISION: revision} if revision else {})
            self.sizes.append(found["spec"]["replicas"])
        self.objects[key] = found

    @staticmethod
    def _owners(found: Object) -> dict[str, bool]:
        return {entry["manager"]: True for entry in found["metadata"].get("managedFields", [])}

    def deployment(self, name: str = "chat-interactive") -> Object:
        return self.objects["Deployment", "ns", name]

    def all_up(self) -> None:
        """What the controllers of Kubernetes would do: every engine asked for is there and Ready."""
        for (kind, _, name), found in list(self.objects.items()):
            if kind == "Deployment":
                size = found["spec"]["replicas"]
                counts = {"replicas": size, "updatedReplicas": size, "readyReplicas": size}
                found["status"] = {**counts, "observedGeneration": found["metadata"]["generation"]}
                for n in range(size):
                    marks = found["spec"]["template"]["metadata"]
                    meta = {"name": f"{name}-{n}", "namespace": "ns", "uid": f"{name}-{n}", **copy.deepcopy(marks)}
                    status = {
                        "conditions": [
                            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}
                        ]
                    }
                    self.objects["Pod", "ns", meta["name"]] = {"kind": "Pod", "metadata": meta, "status": status}


def _versioned(found: Object) -> Object:
    """As it is shown: each change makes another resourceVersion."""
    shown = copy.deepcopy(found)
    shown["metadata"]["resourceVersion"] = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    return shown
