"""The composition root: clients, queue, scaler, kopf. No logic."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from pathlib import Path
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights
from urllib3.exceptions import HTTPError

from gemma_operator import __version__, handlers, telemetry
from gemma_operator.api.crd import CRD_NAME, missing_fields
from gemma_operator.cluster import API_ERRORS, Cluster, said
from gemma_operator.connection import connect
from gemma_operator.leader import Gate, Leader, Leases
from gemma_operator.lease import Identity
from gemma_operator.listing import LISTED_SECONDS, listed_within, until_listed, until_overlooked
from gemma_operator.metrics.client import Access, PrometheusClient
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.metrics.prometheus import PrometheusSource
from gemma_operator.metrics.source import MetricsSource
from gemma_operator.reconcile import Reconciler
from gemma_operator.resync import Resync
from gemma_operator.scaler import Scaler
from gemma_operator.settings import BadSetting, Settings
from gemma_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)
WORKERS = 4
# A tick over 2,000 pools makes 200,000 short-lived objects: collecting after each 700 of them costs a third of it. What
# lives for seconds, as kopf's task for each object that has changed, goes with the second number.
COLLECT_AFTER = (200_000, 5, 20)
# Keys that run when the operator is told to stop have this long to end, seconds: well below a Pod's 30 s of grace.
LAST_KEYS_SECONDS = 10
# A reading must be over well before the next tick.
READ_SHARE = 0.6


class WatchDied(Exception):
    """kopf has given up, of what its message says."""


async def run(settings: Settings) -> None:
    """Run the operator until it is told to stop. Raises where a part of it dies, so that it is restarted whole."""
    gc.set_threshold(*COLLECT_AFTER)
    kopf.configure(
        verbose=settings.log_level == "DEBUG",
        quiet=settings.log_level in ("WARNING", "ERROR"),
        log_format=kopf.LogFormat.JSON if settings.log_json else kopf.LogFormat.PLAIN,
    )
    if settings.log_level != "DEBUG":
        for chatty in ("kopf", "aiohttp.access"):  # one line per watch event and per probe otherwise
            logging.getLogger(chatty).setLevel(logging.WARNING)
        for handler in logging.getLogger().handlers:
            handler.addFilter(_without_traceback)
    try:
        telemetry.serve(settings.metrics_port)
    except OSError as error:
        raise BadSetting(f"GEMMA_METRICS_PORT is {settings.metrics_port}: {error.strerror}; choose another") from error
    scaler = Scaler(_source(settings), settings)
    api = connect(settings.pod_name)
    leader = Leader(Leases(api), _identity(settings), settings.namespaces)
    cluster = Cluster(api, leader.serves)
    reconciler = Reconciler(cluster, scaler, settings, leader.rival)
    gate = Gate(leader, reconciler.reconcile, scaler.forget)
    queue = WorkQueue(gate.reconcile, said)
    telemetry.queue_depth.set_function(lambda: queue.depth)
    registry = kopf.OperatorRegistry()
    handlers.register(
        registry, queue, settings, lambda: min(queue.stuck_seconds(), cluster.silent_seconds()), cluster.wrote
    )
    log.info("gemma-operator %s starts, watching %s", __version__, ", ".join(settings.namespaces) or "all namespaces")
    if not settings.namespaces:  # a namespaced operator may not read CRDs
        await _tell_of_an_old_crd(cluster)
    is_listed = await listed_within(cluster, LISTED_SECONDS)
    insights = Insights()
    watch = asyncio.create_task(_kopf(settings, registry, insights), name="watch")
    workers = [asyncio.create_task(queue.work(), name=f"worker {n}") for n in range(WORKERS)]
    others = [
        asyncio.create_task(scaler.run(queue), name="scaler"),
        asyncio.create_task(leader.run(lambda: gate.wake(queue)), name="leader"),
        asyncio.create_task(Resync(cluster, reconciler.seen, settings).run(queue), name="resync"),
        asyncio.create_task(until_listed(cluster, is_listed), name="CRD"),
    ]
    if handlers.watches_routes(settings):
        others.append(asyncio.create_task(until_overlooked(cluster, lambda: _watched(insights)), name="routes"))
    await asyncio.wait([watch, *workers, *others], return_when=asyncio.FIRST_COMPLETED)
    died = [part for part in (*workers, *others) if part.done() and not part.cancelled()]
    if died:
        watch.cancel()
        died[0].result()
    await queue.close()
    for part in others:
        part.cancel()
    _, busy = await asyncio.wait(workers, timeout=LAST_KEYS_SECONDS)
    if not busy:  # else the Lease runs out by itself, after the last write
        await leader.release()
    with contextlib.suppress(asyncio.CancelledError):
        await _ended(watch)


async def _ended(watch: asyncio.Task[None]) -> None:
    """Raise what kopf died of in our words: a list that the API server answers with 410 ends it, and it names its errors to nobody."""
    try:
        await watch
    except Exception as error:
        why = error.args[0] if error.args else error
        raise WatchDied(f"the watch of the API server ended: {why}; the operator has to start anew") from error


def _watched(insights: Insights) -> set[tuple[str, str, str]] | None:
    found = {(kind.group, kind.version, kind.plural) for kind in insights.watched_resources}
    return found if insights.ready_resources.is_set() else None


async def _kopf(settings: Settings, registry: kopf.OperatorRegistry, insights: Insights) -> None:
    ours: dict[str, Any] = {"namespaces": settings.namespaces} if settings.namespaces else {"clusterwide": True}
    kopf_settings = kopf.OperatorSettings()
    handlers.configure(kopf_settings, settings)
    kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(kopf.login_via_client)
    await kopf.operator(
        registry=registry,
        settings=kopf_settings,
        insights=insights,
        standalone=True,
        identity=settings.pod_name,  # type: ignore[arg-type]  # kopf would ask for the user's name, which an image's uid has not
        liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
        **ours,
    )


async def _tell_of_an_old_crd(cluster: Cluster) -> None:
    """Fields that the CRD in the cluster lacks are dropped by the API server, without a word to who writes them."""
    try:
        found = await cluster.get("CustomResourceDefinition", None, CRD_NAME)
    except (*API_ERRORS, HTTPError):
        return  # what hinders us here hinders the rest, which says so
    missing = missing_fields(found) if found else []
    telemetry.crd_missing_fields.set(len(missing))
    if missing:
        log.warning(
            "the CRD %s is older than this operator and lacks %s: the API server drops these fields; upgrade it "
            "(helm upgrade with crds.enabled=true, or kubectl apply --server-side -f gemmaservings.yaml)",
            CRD_NAME,
            ", ".join(missing),
        )


def _without_traceback(record: logging.LogRecord) -> bool:
    """The text of what kopf logs says what failed."""
    if record.name.startswith("kopf"):
        record.exc_info = None
    return True


def _identity(settings: Settings) -> Identity | None:
    if not settings.pod_namespace:
        return None
    return Identity(f"{settings.pod_namespace}/{settings.operator_name}", settings.pod_name)


def _source(settings: Settings) -> MetricsSource:
    client = None
    if settings.prometheus_url:
        token = Path(settings.prometheus_token_file) if settings.prometheus_token_file else None
        access = Access(
            settings.prometheus_url,
            token_file=token,
            ca_file=settings.prometheus_ca_file,
            skip_tls_verify=settings.prometheus_skip_tls_verify,
            headers=settings.prometheus_headers,
        )
        client = PrometheusClient(access, timeout_seconds=settings.tick_seconds * READ_SHARE)
    if client and settings.metrics_source == "prometheus":
        return PrometheusSource(client)
    return EngineSource(client, timeout_seconds=settings.tick_seconds * READ_SHARE)
