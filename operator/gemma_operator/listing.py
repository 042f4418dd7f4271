"""What the API server lists, and whether kopf has heard of it.

kopf looks for kinds at its start, and again at each event of a CRD. The API server lists a kind some time after the last event of
its CRD, and what kopf doesn't find then it doesn't watch: the operator ends, so that it is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from urllib3.exceptions import HTTPError

from gemma_operator.api.crd import CRD_NAME
from gemma_operator.api.serving import KIND
from gemma_operator.cluster import API_ERRORS, OPTIONAL, Cluster

log = logging.getLogger(__name__)
LOOK_SECONDS = 5
# A CRD that is installed together with the operator is listed within seconds.
LISTED_SECONDS = 30
# What a look may fail with, an answer that is no JSON among it; the next look is soon.
UNREADABLE = (*API_ERRORS, HTTPError, OSError, ValueError)

Watched = Collection[tuple[str, str, str]]


async def listed_within(cluster: Cluster, seconds: int) -> bool:
    """Wait until the API server lists our kind: kopf looks once, and what it doesn't find then it may never watch."""
    for attempt in range(seconds):
        try:
            if await cluster.is_listed(KIND):
                return True
        except (*API_ERRORS, HTTPError):
            return True  # what hinders us here hinders kopf, which says so and tries again
        if not attempt:
            log.info("waiting for the API server to list %s", CRD_NAME)
        await asyncio.sleep(1)
    log.warning("the API server doesn't list %s: is the CRD installed? Nothing can be done before", CRD_NAME)
    return False


async def until_listed(cluster: Cluster, is_listed: bool) -> None:
    """Ends once our kind comes, or comes back after it was removed: kopf would not watch it again."""
    while is_listed:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(*UNREADABLE):
            is_listed = await cluster.is_listed(KIND)
    while not await listed_within(cluster, LISTED_SECONDS):
        pass
    log.info("%s is there: starting anew", CRD_NAME)


async def until_overlooked(cluster: Cluster, watched: Callable[[], Watched | None]) -> None:
    """Ends once a kind of route is listed that kopf doesn't watch, at two looks: at the first it may be about to.

    `watched` gives group, version and plural of what kopf watches; None while it looks around.
    """
    seen: set[str] = set()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        known = watched()
        unwatched = [] if known is None else [kind for kind, names in OPTIONAL.items() if names not in known]
        with contextlib.suppress(*UNREADABLE):
            found = {kind for kind in unwatched if await cluster.is_listed(kind)}
            if found & seen:
                log.info("%s came, and isn't watched yet: starting anew", " and ".join(sorted(found & seen)))
                return
            seen = found
