"""The HTTPRoute of a serving: how a request's header or path chooses the class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemma_operator.api.routing import GATEWAY_GROUP, POOL_GROUP, GatewayRouting
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.desired.inference_pool import INFERENCE_POOL
from gemma_operator.engine.settings import PORT

HTTP_ROUTE = "HTTPRoute"
CLASS_HEADER = "x-serving-class"
BATCH_PREFIX = "/batch"
# What an endpoint picker of every version reads. The rest (/v1/models, /health) has no prompt to go by: any engine answers it.
PICKED = ("/v1/chat/completions", "/v1/completions")


def http_route(serving: GemmaServing, gateway: GatewayRouting) -> dict[str, Any]:
    """Rules from the most specific to the one for all.

    A longer path wins over a header in the Gateway API: where one pool has a rule for a path, each has.
    """
    asked = gateway.model_dump(by_alias=True, exclude_none=True)
    timeouts = {"timeouts": asked["timeouts"]} if asked["timeouts"] else {}
    spec: dict[str, Any] = {"parentRefs": asked["parentRefs"], "rules": [rule | timeouts for rule in _rules(serving)]}
    if gateway.hostnames:
        spec["hostnames"] = gateway.hostnames
    return {
        "apiVersion": f"{GATEWAY_GROUP}/v1",
        "kind": HTTP_ROUTE,
        "metadata": names.serving_metadata(serving, names.entry_name(serving.name)),
        "spec": spec,
    }


def _rules(serving: GemmaServing) -> Iterable[dict[str, Any]]:
    spec = serving.spec
    batch, entry = spec.main_pool("batch"), spec.entry_pool
    with_picker = spec.routing.inference_pools.keys() if spec.routing else set()
    picked = PICKED if {batch, entry} & with_picker else ()
    if batch:
        for path in PICKED if batch in with_picker else ():
            yield _rewriting(BATCH_PREFIX + path, path, _backend(serving, batch, is_picked=True))
        yield _rewriting(BATCH_PREFIX, "/", _backend(serving, batch))
        yield from _choosing(
            serving, batch, picked, {"headers": [{"type": "Exact", "name": CLASS_HEADER, "value": "batch"}]}
        )
    yield from _choosing(serving, entry, picked, {})


def _choosing(
    serving: GemmaServing, pool: str, picked: tuple[str, ...], also: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    """Rules for requests that come as the engine takes them: those with a prompt, if they go another way, and all others."""
    if picked:
        yield {"matches": [_below(path) | also for path in picked], **_backend(serving, pool, is_picked=True)}
    yield {"matches": [_below("/") | also], **_backend(serving, pool)}


def _rewriting(prefix: str, instead: str, backend: dict[str, Any]) -> dict[str, Any]:
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": instead}}
    return {"matches": [_below(prefix)], "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}], **backend}


def _below(path: str) -> dict[str, Any]:
    return {"path": {"type": "PathPrefix", "value": path}}


def _backend(serving: GemmaServing, pool: str, is_picked: bool = False) -> dict[str, Any]:
    name, routing = names.child_name(serving.name, pool), serving.spec.routing
    if is_picked and routing and pool in routing.inference_pools:
        return {"backendRefs": [{"group": POOL_GROUP, "kind": INFERENCE_POOL, "name": name}]}
    return {"backendRefs": [{"kind": "Service", "name": name, "port": PORT}]}
