"""How clients reach the pools beyond their Services: an HTTPRoute of the Gateway API, InferencePools of its inference extension.

Types and limits are those of gateway.networking.k8s.io/v1 and inference.networking.k8s.io/v1.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gemma_operator.api.base import ApiModel, Name, Rule
from gemma_operator.api.values import Schema

GATEWAY_GROUP = "gateway.networking.k8s.io"
POOL_GROUP = "inference.networking.k8s.io"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"^{_LABEL}(\.{_LABEL})*$"
# gateway-api.sigs.k8s.io/geps/gep-2257
_DURATION = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def _duration(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_DURATION, value):
        raise ValueError(
            f"{value!r} is not a duration of the Gateway API such as 30s, 10m or 1h30m; 0s means without limit"
        )
    return value


def _seconds(duration: str) -> float:
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9]+)(ms|[hms])", duration))


GatewayDuration = Annotated[str, BeforeValidator(_duration), Schema({"pattern": _DURATION, "maxLength": 28})]
Group = Annotated[str, Field(max_length=253, pattern=rf"^$|{_SUBDOMAIN}")]
Kind = Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Hostname = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$")]


class ParentRef(ApiModel):
    """A Gateway, or one of its listeners, that the route attaches to."""

    name: Name
    """Name of the Gateway."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_LABEL}$")] | None = None
    """Its namespace, whose Gateway must allow routes from here; the GemmaServing's own where absent."""
    section_name: Annotated[str, Field(min_length=1, max_length=253, pattern=_SUBDOMAIN)] | None = None
    """Name of one listener; all that fit where absent."""
    port: Port | None = None
    """Port of the listeners; all where absent."""
    group: Group | None = None
    """API group of the parent; that of the Gateway API where absent."""
    kind: Kind | None = None
    """Kind of the parent; Gateway where absent."""

    def clashes(self, other: ParentRef) -> bool:
        """True where both name one parent and don't differ by its section."""
        mine, yours = ((p.group or GATEWAY_GROUP, p.kind or "Gateway", p.namespace, p.name) for p in (self, other))
        return mine == yours and (
            None in (self.section_name, other.section_name) or self.section_name == other.section_name
        )


class Timeouts(ApiModel):
    """Time limits of the HTTPRoute."""

    request: GatewayDuration | None = None
    """For the whole request, until the last byte of the answer; 0s is without limit, and the gateway decides where absent."""
    backend_request: GatewayDuration | None = None
    """For one try at an engine; not above request."""

    RULES = (
        Rule(
            "timeouts-ordered",
            "!has(self.request) || !has(self.backendRequest) || duration(self.request) == duration('0s') || "
            "duration(self.backendRequest) <= duration(self.request)",
            lambda t: (
                t.request is None
                or t.backend_request is None
                or not _seconds(t.request)
                or _seconds(t.backend_request) <= _seconds(t.request)
            ),
            "backendRequest is a part of request and can't be longer",
            shows=("backendRequest", "request"),
            source="Gateway API, HTTPRouteTimeouts",
        ),
    )


class GatewayRouting(ApiModel):
    """One HTTPRoute: requests with the header `x-serving-class: batch`, or with a path below /batch, go to the batch pool,
    all others to the interactive pool."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=8)]
    """Gateways that take the requests in."""
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = []
    """Host names of the requests; all that the Gateway's listeners take where absent. Servings behind one Gateway need different ones."""
    timeouts: Timeouts = Timeouts(request="0s", backend_request="0s")
    """Time limits; none (0s) where absent, as an answer is streamed for as long as tokens come. `{}` writes no field at
    all, for a gateway that refuses it (GKE)."""

    RULES = (
        Rule(
            "parents-distinct",
            "self.parentRefs.all(p, self.parentRefs.exists_one(q, p.name == q.name && "
            "(has(p.__namespace__) ? p.__namespace__ : '') == (has(q.__namespace__) ? q.__namespace__ : '') && "
            "(has(p.kind) ? p.kind : 'Gateway') == (has(q.kind) ? q.kind : 'Gateway') && "
            f"(has(p.group) ? p.group : '{GATEWAY_GROUP}') == (has(q.group) ? q.group : '{GATEWAY_GROUP}') && "
            "(!has(p.sectionName) || !has(q.sectionName) || p.sectionName == q.sectionName)))",
            lambda g: all(sum(p.clashes(q) for q in g.parent_refs) == 1 for p in g.parent_refs),
            "two of parentRefs name the same Gateway: remove one, or give each a sectionName of its own",
            source="Gateway API, CommonRouteSpec",
        ),
    )


class PickerPort(ApiModel):
    """A port of the endpoint picker's Service."""

    number: Port
    """Its number; 9002 is usual."""


class EndpointPickerRef(ApiModel):
    """The endpoint picker (EPP) that chooses an engine for each request; yours, the operator starts none."""

    name: Name
    """Name of its Service, in the namespace of the GemmaServing."""
    port: PickerPort | None = None
    """Its ext-proc port; needed for a Service."""
    failure_mode: Literal["FailOpen", "FailClose"] | None = None
    """What becomes of requests while it doesn't answer: FailOpen lets the gateway choose an engine, FailClose drops them; FailClose where absent."""
    group: Group | None = None
    """Its API group; the core group where absent."""
    kind: Kind | None = None
    """Its kind; Service where absent."""

    RULES = (
        Rule(
            "picker-port",
            "(has(self.kind) && self.kind != 'Service') || has(self.port)",
            lambda picker: picker.kind not in (None, "Service") or picker.port is not None,
            "port.number is needed for an endpoint picker that is a Service",
            source="Gateway API inference extension, EndpointPickerRef",
        ),
    )


class InferencePoolRouting(ApiModel):
    """One InferencePool over the engines of a pool."""

    endpoint_picker_ref: EndpointPickerRef
    """Its endpoint picker: each serves one InferencePool, which is called as the pool's Deployment is."""


class Routing(ApiModel):
    """Ways to the pools besides their Services, which are always there; needs the operator's chart with routing.enabled=true."""

    gateway: GatewayRouting | None = None
    """An HTTPRoute of the Gateway API; none where absent."""
    inference_pools: Annotated[
        dict[Name, InferencePoolRouting],
        Field(max_length=8),
        Schema({"maxProperties": 8}),
    ] = {}
    """InferencePools by the name of the pool; a pool without is reached through its Service."""

    RULES = (
        Rule(
            "routing-asks-something",
            "has(self.gateway) || (has(self.inferencePools) && self.inferencePools.size() > 0)",
            lambda routing: routing.gateway is not None or bool(routing.inference_pools),
            "it asks for nothing: set gateway, inferencePools or both, or remove it (the Services are always there)",
        ),
    )
