"""The status of a GemmaServing from what was read and decided. Pure; every case sets every condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_operator.api import conditions as c
from gemma_operator.api.conditions import Condition, Status
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.names import pool_url
from gemma_operator.engine.findings import Finding
from gemma_operator.engine.settings import PORT
from gemma_operator.observe import PoolState
from gemma_operator.scaling_status import Scaling, pool_status
from gemma_operator.scaling_status import conditions as scaling_conditions
from gemma_operator.scaling_status import unknown as scaling_unknown
from gemma_operator.startup import Startup


@dataclass(frozen=True, slots=True)
class Refusal:
    """The spec, or its surroundings, can't be acted on: nothing was changed, what serves goes on serving."""

    reason: str
    message: str


def status(
    serving: GemmaServing,
    states: Mapping[str, PoolState],
    scaling: Scaling,
    warnings: Sequence[Finding],
    old: Mapping[str, Any],
    now: str,
) -> dict[str, Any]:
    """Status of a serving whose spec was accepted. `now` is RFC 3339."""
    new = [
        *_progress(serving, states, old),
        Condition(c.VALID, "True", "Accepted", "The spec is valid"),
        _settings_sound(warnings),
        *scaling_conditions(scaling),
    ]
    shown = old.get("pools", {})
    pools = {
        name: _pool(serving, name, states.get(name, PoolState()), scaling, shown.get(name, {}))
        for name in serving.spec.pools
    }
    return _status(serving.generation, new, pools, old, now)


def refused_status(
    generation: int, refusal: Refusal, floor_serving: bool, old: Mapping[str, Any], now: str
) -> dict[str, Any]:
    """Status of a serving whose spec can't be acted on; `floor_serving`: the last good state still answers."""
    stays = "; what served before goes on serving" if floor_serving else ""
    ready: Status = "True" if floor_serving else "False"
    unknown = "Not judged while the spec is refused"
    new = [
        Condition(c.READY, ready, "LastGoodServing" if floor_serving else refusal.reason, refusal.message + stays),
        Condition(c.RECONCILING, "False", refusal.reason, "Waiting for the spec to be changed"),
        Condition(c.STALLED, "True", refusal.reason, refusal.message),
        Condition(c.VALID, "False", refusal.reason, refusal.message),
        Condition(c.SETTINGS_SOUND, "Unknown", refusal.reason, unknown),
        *scaling_unknown(refusal.reason, unknown),
    ]
    return _status(generation, new, old.get("pools", {}), old, now)


def _status(
    generation: int, new: list[Condition], pools: Mapping[str, Any], old: Mapping[str, Any], now: str
) -> dict[str, Any]:
    merged = c.merge(old.get("conditions", []), new, generation, now)
    return {"observedGeneration": generation, "conditions": merged, "pools": dict(pools)}


def _progress(serving: GemmaServing, states: Mapping[str, PoolState], old: Mapping[str, Any]) -> list[Condition]:
    """Ready, Reconciling and Stalled. Scaling moves none of them; the floor and the revision do."""
    short, hindrances, rolling, problems = [], [], [], []
    # A change of size leaves a Deployment unsettled for a moment as well; only while this spec is new is that a rollout.
    before = {condition["type"]: condition["status"] for condition in old.get("conditions", [])}
    was_done = before.get(c.RECONCILING) == before.get(c.STALLED) == "False"
    is_new = old.get("observedGeneration") != serving.generation or not was_done
    for name, pool in serving.spec.pools.items():
        state = states.get(name, PoolState())
        floor = pool.replicas.min
        if state.ready < floor or not state.exists:
            short.append(
                f"pool {name} has {state.ready} of {floor} engines Ready"
                + (f": {state.problem.message}" if state.problem else "")
            )
            hindrances += [state.problem.reason] if state.problem else []
        is_rolling = not state.exists or state.outdated > 0 or (is_new and not state.settled)
        if is_rolling:
            rolling.append(
                f"pool {name} has {state.updated} of {state.desired} engines on the new revision, "
                f"and {state.outdated} on an older one"
                if state.settled
                else f"pool {name} has a change that its Deployment has not begun"
            )
        # A terminal problem stalls a floor or a rollout; a Pod that fails while the floor serves is scaling's concern.
        if state.problem and state.problem.terminal and (state.ready < floor or is_rolling):
            problems.append(state.problem)
    if short:
        ready = Condition(c.READY, "False", next(iter(hindrances), "PoolsStarting"), "; ".join(short))
    else:
        ready = Condition(c.READY, "True", "PoolsReady", "Every pool has its floor serving")
    if problems:
        stalled = Condition(c.STALLED, "True", problems[0].reason, problems[0].message)
        return [ready, Condition(c.RECONCILING, "False", "Stalled", "Waiting for a person; see Stalled"), stalled]
    stalled = Condition(c.STALLED, "False", "AsExpected", "Nothing waits for a person")
    if short or rolling:
        reason = "RollingOut" if rolling and not short else "PoolsStarting"
        return [ready, Condition(c.RECONCILING, "True", reason, "; ".join(rolling or short)), stalled]
    return [ready, Condition(c.RECONCILING, "False", "UpToDate", "All engines are on the newest revision"), stalled]


def _settings_sound(warnings: Sequence[Finding]) -> Condition:
    """What is allowed and yet unwise, or known to go wrong."""
    if not warnings:
        return Condition(c.SETTINGS_SOUND, "True", "NoWarnings", "Nothing known speaks against these settings")
    return Condition(c.SETTINGS_SOUND, "False", warnings[0].id, "; ".join(warning.message for warning in warnings))


def _pool(
    serving: GemmaServing, name: str, state: PoolState, scaling: Scaling, shown: Mapping[str, Any]
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "class": serving.spec.class_of(name),
        "desired": state.desired,
        "ready": state.ready,
        "pending": max(0, state.desired - state.ready),
        "url": pool_url(serving.name, serving.namespace, name, PORT),
    }
    if state.problem:
        out["message"] = state.problem.message
    if state.startup:
        out["startup"] = _startup(state.startup, shown.get("startup", {}))
    return out | pool_status(scaling.get(name))


def _startup(now: Startup, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Once an engine is Ready its log is not read again: what was measured of its start stays."""
    over = (now.pod, now.phase) == (shown.get("pod"), shown.get("phase")) and now.phase == "Ready"
    return dict(shown) if over else now.as_status()
