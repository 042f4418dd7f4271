"""Which scopes this operator acts in: it holds their Leases, so that two operators never write to the same objects.

One of the whole cluster holds the Lease of its own namespace, and leaves each namespace that has a Lease of its own to its holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from gemma_operator import lease as l
from gemma_operator import telemetry
from gemma_operator.cluster import said
from gemma_operator.lease import Identity, Sight, StoodDown
from gemma_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
_TIMEOUT = (2, 6)  # seconds to connect, to answer


class Leases:
    """Leases of our name at the API server, over a thread of their own: a renewal never waits behind other requests."""

    def __init__(self, api: client.ApiClient) -> None:
        self._coordination = client.CoordinationV1Api(api)
        self._api = api
        self._thread = ThreadPoolExecutor(2, "lease")

    async def get(self, namespace: str) -> l.Lease | None:
        """The Lease of a namespace, or None."""
        try:
            return await self._call(self._coordination.read_namespaced_lease, l.NAME, namespace)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    async def everywhere(self) -> list[l.Lease]:
        """The Leases of our name in all namespaces."""
        named = f"metadata.name={l.NAME}"
        found = await self._call(self._coordination.list_lease_for_all_namespaces, field_selector=named)
        return list(found["items"])

    async def put(self, namespace: str, body: Mapping[str, Any]) -> l.Lease | None:
        """Create or replace; None where somebody else was first."""
        create, replace = self._coordination.create_namespaced_lease, self._coordination.replace_namespaced_lease
        is_new = "resourceVersion" not in body["metadata"]
        try:
            return (
                await self._call(create, namespace, body)
                if is_new
                else await self._call(replace, l.NAME, namespace, body)
            )
        except ApiException as error:
            if error.status in (404, 409):
                return None
            raise

    async def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        def request() -> dict[str, Any]:
            answer = method(*arguments, _preload_content=False, _request_timeout=_TIMEOUT, **options)
            return dict(json.loads(answer.data))

        return await asyncio.get_running_loop().run_in_executor(self._thread, request)


@dataclass(slots=True)
class _Seat:
    """One scope: its Lease as we see it, and from when until when (monotonic seconds) we may act."""

    namespace: str
    sight: Sight = field(default_factory=Sight)
    acts_from: float = 0.0
    acts_until: float = 0.0
    terms: int = 0
    rival: tuple[str, str, float] = ("", "", 0.0)
    """An installation that stands aside for us, its note, and when we first saw that note."""
    trouble: str = ""


class Leader:
    """Takes and keeps the Leases of `namespaces`, or of the whole cluster where there are none.

    `me` is None where nothing says in which namespace the operator is (a run for development): it acts without a Lease.
    """

    def __init__(
        self,
        leases: Leases,
        me: Identity | None,
        namespaces: tuple[str, ...],
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._leases = leases
        self._has_election = me is not None
        self._me = me or Identity("", "")
        self._now = now
        self._wall = wall
        self._scope: l.Scope = "Namespace" if namespaces else "Cluster"
        self._home = self._me.installation.partition("/")[0]
        self._seats = {place: _Seat(place) for place in (namespaces or (self._home,))}
        self._others: dict[str, Sight] = {}
        self._looked_around = False
        self._noted: dict[tuple[str, str], float] = {}
        self._told: object = None

    def serves(self, namespace: str) -> bool:
        """Whether this operator, and no other, may write in a namespace at this moment."""
        if not self._has_election:
            return True
        seat = self._seat(namespace)
        return seat is not None and self._is_acting(seat) and not self._is_ceded(namespace)

    def rival(self, namespace: str) -> str:
        """`<namespace>/<Deployment>` of another operator that would act here and stands aside; empty where there is none."""
        seat = self._seat(namespace)
        if seat is None or self._now() - seat.rival[2] > 3 * l.DURATION_SECONDS:
            return ""
        return seat.rival[0]

    async def run(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Take, renew and look around for ever; `on_change` is called where our part, or who stands aside, has changed."""
        if not self._has_election:
            log.info("POD_NAMESPACE is empty: no election, no other operator may run")
            await asyncio.Event().wait()
        around = [self._look_around_for_ever(on_change)] if self._scope == "Cluster" else []
        await asyncio.gather(*(self._keep(seat, on_change) for seat in self._seats.values()), *around)

    async def release(self) -> None:
        """Give up what we hold, so that a successor need not wait for it to run out."""
        for seat in self._seats.values():
            held, seat.acts_until = self._holds(seat), 0.0
            if held and seat.sight.lease is not None:
                try:
                    await self._leases.put(seat.namespace, l.release(seat.sight.lease))
                except (ApiException, HTTPError) as error:
                    log.warning("the Lease of %s runs out by itself: %s", seat.namespace, _said(error))

    async def _keep(self, seat: _Seat, on_change: Callable[[], Awaitable[None]]) -> None:
        while True:
            started = self._now()
            trouble = ""
            try:
                await self._step(seat)
            except (ApiException, HTTPError) as error:
                trouble = _said(error)
            if trouble and trouble != seat.trouble:
                log.warning("the Lease %s of %s can't be had: %s", l.NAME, seat.namespace, trouble)
            seat.trouble = trouble
            await self._tell(on_change)
            pause = l.RENEW_SECONDS if self._holds(seat) else l.LOOK_SECONDS
            await asyncio.sleep(max(0.1, started + pause - self._now()))

    async def _step(self, seat: _Seat) -> None:
        started = self._now()
        if self._holds(seat) and seat.sight.lease is not None and await self._renew(seat, seat.sight.lease, started):
            return
        found = await self._leases.get(seat.namespace)
        seat.sight.see(found, self._now())
        is_ours = found is not None and l.holder(found) == str(self._me)
        if found is not None and is_ours and not l.has_lapsed(found, self._wall()):
            await self._renew(seat, found, started)
        elif found is not None and not is_ours and seat.sight.is_held(self._now()):
            await self._stand_aside(found)
        else:
            await self._claim(seat, found, started)

    async def _renew(self, seat: _Seat, found: l.Lease, started: float) -> bool:
        """False where the Lease is no longer as it was `found`."""
        kept = await self._leases.put(seat.namespace, l.renewal(found, self._wall()))
        if kept is None:
            return False
        if not self._holds(seat):  # The answer came late, or we come back: others may have begun since.
            was_restarted = not seat.terms and not l.has_lapsed(found, self._wall())
            if not await self._begins(seat, kept, was_restarted):
                return True
        seat.sight.see(kept, self._now())
        seat.acts_until = started + l.DEADLINE_SECONDS
        who, note = l.aside(kept)
        if who != self._me.installation and note != seat.rival[1]:
            seat.rival = (who, note, self._now())
        return True

    async def _claim(self, seat: _Seat, found: l.Lease | None, started: float) -> None:
        if self._scope == "Cluster":
            if not self._looked_around:
                await self._look_around()
            if await self._rivals():
                return
        claimed = await self._leases.put(
            seat.namespace, l.claim(found, self._me, self._scope, seat.namespace, self._wall())
        )
        if claimed is None or not await self._begins(seat, claimed):
            return
        seat.acts_until = started + l.DEADLINE_SECONDS
        log.info("holds the Lease %s of %s: acts for the %s", l.NAME, seat.namespace, self._scope.lower())

    async def _begins(self, seat: _Seat, ours: l.Lease, was_restarted: bool = False) -> bool:
        """Whether we may act by the Lease that we have just written; in a namespace after a while where another may act."""
        was_watched = seat.sight.was_watched(self._now())
        seat.sight.see(ours, self._now())
        if self._scope == "Cluster":
            await self._look_around()
            if await self._rivals():
                # Two hold theirs at once: the one that comes later steps back, or both, to try again at different times.
                await self._leases.put(seat.namespace, l.release(ours))
                await asyncio.sleep(random.uniform(0, 2 * l.LOOK_SECONDS))
                return False
        elif not (was_watched or was_restarted):
            # An operator of the whole cluster may be acting here: it sees the Lease within a round, and leaves.
            seat.acts_from = self._now() + l.NOTICE_SECONDS
        seat.rival = ("", l.aside(ours)[1], 0.0)  # It may be old: who still stands aside writes another.
        seat.terms += 1
        return True

    async def _rivals(self) -> list[l.Lease]:
        """Leases by which other operators act for the whole cluster, told that we stand aside."""
        held = [
            sight.lease
            for sight in self._others.values()
            if sight.lease is not None and l.scope(sight.lease) == "Cluster" and sight.is_held(self._now())
        ]
        for lease in held:
            await self._stand_aside(lease)
        return held

    async def _stand_aside(self, lease: l.Lease) -> None:
        """Leave a note on the Lease of another installation, once in its duration."""
        place, other = lease["metadata"]["namespace"], l.installation(lease)
        noted = self._noted.get((place, other))
        if other == self._me.installation or (noted is not None and self._now() - noted <= l.DURATION_SECONDS):
            return
        if await self._leases.put(place, l.marked(lease, self._me, self._wall())) is None:
            return
        self._noted[place, other] = self._now()
        if noted is not None:
            return
        if self._scope == "Cluster" and place == self._home and l.scope(lease) == "Namespace":
            text = "%s acts for %s, by the Lease that this operator needs for the whole cluster: it acts nowhere; install it in another namespace"
        else:
            text = "%s acts for %s: this operator stands aside there; uninstall one of the two, or give them different watchNamespaces"
        log.warning(text, other, "the whole cluster" if l.scope(lease) == "Cluster" else f"namespace {place}")

    async def _look_around_for_ever(self, on_change: Callable[[], Awaitable[None]]) -> None:
        while True:
            started = self._now()
            with contextlib.suppress(ApiException, HTTPError):  # the Lease of our own tells of the same trouble
                await self._look_around()
                for place, sight in self._others.items():
                    if self._is_ceded(place) and sight.is_held(self._now()) and sight.lease is not None:
                        await self._stand_aside(sight.lease)
            await self._tell(on_change)
            await asyncio.sleep(max(0.1, started + l.ROUND_SECONDS - self._now()))

    async def _look_around(self) -> None:
        found = {lease["metadata"]["namespace"]: lease for lease in await self._leases.everywhere()}
        found.pop(self._home, None)
        for place in found.keys() | self._others.keys():
            self._others.setdefault(place, Sight()).see(found.get(place), self._now())
        self._looked_around = True

    async def _tell(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Say so where our part has changed."""
        acting = {place for place, seat in self._seats.items() if self._is_acting(seat)}
        ceded = {place for place in self._others if self._is_ceded(place)}
        now = (acting, ceded, [(seat.terms, self.rival(place)) for place, seat in self._seats.items()])
        telemetry.leading.set(len(acting))
        if now != self._told:
            self._told = now
            await on_change()

    def _seat(self, namespace: str) -> _Seat | None:
        return self._seats.get(self._home if self._scope == "Cluster" else namespace)

    def _holds(self, seat: _Seat) -> bool:
        return self._now() < seat.acts_until

    def _is_acting(self, seat: _Seat) -> bool:
        return seat.acts_from <= self._now() < seat.acts_until

    def _is_ceded(self, namespace: str) -> bool:
        sight = self._others.get(namespace)
        has_own = sight is not None and sight.lease is not None and l.scope(sight.lease) == "Namespace"
        return has_own and sight is not None and sight.is_fresh(self._now())


class Gate:
    """Lets keys through to `reconcile` where we act, and keeps the others for when we do."""

    def __init__(
        self,
        leader: Leader,
        reconcile: Callable[[Key], Awaitable[float | None]],
        forget: Callable[[Key], None],
    ) -> None:
        self._leader = leader
        self._reconcile = reconcile
        self._forget = forget
        self._keys: set[Key] = set()

    async def reconcile(self, key: Key) -> float | None:
        """As the inner `reconcile`; nothing where another operator acts."""
        self._keys.add(key)
        try:
            if not self._leader.serves(key[0]):
                raise StoodDown
            again = await self._reconcile(key)
        except StoodDown:
            self._forget(key)
            return None
        if again is None:
            self._keys.discard(key)
        return again

    async def wake(self, queue: WorkQueue) -> None:
        """Our part has changed: look at everything anew."""
        for key in list(self._keys):
            await queue.add(key)


def _said(error: Exception) -> str:
    return said(error) if isinstance(error, ApiException) else " ".join(str(error).split())[:200]
