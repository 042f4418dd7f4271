"""The Lease by which one operator acts in a scope, and others stand aside. Pure: who holds it, what to write next.

A scope is the whole cluster, whose Lease is in the operator's own namespace, or one namespace, whose Lease is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

NAME = "gemmaserving.dev"
SCOPE = "gemmaserving.dev/scope"
ASIDE = "gemmaserving.dev/stands-aside"
"""Annotation of a Lease: another installation that would act in its scope, and when it last looked."""

# Defaults of k8s.io/component-base/config for the election of Kubernetes' own leaders, seconds; the holder renews
# half as often as they do, as a Lease in each of many namespaces is renewed.
DURATION_SECONDS = 15
LOOK_SECONDS = 2
RENEW_SECONDS = 4
# The holder stops before others may start, even if a renewal takes as long as a slow API server's 5 s.
DEADLINE_SECONDS = 12
# An operator of the whole cluster looks for operators of single namespaces this often, seconds;
# a new one of these waits until it has surely been seen.
ROUND_SECONDS = 4
NOTICE_SECONDS = 10

Scope = Literal["Cluster", "Namespace"]
Lease = Mapping[str, Any]


class StoodDown(Exception):
    """Another operator may act in a namespace: nothing is written there."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who holds a Lease: `installation` is `<namespace>/<Deployment>`, shared by its replicas."""

    installation: str
    pod: str

    def __str__(self) -> str:
        return f"{self.installation}/{self.pod}"


def holder(lease: Lease) -> str:
    """The holder's identity; empty where it was released."""
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def installation(lease: Lease) -> str:
    """`<namespace>/<Deployment>` of the holder."""
    return holder(lease).rpartition("/")[0]


def has_lapsed(lease: Lease, now: datetime) -> bool:
    """Whether our own Lease was not renewed in time: by the clock that wrote it, which is ours as a Pod stays on its node."""
    try:
        renewed = datetime.fromisoformat(str(lease["spec"]["renewTime"]).replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return True
    return abs((now - renewed).total_seconds()) > DURATION_SECONDS


def scope(lease: Lease) -> str:
    """What the Lease is about: Cluster or Namespace."""
    return str(lease["metadata"].get("labels", {}).get(SCOPE, ""))


def aside(lease: Lease) -> tuple[str, str]:
    """(installation that stands aside, when it said so); empty strings where there is none."""
    who, _, when = str(lease["metadata"].get("annotations", {}).get(ASIDE, "")).partition(" ")
    return who, when


@dataclass(slots=True)
class Sight:
    """One Lease as it was seen over time, by our own clock: whether it lives doesn't hang on two clocks that agree."""

    lease: Lease | None = None
    first_look: float | None = None
    last_look: float = 0.0
    changed_at: float | None = None
    """Not later than this it changed; `changed_after`: not sooner."""
    changed_after: float | None = None

    def see(self, lease: Lease | None, now: float) -> None:
        """Take over what was read at `now` (seconds, monotonic)."""
        if self.first_look is None:
            self.first_look = now
        elif _version(lease) != _version(self.lease):
            self.changed_at, self.changed_after = now, self.last_look
        self.lease, self.last_look = lease, now

    def is_fresh(self, now: float) -> bool:
        """Whether the Lease may still be in use: it has changed within its duration, or has not been watched for that long."""
        since = max((at for at in (self.first_look, self.changed_at) if at is not None), default=now)
        return self.lease is not None and now - since <= DURATION_SECONDS

    def is_held(self, now: float) -> bool:
        """Whether somebody holds it."""
        return self.lease is not None and bool(holder(self.lease)) and self.is_fresh(now)

    def was_watched(self, now: float) -> bool:
        """Whether it has been in use while we watched: then its scope was never anybody else's in between."""
        return self.changed_after is not None and now - self.changed_after <= DURATION_SECONDS


def claim(lease: Lease | None, me: Identity, kind: Scope, namespace: str, now: datetime) -> dict[str, Any]:
    """The Lease as the new holder writes it, on top of what it read."""
    old = dict(lease or {})
    spec = old.get("spec", {})
    stamp = _micro_time(now)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**old.get("metadata", {}), "name": NAME, "namespace": namespace, "labels": {SCOPE: kind}},
        "spec": {
            "holderIdentity": str(me),
            "leaseDurationSeconds": DURATION_SECONDS,
            "acquireTime": stamp,
            "renewTime": stamp,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if lease else 0),
        },
    }


def renewal(lease: Lease, now: datetime) -> dict[str, Any]:
    """The Lease as its holder renews it."""
    return {**lease, "spec": {**lease["spec"], "renewTime": _micro_time(now)}}


def release(lease: Lease) -> dict[str, Any]:
    """The Lease as its holder gives it up."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}


def marked(lease: Lease, me: Identity, now: datetime) -> dict[str, Any]:
    """Somebody else's Lease with the note that we stand aside."""
    notes = {**lease["metadata"].get("annotations", {}), ASIDE: f"{me.installation} {_micro_time(now)}"}
    return {**lease, "metadata": {**lease["metadata"], "annotations": notes}}


def _version(lease: Lease | None) -> object:
    """What changes when the holder acts, and not when somebody else leaves a note."""
    spec = (lease or {}).get("spec", {})
    return spec.get("holderIdentity"), str(spec.get("renewTime")), lease is None


def _micro_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
