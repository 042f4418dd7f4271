"""The API server: every read and write of the operator, with timeouts, off the event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient, Resource
from kubernetes.dynamic.exceptions import DynamicApiError

from gemma_operator import telemetry
from gemma_operator.api.routing import GATEWAY_GROUP, POOL_GROUP
from gemma_operator.api.serving import API_VERSION, GROUP, KIND, PLURAL, VERSION
from gemma_operator.desired.inference_pool import INFERENCE_POOL
from gemma_operator.desired.names import DELETION_COST, MANAGER
from gemma_operator.desired.route import HTTP_ROUTE
from gemma_operator.lease import StoodDown
from gemma_operator.loans import Flip
from gemma_operator.plan import SCALER

log = logging.getLogger(__name__)
Object = dict[str, Any]
Objects = list[Object]
_TIMEOUT = (5, 20)  # seconds to connect, to answer
# The client's own objects around an answer cost twice the time of reading it.
_PLAIN = {"serialize": False, "_request_timeout": _TIMEOUT}
_PARALLEL = 8
# Group, version and name in URLs of what the operator reads and writes: nothing has to be asked of discovery,
# which is slow on a large cluster and fails with any broken API service.
KINDS = {
    KIND: (GROUP, VERSION, PLURAL),
    "Deployment": ("apps", "v1", "deployments"),
    "Service": ("", "v1", "services"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "PersistentVolumeClaim": ("", "v1", "persistentvolumeclaims"),
    "ConfigMap": ("", "v1", "configmaps"),
    "Pod": ("", "v1", "pods"),
    "Event": ("", "v1", "events"),
    "CustomResourceDefinition": ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
}
# Kinds that a cluster needn't have, with their names in URLs.
OPTIONAL = {
    HTTP_ROUTE: (GATEWAY_GROUP, "v1", "httproutes"),
    INFERENCE_POOL: (POOL_GROUP, "v1", "inferencepools"),
}
# Objects of which the metadata is read at a time.
_CHUNK = 200
_METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
# Of so many writes it is remembered that they were ours; each is told of by the watch within seconds.
_OWN_WRITES = 10_000
# The start of an engine is told in far less.
_LOG_BYTES = 256 * 1024
# The tracebacks of vLLM's processes, one after another, have some 200.
_LAST_LINES = 1000


# What JSON may hold as it is and YAML must not.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Refused(Exception):
    """The API server refuses an object: asking again at once doesn't help, a person has to act."""


# Every way in which the API server says no.
API_ERRORS = (Refused, ApiException, DynamicApiError)


