"""When engines that run are replaced, and how: only by what the user changes, and with the room there is. Pure.

A Deployment carries a record of what it was made from: the user's part of the spec as a hash, and the Pod template that was
rendered for it. While the user's part is the same, the recorded template is applied again, whatever a newer operator would render.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.deployment import REPLACE
from gemma_operator.desired.names import ASKED, POOL, TEMPLATE
from gemma_operator.pods import epoch

Object = dict[str, Any]
# Set by the Deployment's controller.
REVISION = "deployment.kubernetes.io/revision"
_HASH = "pod-template-hash"
# A node with GPUs that a cluster autoscaler orders takes minutes to come. Nothing is lost meanwhile: the old engines serve.
ROOM_SECONDS = 600
# Parts of the spec, and of a pool, that no Pod template depends on. A new field that is one belongs here from its first build on:
# what is hashed must be the same for every later one, or an upgrade replaces engines.
NOT_OF_PODS = ("gpuBudget", "heartbeat", "pools", "rollout", "routing")
NOT_OF_ITS_PODS = ("replicas", "scaling")
# What decides where a Pod fits.
_PLACE = (
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName", "runtimeClassName",
    "priorityClassName", "resourceClaims",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Pod template that is rendered and not applied."""

    pool: str
    is_asked: bool
    """True: the user changed the spec, and rollouts are paused. False: a newer operator's defaults."""
    difference: str
    kept: Object
    """The one that stays."""

    def __str__(self) -> str:
        return f"pool {self.pool}: {self.difference}"


@dataclass(frozen=True, slots=True)
class _Record:
    """What a Deployment was made from."""

    asked: str
    template: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Record | None:
        """The record of a live Deployment; None where there is none, or somebody changed it."""
        annotations = found["metadata"].get("annotations", {})
        template = annotations.get(TEMPLATE, "")
        asked, _, seal = annotations.get(ASKED, "").partition(".")
        return cls(asked, template) if seal == _digest(template) else None

    def on(self, child: Object) -> Object:
        """The child with this record as annotations."""
        marks = {ASKED: f"{self.asked}.{_digest(self.template)}", TEMPLATE: self.template}
        annotations = {**child["metadata"].get("annotations", {}), **marks}
        return {**child, "metadata": {**child["metadata"], "annotations": annotations}}


def settle(serving: GemmaServing, child: Object, found: Mapping[str, Any] | None) -> tuple[Object, list[Waiting]]:
    """The Deployment to apply over the live one, with its record, and what has to wait.

    The rendered template is taken where there is no engine to be replaced, or where the user changed the pool's spec and
    rollouts aren't paused. Else the recorded one stays.
    """
    pool = str(child["metadata"]["labels"][POOL])
    new = _Record(_asked(serving, pool), _text(child["spec"]["template"]))
    old = _Record.of(found) if found else None
    paused = serving.spec.rollout.paused
    if found is None or old is None or (old.asked != new.asked and not paused):
        return new.on(child), []
    kept, wanted = json.loads(old.template), json.loads(new.template)
    spec = {**child["spec"], "template": kept}
    # A Deployment that is paused before its controller has seen it never gets a Pod.
    if paused and REVISION in found["metadata"]["annotations"]:
        spec["paused"] = True
    waiting = [] if kept == wanted else [Waiting(pool, old.asked != new.asked, difference(kept, wanted), kept)]
    return old.on({**child, "spec": spec}), waiting


def with_room(serving: GemmaServing, child: Object, found: Mapping[str, Any] | None, crowded: int) -> Object:
    """The Deployment with the strategy for the room there is: `crowded` Pods wait for that of an older engine.

    Auto surges at first. Once that got stuck, engines are replaced until the rollout is over.
    """
    if serving.spec.rollout.strategy != "Auto" or found is None or _record_text(found) != _record_text(child):
        return child
    live: Object = found["spec"].get("strategy", {})
    if live.get("rollingUpdate", {}).get("maxSurge") == 0 and not _is_whole(found):
        strategy = live
    elif crowded:
        # What has no room is unavailable already: one beyond that could never be stopped.
        strategy = {**REPLACE, "rollingUpdate": {"maxSurge": 0, "maxUnavailable": crowded}}
    else:
        return child
    return {**child, "spec": {**child["spec"], "strategy": strategy}}


