"""The resync: what lost events would have told.

The versions of all objects are listed at once, and only servings that aren't as their last look saw them are looked at: a fleet at
rest costs a hundred short requests, not six for each serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gemma_operator.api.serving import KIND
from gemma_operator.cluster import Cluster, said
from gemma_operator.desired import CHILD_KINDS, ROUTE_KINDS
from gemma_operator.desired.names import SELECT_OURS, SERVING
from gemma_operator.settings import Settings
from gemma_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
SPREAD = 0.2
"""Share of the resync's time in which what differs is looked at: a fleet that differs as a whole must not hold up what is new."""
_Versions = set[tuple[str, str, str]]
"""(kind, name, resourceVersion)"""


class Seen:
    """What the last look at each serving read, where its outcome depends on nothing else."""

    def __init__(self) -> None:
        self._prints: dict[Key, int | None] = {}

    def keep(self, key: Key, objects: Iterable[Mapping[str, Any]]) -> None:
        """The look read these, and will come to the same until one of them changes."""
        self._prints[key] = _print({(str(found["kind"]), *_version(found["metadata"])) for found in objects})

    def drop(self, key: Key) -> None:
        """The next look may come to something else though no object changes."""
        self._prints[key] = None

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._prints.pop(key, None)

    def differing(self, now: Mapping[Key, _Versions], place: str) -> list[Key]:
        """Servings that are there and not as they were seen, and those that were seen and are gone."""
        keys = now.keys() | self.all(place)
        return sorted(key for key in keys if key not in now or self._prints.get(key) != _print(now[key]))

    def all(self, place: str) -> set[Key]:
        """Every serving of a namespace, or of all ("") that was looked at."""
        return {key for key in self._prints if place in ("", key[0])}


class Resync:
    """Compares what is there with what was `seen`, each `resync_seconds`."""

    def __init__(self, cluster: Cluster, seen: Seen, settings: Settings) -> None:
        self._cluster = cluster
        self._seen = seen
        self._seconds = settings.resync_seconds
        self._places = settings.namespaces or ("",)
        self._kinds = (*CHILD_KINDS, "Pod", *(ROUTE_KINDS if settings.routing else ()))

    async def run(self, queue: WorkQueue) -> None:
        """Ask for looks for ever: each serving that differs is looked at within `resync_seconds`."""
        while True:
            await asyncio.sleep((1 - SPREAD) * self._seconds)
            due = await self.due()
            for number, key in enumerate(due):
                await queue.add(key, SPREAD * self._seconds * number / len(due))

    async def due(self) -> list[Key]:
        """Servings to be looked at; all of a place whose versions can't be had, as then each look says what is wrong."""
        due: list[Key] = []
        for place in self._places:
            try:
                due += self._seen.differing(await self._versions(place), place)
            except Exception as error:  # a resync that ends would be missed by nobody
                where = f"in {place} " if place else ""
                log.warning("versions can't be listed, so every serving %sis looked at: %s", where, said(error))
                due += sorted(self._seen.all(place))
        return due

    async def _versions(self, place: str) -> dict[Key, _Versions]:
        found: dict[Key, _Versions] = defaultdict(set)
        async for meta in self._cluster.metadata(KIND, place, ""):
            found[meta["namespace"], meta["name"]].add((KIND, *_version(meta)))
        for kind in self._kinds:
            async for meta in self._cluster.metadata(kind, place, SELECT_OURS):
                if owner := meta.get("annotations", {}).get(SERVING):
                    found[meta["namespace"], owner].add((kind, *_version(meta)))
        return found


def _version(meta: Mapping[str, Any]) -> tuple[str, str]:
    return str(meta["name"]), str(meta["resourceVersion"])


def _print(versions: _Versions) -> int:
    return hash(frozenset(versions))
