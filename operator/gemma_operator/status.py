"""The status of a GemmaServing from what was read and decided. Pure; every case sets every condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_operator.api import conditions as c
from gemma_operator.api.conditions import Condition, Status
from gemma_operator.api.pool import PoolClass
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired.deployment import SURGE, strategy
from gemma_operator.desired.names import entry_url, pool_url
from gemma_operator.engine.findings import Finding
from gemma_operator.engine.settings import PORT
from gemma_operator.observe import PoolState
from gemma_operator.rollout import ROOM_SECONDS, Waiting
from gemma_operator.routing_status import NO_WAYS, Ways, routing_ready
from gemma_operator.scaling_status import Scaling, pool_status
from gemma_operator.scaling_status import conditions as scaling_conditions
from gemma_operator.scaling_status import unknown as scaling_unknown
from gemma_operator.startup import Startup

# Reasons of Reconciling: no room for a new engine beside the old ones; engines are replaced one at a time for that.
BLOCKED = "RolloutBlocked"
WITHOUT_SPARE = "RolloutWithoutSpare"


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
    waiting: Sequence[Waiting] = (),
    rival: str = "",
    ways: Ways = NO_WAYS,
) -> dict[str, Any]:
    """Status of a serving whose spec was accepted. `now` is RFC 3339; `waiting`: Pod templates that were not applied;
    `rival`: another operator that would act here, as `<namespace>/<Deployment>`."""
    new = [
        *_progress(serving, states, old, waiting),
        Condition(c.VALID, "True", "Accepted", "The spec is valid"),
        _settings_sound(warnings),
        _update_available(waiting),
        _sole_operator(rival),
        *routing_ready(serving, ways),
        *scaling_conditions(scaling, old.get("conditions", ()) if _is_accepted(old) else ()),
    ]
    shown, loans = old.get("pools", {}), _loans(serving, states)
    pools = {
        name: _pool(serving, name, states.get(name, PoolState()), scaling, shown.get(name, {}), now) | loans[name]
        for name in serving.spec.pools
    }
    return _status(serving.generation, new, pools, old, now) | {"endpoints": _endpoints(serving)}


def refused_status(
    generation: int, refusal: Refusal, floor_serving: bool, old: Mapping[str, Any], now: str, rival: str = ""
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
        Condition(c.UPDATE_AVAILABLE, "Unknown", refusal.reason, unknown),
        _sole_operator(rival),
        *(Condition(c.ROUTING_READY, "Unknown", refusal.reason, unknown) for _ in _shown(old, c.ROUTING_READY)),
        *scaling_unknown(refusal.reason, unknown),
    ]
    kept = {"endpoints": old["endpoints"]} if "endpoints" in old else {}
    return _status(generation, new, old.get("pools", {}), old, now) | kept


def _status(
    generation: int, new: list[Condition], pools: Mapping[str, Any], old: Mapping[str, Any], now: str
) -> dict[str, Any]:
    merged = c.merge(old.get("conditions", []), new, generation, now)
    return {"observedGeneration": generation, "conditions": merged, "pools": dict(pools)}


def _shown(old: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The condition of that type that is shown now, if any."""
    return [condition for condition in old.get("conditions", []) if condition["type"] == kind]


def _is_accepted(old: Mapping[str, Any]) -> bool:
    return any(condition["status"] == "True" for condition in _shown(old, c.VALID))


def _endpoints(serving: GemmaServing) -> dict[str, str]:
    name, namespace = serving.name, serving.namespace
    classes: tuple[PoolClass, ...] = ("interactive", "batch")
    main = {of: pool for of in classes if (pool := serving.spec.main_pool(of))}
    urls: dict[str, str] = {of: pool_url(name, namespace, pool, PORT) for of, pool in main.items()}
    return {"entry": entry_url(name, namespace, PORT), **urls}


def _progress(
    serving: GemmaServing, states: Mapping[str, PoolState], old: Mapping[str, Any], waiting: Sequence[Waiting]
) -> list[Condition]:
    """Ready, Reconciling and Stalled. Scaling moves none of them; the floor and the revision do."""
    short, hindrances, rolling, kinds, problems = [], [], [], [], []
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
            rolling.append(_rollout(name, state))
        kinds.append(_kind_of_rollout(serving, state))
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
    if serving.spec.rollout.paused and not short:
        return [ready, _paused(states, waiting), stalled]
    if short or rolling:
        special = next((kind for kind in (WITHOUT_SPARE, BLOCKED) if kind in kinds), None)
        reason = special or ("RollingOut" if rolling and not short else "PoolsStarting")
        said = "; ".join((*(rolling or short), *([_ADVICE[special]] if special else [])))
        return [ready, Condition(c.RECONCILING, "True", reason, said), stalled]
    return [ready, Condition(c.RECONCILING, "False", "UpToDate", "All engines are on the newest revision"), stalled]


