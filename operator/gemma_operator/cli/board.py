"""What `gemma-operator top` shows: servings and their pools as they stand, and how they came there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.engine.view import pool_slo
from gemma_operator.pods import epoch

PoolKey = tuple[str, str, str]
Samples = Sequence[tuple[float, float]]
"""(epoch seconds, value), the oldest first."""
_SCALED = re.compile(r"pool (\S+): (\d+) -> (\d+) replicas")


@dataclass(frozen=True, slots=True)
class History:
    """How a pool came where it is, as far as that is known."""

    p95: Samples = ()
    """Milliseconds."""
    replicas: Samples = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool. None where nothing is known."""

    name: str
    kind: str
    desired: int | None
    ready: int | None
    pending: int | None
    p95: float | None
    """TTFT, milliseconds."""
    target: float | None
    """Of it, milliseconds."""
    attainment: str | None
    reason: str | None
    message: str | None
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Serving:
    """One GemmaServing."""

    namespace: str
    name: str
    state: str
    """Ready, or why it is not, in one word."""
    good: bool | None
    slo: str
    """`True`, `False` or `Unknown`, as the condition SLOMet has it."""
    problem: str
    """The first sentence that a person should read; empty where all is well."""
    pools: tuple[Pool, ...]

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


def serving(found: Mapping[str, Any], histories: Mapping[PoolKey, History]) -> Serving:
    """A serving by its object, however little of it is there."""
    meta, status = _map(found.get("metadata")), _map(found.get("status"))
    namespace, name = str(meta.get("namespace", "")), str(meta.get("name", "?"))
    listed = status.get("conditions")
    conditions = {str(c.get("type")): c for c in listed if isinstance(c, Mapping)} if isinstance(listed, list) else {}
    targets = _targets(found)
    pools = tuple(
        _pool(pool, _map(said), targets.get(pool), histories.get((namespace, name, pool), History()))
        for pool, said in _map(status.get("pools")).items()
    )
    state, good = _state(meta, conditions)
    slo = str(_map(conditions.get("SLOMet")).get("status", "Unknown"))
    return Serving(namespace, name, state, good, slo, _problem(meta, conditions), pools)


def _state(meta: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> tuple[str, bool | None]:
    if meta.get("deletionTimestamp"):
        return "Deleting", None
    ready = conditions.get("Ready")
    if ready is None:
        return "NoStatus", None
    if ready.get("status") == "True":
        return "Ready", True
    return str(ready.get("reason", "NotReady")), False


def _problem(meta: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> str:
    if meta.get("deletionTimestamp"):
        held = meta.get("finalizers")
        return f"being deleted since {meta['deletionTimestamp']}" + (f", held by {', '.join(held)}" if held else "")
    if not conditions:
        return "no status yet: does an operator watch this namespace?"
    for kind, bad in (
        ("Stalled", "True"), ("Ready", "False"), ("SLOMet", "False"), ("MetricsAvailable", "False"),
        ("CapacityAvailable", "False"), ("ScalingSound", "False"),
    ):  # fmt: skip
        condition = conditions.get(kind, {})
        if condition.get("status") == bad:
            return str(condition.get("message", condition.get("reason", kind)))
    return ""


def _targets(found: Mapping[str, Any]) -> dict[str, float]:
    """TTFT targets in milliseconds; of a spec that can't be read, none."""
    try:
        parsed = parse(found)
    except InvalidServing:
        return {}
    slos = {name: pool_slo(parsed.spec, name) for name in parsed.spec.pools}
    return {name: slo.ttft.seconds * 1000 for name, slo in slos.items() if slo}


def _pool(name: str, said: Mapping[str, Any], target: float | None, history: History) -> Pool:
    last = _map(said.get("lastDecision"))
    desired = _whole(said.get("desired"))
    return Pool(
        name=name,
        kind=str(said.get("class", "")),
        desired=desired,
        ready=_whole(said.get("ready")),
        pending=_whole(said.get("pending")),
        p95=_number(said.get("p95Milliseconds")),
        target=target,
        attainment=_text(said.get("attainment")),
        reason=_text(last.get("reason")),
        message=_text(said.get("message")) or _text(last.get("message")),
        history=history if history.replicas or desired is None else replace(history, replicas=((0.0, desired),)),
    )


def replicas_from_events(events: Iterable[Mapping[str, Any]], now: float) -> dict[PoolKey, Samples]:
    """Sizes of pools by the operator's Events `Scaled`, up to now; what happened before the first is its old size."""
    changes: dict[PoolKey, list[tuple[float, float, float]]] = {}
    for event in events:
        about = _map(event.get("involvedObject"))
        found = _SCALED.match(str(event.get("message", "")))
        if event.get("reason") != "Scaled" or not found:
            continue
        key = (str(about.get("namespace", "")), str(about.get("name", "")), found[1])
        changes.setdefault(key, []).append((_time(event), float(found[2]), float(found[3])))
    out: dict[PoolKey, Samples] = {}
    for key, listed in changes.items():
        listed.sort()
        first = listed[0]
        out[key] = [(first[0] - 1, first[1]), *((at, after) for at, _, after in listed), (now, listed[-1][2])]
    return out


def stepped(samples: Samples, since: float, until: float, cells: int) -> list[float | None]:
    """The value in each of `cells` equal parts of the time: the highest in it, else the last before it."""
    if not samples or cells < 1:
        return []
    part = (until - since) / cells
    out: list[float | None] = []
    for start, end in pairwise(since + part * n for n in range(cells + 1)):
        inside = [value for at, value in samples if start < at <= end]
        before = [value for at, value in samples if at <= start]
        out.append(max([*inside, *before[-1:]]) if inside else next(iter(before[-1:]), None))
    return out


def _time(event: Mapping[str, Any]) -> float:
    text = str(event.get("lastTimestamp") or event.get("eventTime") or "")
    try:
        return epoch(re.sub(r"\.\d+", "", text), 0.0)
    except ValueError:
        return 0.0


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return None if (number := _number(value)) is None else int(number)


def _text(value: Any) -> str | None:
    return " ".join(value.split()) if isinstance(value, str) and value else None