class Cluster:
    """Reads and writes over one `kubernetes` client; at most eight requests at a time.

    `may_write(namespace)` is asked before each write, which raises StoodDown where it says no.
    """

    def __init__(self, api: client.ApiClient, may_write: Callable[[str], bool] = lambda _: True) -> None:
        self._api = api
        self._may_write = may_write
        self._dynamic = DynamicClient(api, discoverer=lambda *_: None)
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._ended = 0.0
        """When the last request ended, in the loop's time."""
        self._own: OrderedDict[str, None] = OrderedDict()
        """Versions of objects that our writes made, the newest last."""

    def wrote(self, version: str) -> bool:
        """True where this resourceVersion is of what was created or reported here: the watch tells nothing new by it."""
        return version in self._own

    def silent_seconds(self) -> float:
        """How long ago the last request ended, however it did; each ends within its time."""
        return asyncio.get_running_loop().time() - self._ended

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """One object, or None where it doesn't exist; `namespace` is None for a kind that has none."""
        return await self._call(lambda: self._resource(kind).get(name=name, namespace=namespace, **_PLAIN))

    async def list(self, kind: str, namespace: str, selector: str, fields: str = "") -> list[Object]:
        """Objects of a kind in a namespace (all for an empty one) by label and field selector, each with its kind."""
        return await self.list_served(kind, namespace, selector, fields) or []

    async def list_served(self, kind: str, namespace: str, selector: str, fields: str = "") -> Objects | None:
        """As `list`; None where the cluster doesn't have that kind. Raises Refused where the operator may not read it."""
        found = await self._call(
            lambda: self._resource(kind).get(
                namespace=namespace, label_selector=selector, field_selector=fields, **_PLAIN
            )
        )
        if found is None:
            return None
        said_once = {"apiVersion": found["apiVersion"], "kind": kind}
        return [said_once | item for item in found["items"] or ()]

    async def metadata(self, kind: str, namespace: str, selector: str) -> AsyncIterator[Object]:
        """The metadata alone of objects of a kind, as `list`; none where the cluster doesn't have that kind."""
        asked: Object = {"namespace": namespace, "label_selector": selector, "limit": _CHUNK, "_continue": None}
        while asked["_continue"] != "":
            found = await self._call(
                lambda: self._resource(kind).get(**asked, header_params=dict(_METADATA), **_PLAIN)
            ) or {"items": [], "metadata": {}}
            for item in found["items"] or ():
                yield item["metadata"]
            asked["_continue"] = found["metadata"].get("continue", "")

    async def is_listed(self, kind: str) -> bool:
        """True where the API server names a kind to who asks what there is: some seconds after its CRD is established."""
        group, version, plural = KINDS.get(kind) or OPTIONAL[kind]
        groups = await self._call(lambda: self._dynamic.request("get", "/apis", **_PLAIN)) or {}
        if group not in {found["name"] for found in groups.get("groups", [])}:
            return False
        kinds = await self._call(lambda: self._dynamic.request("get", f"/apis/{group}/{version}", **_PLAIN)) or {}
        return plural in {found["name"] for found in kinds.get("resources", [])}

    async def log(self, namespace: str, pod: str) -> str:
        """What a Pod's engine has written since its start, each line with its time; empty where that can't be read."""
        return await self._log(namespace, pod, timestamps="true", limitBytes=_LOG_BYTES)

    async def last_words(self, namespace: str, pod: str, previous: bool) -> str:
        """The end of what a Pod's engine wrote before it died; `previous`: another has been started since."""
        return await self._log(namespace, pod, previous=str(previous).lower(), tailLines=_LAST_LINES)

    async def _log(self, namespace: str, pod: str, **asked: str | int) -> str:
        # The client's own class for Pods and their logs costs 80 MiB, and seconds of the event loop, when it is first used.
        def request() -> str:
            answer = self._dynamic.request(
                "get",
                f"{_pod_path(namespace, pod)}/log",
                query_params=[("container", "engine"), *asked.items()],
                header_params={"Accept": "text/plain, */*"},
                **_PLAIN,
            )
            return str(answer.data.decode(errors="replace"))

        async with self._slots:
            try:
                return await asyncio.to_thread(request)
            except (ApiException, DynamicApiError):
                return ""

    async def apply(self, body: Object, dry_run: bool = False, is_new: bool = False) -> Object:
        """Server-side apply as the operator's field manager; returns the object as it now stands. Raises Refused.

        `is_new`: it is known not to be there yet. Else nothing may be changed by it, and its version may be another's.
        """
        applied = await self._apply(body, MANAGER, dry_run=dry_run)
        if is_new and not dry_run:
            self._remember(applied)
        return applied

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Set `spec.replicas` of a Deployment, as the scaler's field manager. Raises Refused."""
        meta = {"name": name, "namespace": namespace}
        await self._apply(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}}, SCALER
        )

    async def go_first(self, namespace: str, pod: str, cost: int) -> None:
        """Ask the ReplicaSet to remove this Pod before others that cost more. Never raises: another one would do as well."""
        try:
            await self._patch_pod(namespace, pod, {"annotations": {DELETION_COST: str(cost)}})
        except API_ERRORS as error:
            log.warning("Pod %s/%s could not be marked to go first: %s", namespace, pod, error)

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """Evict the Pod of that UID; False where it is gone already. Raises what the API server says, as where a
        PodDisruptionBudget keeps it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }

        def request() -> Any:
            return self._dynamic.request("post", f"{_pod_path(namespace, pod)}/eviction", body=body, **_PLAIN)

        return await self._write("evict", "Pod", namespace, request) is not None

    async def flip(self, namespace: str, flip: Flip) -> bool:
        """Let an engine answer another class's requests; False where the Pod is gone. Raises what the API server says."""
        return await self._patch_pod(namespace, flip.pod, flip.metadata) is not None

    async def _patch_pod(self, namespace: str, pod: str, metadata: Object) -> Object | None:
        def request() -> Any:
            return self._resource("Pod").patch(
                body={"metadata": metadata},
                name=pod,
                namespace=namespace,
                content_type="application/merge-patch+json",
                **_PLAIN,
            )

        return await self._write("patch", "Pod", namespace, request)

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object; one that is gone already is no error."""
        await self._write(
            "delete",
            kind,
            namespace,
            lambda: self._resource(kind).delete(
                name=name, namespace=namespace, body={"propagationPolicy": "Background"}, **_PLAIN
            ),
        )

    async def put_status(self, namespace: str, name: str, status: Object) -> Object | None:
        """Replace our part of the status of a GemmaServing; returns it as it then stands, None where it is gone."""
        meta = {"name": name, "namespace": namespace}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        written = await self._write(
            "status", KIND, namespace, lambda: self._patch(self._resource(KIND).status, body, MANAGER, dry_run=False)
        )
        # Where the spec has changed meanwhile, its own event may never come: a watch that begins anew has the newest version alone.
        if written and written["metadata"].get("generation") == status.get("observedGeneration"):
            self._remember(written)
        return written

    async def event(self, serving: Object, kind: str, reason: str, message: str, reporter: str) -> None:
        """Post an Event about a GemmaServing; `kind` is Normal or Warning. Never raises: an Event is a courtesy."""
        now = datetime.now(UTC)
        meta = serving["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:200]}.", "namespace": meta["namespace"]},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "action": "Reconcile",
            "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "count": 1,
            "reportingComponent": MANAGER,
            "reportingInstance": reporter,
            "source": {"component": MANAGER},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
        }
        try:
            await self._write(
                "create",
                "Event",
                meta["namespace"],
                lambda: self._resource("Event").create(body=body, namespace=meta["namespace"], **_PLAIN),
            )
        except API_ERRORS:
            return

    async def _apply(self, body: Object, manager: str, dry_run: bool = False) -> Object:
        def request() -> Any:
            return self._patch(self._resource(body["kind"]), body, manager, dry_run)

        if dry_run:
            return await self._call(request) or body
        return await self._write("apply", body["kind"], body["metadata"]["namespace"], request) or body

    def _remember(self, written: Object) -> None:
        if version := written["metadata"].get("resourceVersion"):
            self._own[version] = None
            while len(self._own) > _OWN_WRITES:
                self._own.popitem(last=False)

    def _patch(self, resource: Any, body: Object, manager: str, dry_run: bool) -> Any:
        query = [("fieldValidation", "Strict")] + ([("dryRun", "All")] if dry_run else [])
        return resource.server_side_apply(
            body=as_yaml(body),
            name=body["metadata"]["name"],
            namespace=body["metadata"]["namespace"],
            field_manager=manager,
            force_conflicts=True,
            query_params=query,
            **_PLAIN,
        )

    def _resource(self, kind: str) -> Any:
        group, version, plural = KINDS.get(kind) or OPTIONAL[kind]
        status = {"status": {"kind": kind, "name": f"{plural}/status", "namespaced": True}}
        return Resource(
            "apis" if group else "api",
            group,
            version,
            kind,
            namespaced=True,
            name=plural,
            client=self._dynamic,
            subresources=status if kind == KIND else None,
        )

    async def _write(self, verb: str, kind: str, namespace: str, request: Callable[[], Any]) -> Object | None:
        """As `_call`, counted, and only while we may. Raises StoodDown."""

        def guarded() -> Any:
            if not self._may_write(namespace):
                raise StoodDown(f"another operator may act in namespace {namespace}")
            telemetry.writes.labels(verb, kind).inc()
            return request()

        return await self._call(guarded)

    async def _call(self, request: Callable[[], Any]) -> Object | None:
        """Run a blocking request in a thread: 404 is None, a refusal raises Refused, the rest goes up."""
        async with self._slots:
            try:
                return dict(await asyncio.to_thread(lambda: json.loads(request().data)))
            except (ApiException, DynamicApiError) as error:
                if error.status == 404:
                    return None
                if _is_refusal(error):
                    raise Refused(said(error)) from error
                raise
            finally:
                self._ended = asyncio.get_running_loop().time()


def _pod_path(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}"


def _is_refusal(error: Any) -> bool:
    # OwnerReferencesPermissionEnforcement knows a new CRD only after its next discovery, 10 s later or so.
    if "cannot find RESTMapping" in said(error):
        return False
    # Server-side apply answers 500 to what isn't of the kind's schema, such as an unknown field in a toleration.
    return error.status in (400, 403, 422) or "failed to create typed patch object" in said(error)


def said(error: Exception) -> str:
    """The API server's own sentence; of an error that isn't its, the error's text."""
    if not isinstance(error, (ApiException, DynamicApiError)):
        return str(error)
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


def as_yaml(body: Object) -> str:
    """An object as JSON that is YAML too, as server-side apply reads it.

    The client would escape what is beyond the first 65,536 characters of Unicode (emoji) in two halves, which the API server refuses.
    """
    text = json.dumps(body, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
