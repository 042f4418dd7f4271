"""The one place where core and shell meet: read, parse, compare, write, report."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gemma_operator import telemetry
from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.serving import KIND, GemmaServing
from gemma_operator.cluster import API_ERRORS, Cluster, Object, Refused, said
from gemma_operator.desired import CHILD_KINDS, ROUTE_KINDS, desired, is_entry, refuse_kept
from gemma_operator.desired.names import SERVING, label_value
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.progress import Marks, marks
from gemma_operator.engine.versions import UnknownVersion
from gemma_operator.events import BAD, condition_of, events_of
from gemma_operator.observe import PoolState, died_untold, is_unfit, observe, pods_by_pool, was_restarted
from gemma_operator.plan import Plan, plan, ref_of
from gemma_operator.profiles import Profiles
from gemma_operator.resync import Seen
from gemma_operator.rollout import crowded
from gemma_operator.routing_status import NOT_ENABLED, Hindrance, Ways, not_installed
from gemma_operator.routing_status import Reason as RoutingReason
from gemma_operator.scaler import Scaler
from gemma_operator.scaling_status import Scaling, nothing_amiss
from gemma_operator.settings import Settings
from gemma_operator.startup import TOLD_BY_LOG, wants_log
from gemma_operator.status import BLOCKED, Refusal, refused_status, status
from gemma_operator.workqueue import Key

log = logging.getLogger(__name__)
# What the API server refuses may be mended without an event of ours (a quota, a webhook, a right): ask again, in seconds.
REFUSED_RETRY_SECONDS = 30
# An engine's log is read this often while it starts, seconds.
STARTING_SECONDS = 10
# Whether a gateway has taken a route in is looked at this often until it has, seconds.
ROUTING_SECONDS = 30
# Conflict, too many requests, unavailable. A webhook that can't be called is a 500.
_BUSY = (409, 429, 503)
# A rollout without room is looked at this often, seconds.
BLOCKED_SECONDS = 60


class Reconciler:
    """`reconcile(key)` makes the cluster match one GemmaServing, and says in its status how far it is."""

    def __init__(
        self, cluster: Cluster, scaler: Scaler, settings: Settings, rival: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._cluster = cluster
        self._rival = rival
        self._scaler = scaler
        self._settings = settings
        self._profiles = Profiles(cluster)
        self.seen = Seen()

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one serving; returns the seconds until the next look, None where it is gone.

        They are infinite where an event, a tick or the resync will tell when it is time.
        """
        started = time.monotonic()
        result = "error"
        try:
            body = await self._cluster.get(KIND, *key)
            if body is None or body["metadata"].get("deletionTimestamp"):
                self._scaler.forget(key)
                self._profiles.forget(key)
                self.seen.forget(key)
                result = "gone"
                return None
            new, read = await self._converge(body)
            result = "refused" if condition_of(new, "Valid").get("status") == "False" else "ok"
            reported = await self._report(body, new)
            if read and _rests(new):
                self.seen.keep(key, (reported, *read))
            else:
                self.seen.drop(key)
            return _next_look_seconds(new)
        finally:
            telemetry.reconciles.labels(result).inc()
            telemetry.reconcile_seconds.observe(time.monotonic() - started)

    async def _converge(self, body: Object) -> tuple[Object, Sequence[Mapping[str, Any]]]:
        """Bring the children in line; returns the new status, and the objects that it was made from.

        None of these where it depends on more than those that are listed.
        """
        found, pods = await self._children(body)
        entries, children = _parted(found)
        old, now = body.get("status", {}), _now()
        started, last_words = await self._marks(pods, old.get("pools", {})), await self._last_words(pods)
        states = _states(children, pods, started, last_words)
        generation = body["metadata"].get("generation", 0)
        rival = self._rival(body["metadata"]["namespace"])
        try:
            serving = parse(body)
            want = desired(serving, self._settings.defaults)
            profiles = await self._profiles.read(serving, want.engines)
            is_sound = old.get("observedGeneration") == generation and nothing_amiss(old.get("conditions", ()))
            self._scaler.track(serving, states, old.get("pools", {}), profiles, want.lenders, is_sound)
            # Whatever hinders the rest of this look: a hung engine answers nobody.
            await self._restart_hung(body)
            scaling = self._scaler.scaling((serving.namespace, serving.name))
            targets = _targets(serving, states, scaling, old.get("pools", {}))
            stuck = {pool: crowded(alive, time.time()) for pool, alive in pods_by_pool(pods).items()}
            steps = await self._tried(children, lambda live: plan(serving, want.children, live, targets, stuck))
            if steps.conflicts:
                raise _NameConflict("; ".join(steps.conflicts))
            if steps.leftovers:
                raise Leftovers(steps.leftovers)
            refuse_kept({one.pool: one.kept for one in steps.waiting if one.is_asked}, self._settings.defaults)
            if steps.scale:
                await self._mark(serving.namespace, scaling)
            children = [*children, *await self._carry_out(serving, steps, children)]
            if await self._flip(body, scaling):
                scaling = self._scaler.scaling((serving.namespace, serving.name))
            ways = await self._open(serving, want.ways, entries)
        except (InvalidServing, UnknownVersion, RefusedSpec, Refused, _NameConflict) as error:
            refusal = Refusal(_REASONS[type(error)], str(error))
            return refused_status(generation, refusal, _any_ready(states), old, now, rival), []
        states = _states(children, pods, started, last_words)
        reads_more = any(pool.scaling.profile_from for pool in serving.spec.pools.values())
        read = [] if reads_more else [*found, *pods, *(way for way in ways.live if way["kind"] in ROUTE_KINDS)]
        return status(serving, states, scaling, want.warnings, old, now, steps.waiting, rival, ways), read

    async def _children(self, body: Object) -> tuple[list[Object], list[Object]]:
        """Live children of a serving, and its Pods."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        selector = f"{SERVING}={label_value(name)}"
        *children, pods = await asyncio.gather(
            *(self._cluster.list(kind, namespace, selector) for kind in (*CHILD_KINDS, "Pod"))
        )
        return [child for kind in children for child in kind], pods

    async def _marks(self, pods: list[Object], shown: Mapping[str, Any]) -> dict[str, Marks]:
        """What the newest engine of each pool has logged of its start: read while it starts, and once when it is Ready."""
        found = {}
        for pool, newest in ((pool, alive[0]) for pool, alive in pods_by_pool(pods).items()):
            name = newest["metadata"]["name"]
            before = shown.get(pool, {}).get("startup", {})
            was_starting = before.get("pod") == name and before.get("phase") != "Ready"
            if wants_log(newest) or was_starting:
                found[name] = marks(await self._cluster.log(newest["metadata"]["namespace"], name))
        return found

    async def _last_words(self, pods: list[Object]) -> dict[str, str]:
        """The end of the log of engines that died, where the kubelet keeps too little of it to say why, and of those that run and
        don't get Ready; one of each pool."""
        newest = (alive[0] for alive in pods_by_pool(pods).values())
        return {
            pod["metadata"]["name"]: await self._cluster.last_words(
                pod["metadata"]["namespace"], pod["metadata"]["name"], not is_unfit(pod) and was_restarted(pod)
            )
            for pod in newest
            if is_unfit(pod) or died_untold(pod)
        }

    async def _tried(self, live: list[Object], planned: Callable[[list[Object]], Plan]) -> Plan:
        """The plan over what is live, once the API server takes all of it as a dry run: a refusal leaves no half-made set.

        What bears a name we want, but not our labels, shows by that: only what is there has a version, and is then planned with.
        """
        steps = planned(live)
        new = [child for child in steps.apply if ref_of(child) not in set(map(ref_of, live))]
        try:
            answers = await asyncio.gather(*(self._cluster.apply(child, dry_run=True) for child in steps.apply))
        except Refused:
            if not (strangers := await self._named(new)):
                raise
        else:
            there = {ref_of(answer) for answer in answers if answer["metadata"].get("resourceVersion")}
            strangers = await self._named(child for child in new if ref_of(child) in there)
        return await self._tried([*live, *strangers], planned) if strangers else steps

    async def _named(self, wanted: Iterable[Object]) -> list[Object]:
        """What bears these names."""
        where = [(child["kind"], child["metadata"]["namespace"], child["metadata"]["name"]) for child in wanted]
        found = await asyncio.gather(*(self._cluster.get(*place) for place in where))
        return [stranger for stranger in found if stranger is not None]

    async def _carry_out(self, serving: GemmaServing, steps: Plan, live: Iterable[Object]) -> list[Object]:
        """Write what was tried over what is live.

        Returns what was applied as it now stands: a status of the new generation must not speak of the old children.
        """
        for scale in steps.scale:
            await self._cluster.scale(serving.namespace, scale.name, scale.replicas)
        there, applied = set(map(ref_of, live)), []
        for child in steps.apply:
            applied.append(await self._cluster.apply(child, is_new=ref_of(child) not in there))
            log.info("%s/%s: applied %s %s", serving.namespace, serving.name, child["kind"], child["metadata"]["name"])
        for kind, name in steps.delete:
            await self._cluster.delete(kind, serving.namespace, name)
            log.info("%s/%s: deleted %s %s", serving.namespace, serving.name, kind, name)
        return applied

    async def _open(self, serving: GemmaServing, wanted: Iterable[Object], entries: Iterable[Object]) -> Ways:
        """Bring the ways to the pools in line. What hinders that is told, and concerns no engine."""
        routes = [way for way in wanted if way["kind"] in ROUTE_KINDS]
        entry = await self._align(serving, [way for way in wanted if way not in routes], entries)
        try:
            live = await self._routes(serving)
        except API_ERRORS as error:
            return Ways(hindrance=_refusal(error))
        asked = {route["kind"] for route in routes}
        absent = [kind for kind in ROUTE_KINDS if kind in asked and live.get(kind) is None]
        if absent:  # What is there stays: half of the routes would lead nowhere.
            return Ways(hindrance=not_installed(absent[0]) if self._settings.routing else NOT_ENABLED)
        opened = await self._align(serving, routes, [route for found in live.values() for route in found or ()])
        return replace(opened, hindrance=entry.hindrance or opened.hindrance)

    async def _align(self, serving: GemmaServing, wanted: list[Object], live: Iterable[Object]) -> Ways:
        """Make what is live what is wanted; returns it as it then stands."""
        there = {ref_of(way): way for way in live}
        try:
            steps = await self._tried([*there.values()], lambda found: plan(serving, wanted, found, {}))
            if steps.leftovers:
                raise Leftovers(steps.leftovers)
            if steps.conflicts:
                return Ways(tuple(there.values()), Hindrance(RoutingReason.NAME_CONFLICT, "; ".join(steps.conflicts)))
            there |= {ref_of(way): way for way in await self._carry_out(serving, steps, there.values())}
        except API_ERRORS as error:
            return Ways(tuple(there.values()), _refusal(error))
        return Ways(tuple(way for ref, way in there.items() if ref not in steps.delete))

    async def _routes(self, serving: GemmaServing) -> dict[str, list[Object] | None]:
        """The serving's routes and InferencePools by kind; None where the cluster doesn't have the kind, or we no right to it."""
        if not self._settings.routing:
            return {}
        selector = f"{SERVING}={label_value(serving.name)}"
        found = (self._cluster.list_served(kind, serving.namespace, selector) for kind in ROUTE_KINDS)
        return dict(zip(ROUTE_KINDS, await asyncio.gather(*found), strict=True))

    async def _mark(self, namespace: str, scaling: Scaling) -> None:
        """Mark the Pods that lose the least work, before their pools shrink; the newest mark has the lowest cost."""
        victims = [pod for known in scaling.values() for pod in known.victims]
        await asyncio.gather(*(self._cluster.go_first(namespace, pod, -int(time.time())) for pod in victims))

    async def _restart_hung(self, body: Object) -> None:
        """Evict the Pod of an engine that hangs, where the spec asks for it and it is its turn."""
        namespace, name = key = body["metadata"]["namespace"], body["metadata"]["name"]
        if not (hung := self._scaler.to_restart(key)):
            return
        try:
            if not await self._cluster.evict(namespace, hung.pod, hung.uid):
                return  # It went by itself: the next turn is another engine's.
        except API_ERRORS as error:
            log.warning("%s/%s: Pod %s hangs and can't be evicted: %s", namespace, name, hung.pod, said(error))
            self._scaler.not_restarted(key, said(error))
            return
        self._scaler.restarted(key, hung)
        told = f"Pod {hung.pod} was evicted: requests were in its engine, and it did not get on"
        await self._cluster.event(body, "Warning", "EngineRestarted", told, self._settings.pod_name)

    async def _flip(self, body: Object, scaling: Scaling) -> bool:
        """Move engines between pools; True where that was refused, which concerns nothing else."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            for flip in (flip for known in scaling.values() for flip in known.flips):
                if await self._cluster.flip(namespace, flip):
                    log.info("%s/%s: %s", namespace, name, flip.message)
                    reason = "Lent" if flip.is_loan else "GivenBack"
                    await self._cluster.event(body, "Normal", reason, flip.message, self._settings.pod_name)
        except API_ERRORS as error:
            log.warning("%s/%s: an engine could not be moved: %s", namespace, name, said(error))
            self._scaler.hinder((namespace, name), said(error))
            return True
        return False

    async def _report(self, body: Object, new: Object) -> Object:
        """Write the status where it differs, and an Event for each condition that turned and each change of replicas.

        Returns the GemmaServing as it then stands, or as it was where the spec has changed meanwhile.
        """
        old = body.get("status", {})
        if new == {key: old.get(key) for key in new}:
            return body
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        written = await self._cluster.put_status(namespace, name, new)
        for kind, reason, message in events_of(old, new):
            await self._cluster.event(body, kind, reason, message, self._settings.pod_name)
        is_same = written and written["metadata"].get("generation") == body["metadata"].get("generation")
        return written if written and is_same else body


class _NameConflict(Exception):
    """A child's name is taken by somebody else's object."""


class Leftovers(Exception):
    """Children of a GemmaServing that was deleted a moment ago bear the names we want: the queue tries again."""

    def __init__(self, leftovers: Iterable[tuple[str, str]]) -> None:
        named = ", ".join(f"{kind} {name}" for kind, name in leftovers)
        super().__init__(f"waiting until garbage collection has removed {named} of the deleted GemmaServing")


_REASONS: dict[type[Exception], str] = {
    InvalidServing: "InvalidSpec",
    UnknownVersion: "UnknownEngineVersion",
    RefusedSpec: "InvalidSpec",
    Refused: "RefusedByApiServer",
    _NameConflict: "NameConflict",
}


def _targets(
    serving: GemmaServing, states: Mapping[str, PoolState], scaling: Scaling, shown: Mapping[str, Any]
) -> dict[str, int]:
    """Replicas per pool: what was decided, else what is there or was last shown there, always within the bounds."""
    targets = {}
    for name, pool in serving.spec.pools.items():
        state = states.get(name)
        there = state.desired if state else shown.get(name, {}).get("desired", pool.replicas.min)
        known = scaling.get(name)
        wanted = there if known is None or known.target is None else known.target
        is_ours = pool.scaling.mode == "Auto" or state is None
        targets[name] = min(max(wanted, pool.replicas.min), pool.replicas.ceiling) if is_ours else there
    return targets


def _refusal(error: Exception) -> Hindrance:
    """Why a way can't be made; raises the error again where the API server is only busy: then the queue tries soon."""
    if getattr(error, "status", None) in _BUSY:
        raise error
    return Hindrance(RoutingReason.REFUSED, said(error))


