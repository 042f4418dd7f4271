"""Operators that contend for Leases: a store of them, and leaders over it in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes.client.exceptions import ApiException

from gemma_operator import lease as l
from gemma_operator.leader import Leader
from gemma_operator.lease import Identity

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Store:
    """The API server's Leases, by namespace, with optimistic concurrency."""

    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 0
    writes: int = 0
    hangs_until: float = 0.0
    luck: random.Random = field(default_factory=lambda: random.Random(0))

    def put(self, namespace: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        there = self.leases.get(namespace)
        expected = there["metadata"]["resourceVersion"] if there else None
        if body["metadata"].get("resourceVersion") != expected:
            return None
        self.version += 1
        self.writes += 1
        kept: dict[str, Any] = json.loads(json.dumps(body))
        kept["metadata"] |= {"resourceVersion": str(self.version), "namespace": namespace}
        self.leases[namespace] = kept
        return kept


class Client:
    """One operator's way to the store: slow or cut where the test says so."""

    def __init__(self, store: Store) -> None:
        self.store, self.latency, self.is_cut = store, 0.01, False

    async def _wait(self) -> None:
        await asyncio.sleep(self.latency)
        if self.is_cut:
            raise ApiException(status=503, reason="cut off")
        hangs = self.store.hangs_until - asyncio.get_running_loop().time()
        if hangs > 0:
            await asyncio.sleep(hangs + self.store.luck.uniform(0, 0.5))

    async def get(self, namespace: str) -> l.Lease | None:
        await self._wait()
        return json.loads(json.dumps(self.store.leases.get(namespace)))  # type: ignore[no-any-return]

    async def everywhere(self) -> list[l.Lease]:
        await self._wait()
        return list(json.loads(json.dumps(list(self.store.leases.values()))))

    async def put(self, namespace: str, body: Mapping[str, Any]) -> l.Lease | None:
        await self._wait()
        return self.store.put(namespace, body)


class Operator:
    """A leader that runs, with its client."""

    def __init__(self, store: Store, installation: str, pod: str, namespaces: tuple[str, ...] = ()) -> None:
        self.client = Client(store)
        self.changes = 0
        now = asyncio.get_running_loop().time
        me, wall = Identity(installation, pod), lambda: EPOCH + timedelta(seconds=now())
        self.leader = Leader(self.client, me, namespaces, now, wall)  # type: ignore[arg-type]
        self._task: asyncio.Task[None] | None = asyncio.create_task(self.leader.run(self._changed))

    async def _changed(self) -> None:
        self.changes += 1

    def serves(self, namespace: str) -> bool:
        return self._task is not None and self.leader.serves(namespace)

    def kill(self) -> None:
        """As SIGKILL: nothing is released, nothing is done any more."""
        assert self._task is not None
        self._task.cancel()
        self._task = None

    async def stop(self) -> None:
        """As SIGTERM."""
        self.kill()
        await self.leader.release()


async def until(condition: Any, limit: float) -> float:
    """Seconds until `condition()` holds."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        assert loop.time() - started < limit, f"not within {limit} s"
        await asyncio.sleep(0.25)
    return loop.time() - started