def crowded(pods: Iterable[Mapping[str, Any]], now: float) -> int:
    """How many living Pods of one pool have found no room for ROOM_SECONDS (`now` is in epoch seconds).

    None counts unless one of them fits in the place of an engine of another revision: it asks for the same, and may go
    wherever that one may.
    """
    pods = list(pods)
    placed = [pod for pod in pods if pod.get("spec", {}).get("nodeName")]
    waiting = [pod for pod in pods if _lacks_room(pod, now)]
    fits = any(
        _revision(pod) != _revision(other) and _footprint(pod) == _footprint(other)
        for pod in waiting
        for other in placed
    )
    return len(waiting) if fits else 0


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs between two Pod templates, by name; of values only images are shown, the others may be secrets."""
    before, after = _named(old), _named(new)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    said = []
    for kind, plural in (("image", "image"), ("flag", "flags"), ("variable", "variables"), ("field", "fields")):
        names = [name for of, name in changed if of == kind]
        if kind == "image" and names:
            said.append(f"image {before.get((kind, ''), 'none')} -> {after.get((kind, ''), 'none')}")
        elif names:
            said.append(f"{plural} {', '.join(names)}")
    return "; ".join(said) or "the order of arguments or variables"


def _asked(serving: GemmaServing, pool: str) -> str:
    """Hash of all that the user says about a pool's engines."""
    pools = serving.written.get("pools") or {}
    said = {
        **{name: value for name, value in serving.written.items() if name not in NOT_OF_PODS},
        "pool": {name: value for name, value in (pools.get(pool) or {}).items() if name not in NOT_OF_ITS_PODS},
        "adopt": serving.spec.rollout.adopt,
    }
    return _digest(_text(said))


def _record_text(deployment: Mapping[str, Any]) -> Any:
    return deployment["metadata"].get("annotations", {}).get(TEMPLATE)


def _is_whole(found: Mapping[str, Any]) -> bool:
    """True where a live Deployment has all its engines Ready, and none of an older revision."""
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    is_seen = status.get("observedGeneration", 0) >= found["metadata"].get("generation", 0)
    return is_seen and all(status.get(count, 0) == wanted for count in ("replicas", "updatedReplicas", "readyReplicas"))


def _lacks_room(pod: Mapping[str, Any], now: float) -> bool:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            # The scheduler says so of nodes that suit the Pod in every other way (plugin NodeResourcesFit).
            is_full = "Insufficient" in condition.get("message", "")
            return is_full and now - epoch(condition.get("lastTransitionTime"), now) >= ROOM_SECONDS
    return False


def _revision(pod: Mapping[str, Any]) -> Any:
    return pod["metadata"].get("labels", {}).get(_HASH)


def _footprint(pod: Mapping[str, Any]) -> Any:
    spec = pod.get("spec", {})
    containers = chain(spec.get("initContainers", []), spec.get("containers", []))
    return [spec.get(field) for field in _PLACE], [container.get("resources") for container in containers]


def _named(template: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The parts of a Pod template by kind and name."""
    pod = template["spec"]
    engine, *others = pod["containers"]
    parts: dict[tuple[str, str], Any] = {("image", ""): engine.get("image")}
    parts |= {("flag", flag): values for flag, values in _flags(engine.get("args", []))}
    parts |= {("variable", variable["name"]): variable for variable in engine.get("env", [])}
    of_pod = {**template.get("metadata", {}), **pod, "containers": None, "sidecars": others}
    of_engine = {**engine, "image": None, "args": None, "env": None}
    return parts | {
        ("field", name): (of_pod.get(name), of_engine.get(name)) for name in of_pod.keys() | of_engine.keys()
    }


def _flags(args: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    flag = "(arguments)"
    for part in args:
        if part.startswith("--"):
            flag, is_joined, value = part.partition("=")
            found.setdefault(flag, []).extend([value] if is_joined else [])
        else:
            found.setdefault(flag, []).append(part)
    yield from found.items()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