_ADVICE = {
    BLOCKED: "no node has room for a new engine beside the old ones: add one, or set spec.rollout.strategy to Replace "
    f"(Auto does so by itself after {ROOM_SECONDS // 60} minutes where a new engine fits in the place of an old one)",
    WITHOUT_SPARE: "no node has room for a new engine beside the old ones, so that each is stopped before the next is started",
}


def _rollout(name: str, state: PoolState) -> str:
    """How far a rollout is, and what hinders it."""
    if not state.settled:
        return f"pool {name} has a change that its Deployment has not begun"
    said = (
        f"pool {name} has {state.updated} of {state.desired} engines on the new revision, "
        f"and {state.outdated} on an older one"
    )
    return f"{said}: {state.problem.message}" if state.problem else said


def _kind_of_rollout(serving: GemmaServing, state: PoolState) -> str:
    if state.replacing:
        return WITHOUT_SPARE if strategy(serving) == SURGE else ""
    return BLOCKED if state.outdated and state.problem and state.problem.reason == "Unschedulable" else ""


def _paused(states: Mapping[str, PoolState], waiting: Sequence[Waiting]) -> Condition:
    held = [f"{waits}" for waits in waiting if waits.is_asked]
    halted = [_rollout(name, state) for name, state in states.items() if state.outdated]
    said = "; ".join(f"{what}: {', '.join(of)}" for what, of in (("waiting", held), ("halted", halted)) if of)
    return Condition(c.RECONCILING, "False", "Paused", f"spec.rollout.paused is true; {said or 'nothing waits'}")


def _update_available(waiting: Sequence[Waiting]) -> Condition:
    """Whether a newer operator, or changed values of its chart, would start engines in another way."""
    held = [f"{waits}" for waits in waiting if not waits.is_asked]
    if not held:
        return Condition(c.UPDATE_AVAILABLE, "False", "UpToDate", "Engines have the operator's newest defaults")
    said = (
        f"Newer defaults of the operator are ready for {', '.join(held)}. They come with the next change of the pool, "
        "or at once where spec.rollout.adopt is changed"
    )
    return Condition(c.UPDATE_AVAILABLE, "True", "NewDefaults", said)


def _sole_operator(rival: str) -> Condition:
    """Whether a second installation would act on the same objects."""
    if not rival:
        return Condition(c.SOLE_OPERATOR, "True", "NoOther", "No other operator would act in this namespace")
    said = (
        f"The operator {rival} watches this namespace too, and stands aside while this one acts: "
        "uninstall one of the two, or give them different watchNamespaces"
    )
    return Condition(c.SOLE_OPERATOR, "False", "AnotherOperator", said)


def _settings_sound(warnings: Sequence[Finding]) -> Condition:
    """What is allowed and yet unwise, or known to go wrong."""
    if not warnings:
        return Condition(c.SETTINGS_SOUND, "True", "NoWarnings", "Nothing known speaks against these settings")
    return Condition(c.SETTINGS_SOUND, "False", warnings[0].id, "; ".join(warning.message for warning in warnings))


def _pool(
    serving: GemmaServing, name: str, state: PoolState, scaling: Scaling, shown: Mapping[str, Any], now: str
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
    return out | _revision(state, shown, now) | pool_status(scaling.get(name), shown)


def _loans(serving: GemmaServing, states: Mapping[str, PoolState]) -> dict[str, dict[str, int]]:
    """What each pool has lent and borrowed now; nothing where that is none."""
    spec = serving.spec
    found: dict[str, dict[str, int]] = {name: {} for name in spec.pools}
    lent = {
        name: sum(engine.serves == "interactive" for engine in states.get(name, PoolState()).engines)
        for name in spec.pools
        if spec.class_of(name) == "batch"
    }
    found |= {name: {"lent": count} for name, count in lent.items() if count}
    if spec.borrower and any(lent.values()):
        found[spec.borrower] = {"borrowed": sum(lent.values())}
    return found


def _revision(state: PoolState, shown: Mapping[str, Any], now: str) -> dict[str, Any]:
    if state.revision is None:
        return {}
    is_same = shown.get("revision") == state.revision
    good = state.revision if state.is_whole else shown.get("lastGoodRevision")
    since = {"revision": state.revision, "revisionSince": shown["revisionSince"] if is_same else now}
    return since if good is None else {**since, "lastGoodRevision": good}


def _startup(now: Startup, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Once an engine is Ready its log is not read again: what was measured of its start stays."""
    over = (now.pod, now.phase) == (shown.get("pod"), shown.get("phase")) and now.phase == "Ready"
    return dict(shown) if over else now.as_status()