def _rests(new: Mapping[str, Any]) -> bool:
    """True where nothing is under way or wrong: what is may come to something else with time."""
    hurts = BAD | {"Reconciling": "True"}
    hurt = any(condition["status"] == hurts.get(condition["type"]) for condition in new["conditions"])
    # Why an engine is missing may be told by a log, of which there is no version.
    missing = any(pool["pending"] or "message" in pool for pool in new["pools"].values())
    return _next_look_seconds(new) == math.inf and not hurt and not missing


def _next_look_seconds(new: Mapping[str, Any]) -> float:
    """When to look again where no event of ours may come."""
    if condition_of(new, "Stalled").get("reason") == _REASONS[Refused]:
        return REFUSED_RETRY_SECONDS
    if condition_of(new, "Reconciling").get("reason") == BLOCKED:
        return BLOCKED_SECONDS
    routing = ROUTING_SECONDS if condition_of(new, "RoutingReady").get("status") == "False" else math.inf
    phases = (pool.get("startup", {}).get("phase") for pool in new.get("pools", {}).values())
    return STARTING_SECONDS if any(phase in TOLD_BY_LOG for phase in phases) else routing


def _states(
    children: Iterable[Object], pods: Iterable[Object], started: Mapping[str, Marks], last_words: Mapping[str, str]
) -> dict[str, PoolState]:
    return observe((child for child in children if child["kind"] == "Deployment"), pods, started, last_words)


def _parted(children: Iterable[Object]) -> tuple[list[Object], list[Object]]:
    """The entry Services, and the pools' children."""
    parts: tuple[list[Object], list[Object]] = ([], [])
    for child in children:
        parts[not is_entry(child)].append(child)
    return parts


def _any_ready(states: Mapping[str, PoolState]) -> bool:
    return bool(states) and all(state.ready > 0 or state.desired == 0 for state in states.values())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
