"""kopf as the watch: every event of a GemmaServing or of a child becomes a key in the queue. Nothing else happens here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf

from gemma_operator.api.serving import GROUP, PLURAL, VERSION
from gemma_operator.cluster import KINDS, OPTIONAL
from gemma_operator.desired import CHILD_KINDS
from gemma_operator.desired.names import MANAGED_BY, MANAGER, SELECT_OURS, SERVING
from gemma_operator.settings import Settings
from gemma_operator.workqueue import WorkQueue

CHILDREN = tuple(KINDS[kind] for kind in (*CHILD_KINDS, "Pod"))
# Objects of a kind that are read at a time at the start: all 2,000 Deployments of a large fleet at once are 300 MiB of Python's objects.
LIST_CHUNK = 100
# kopf keeps an object for so long after its last event: at a start all that it lists in this time is held at once.
IDLE_SECONDS = 1
# What happens to one child happens in a second to several: the look comes this long after the first event, seconds.
CHILD_SECONDS = 0.5
# Where keys are due and for this long (seconds) no worker moved and no request ended, the loop is dead: a request ends within 25 s.
STUCK_SECONDS = 30


class NoDifferences(kopf.DiffBaseStorage):
    """kopf compares nothing: it would copy every object of every event for handlers of changes, of which we have none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing is kept to be compared."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Nothing was kept."""
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""


def configure(settings: kopf.OperatorSettings, ours: Settings) -> None:
    """kopf's settings: no peering, no posting, label-selected child watches, timeouts (research/kopf.md 3.7)."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = LIST_CHUNK
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.persistence.diffbase_storage = NoDifferences()
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.scanning.disabled = bool(ours.namespaces)
    for group, version, plural in _watched(ours):
        settings.watching.label_selectors[group, version, plural] = SELECT_OURS


def register(
    registry: kopf.OperatorRegistry,
    queue: WorkQueue,
    ours: Settings,
    stuck_seconds: Callable[[], float],
    wrote: Callable[[str], bool] = lambda _: False,
) -> None:
    """Register the event handlers, and the liveness probe: it fails once nothing has gone on for `stuck_seconds` though it should.

    `wrote` tells versions of objects that the operator made itself.
    """

    async def on_serving(meta: Mapping[str, Any], **_: Any) -> None:
        if not wrote(meta.get("resourceVersion", "")):
            await queue.add((meta.get("namespace") or "default", meta["name"]))

    async def on_child(meta: Mapping[str, Any], **_: Any) -> None:
        owner = meta.get("annotations", {}).get(SERVING)
        if owner and not wrote(meta.get("resourceVersion", "")):
            await queue.add((meta["namespace"], owner), CHILD_SECONDS)

    async def alive(**_: Any) -> float:
        stuck = stuck_seconds()
        if stuck > STUCK_SECONDS:
            raise kopf.PermanentError(f"keys wait, and for {stuck:.0f} s no worker moved and no request ended")
        return stuck

    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(on_serving)
    for group, version, plural in _watched(ours):
        kopf.on.event(group, version, plural, labels={MANAGED_BY: MANAGER}, registry=registry)(on_child)
    kopf.on.probe(id="stuck_seconds", errors=kopf.ErrorsMode.PERMANENT, registry=registry)(alive)


def watches_routes(ours: Settings) -> bool:
    """Routes are watched in the whole cluster only: kopf sees there whether their kinds come and go, else it ends with a kind."""
    return ours.routing and not ours.namespaces


def _watched(ours: Settings) -> Iterable[tuple[str, str, str]]:
    return (*CHILDREN, *(OPTIONAL.values() if watches_routes(ours) else ()))
