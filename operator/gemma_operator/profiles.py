"""Capacity profiles of pools: from the spec, or from the ConfigMap that it names; and whether they are of this engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma_operator.api.parse import stored_profile
from gemma_operator.api.scaling import CapacityProfile, MeasuredWith, ProfileKey
from gemma_operator.api.serving import GemmaServing
from gemma_operator.cluster import Cluster, Refused
from gemma_operator.desired import Engine
from gemma_operator.engine.accelerators import named
from gemma_operator.engine.catalog import lookup
from gemma_operator.engine.versions import UnknownVersion, parse_version, spell
from gemma_operator.engine.view import PoolView, served_name
from gemma_operator.scaling.policy import profile_of
from gemma_operator.scaling.profile import DEFAULT_PROFILE, Profile
from gemma_operator.workqueue import Key


class Profiles:
    """Reads what pools ask for. Of a ConfigMap that can't be read any more, the last good profile stays in use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._good: dict[Key, dict[ProfileKey, CapacityProfile]] = {}

    async def read(self, serving: GemmaServing, engines: Mapping[str, Engine]) -> dict[str, Profile]:
        """The profile of each pool that has one of its own."""
        key = (serving.namespace, serving.name)
        before = self._good.pop(key, {})
        good: dict[ProfileKey, CapacityProfile] = {}
        found = {}
        for name, pool in serving.spec.pools.items():
            given, source = pool.scaling.profile, pool.scaling.profile_from
            if given:
                found[name] = judged(profile_of(given), given.measured_with, engines[name].view)
            if not source:
                continue
            where = f"ConfigMap {source.name}"
            try:
                given = stored_profile(await self._text(serving.namespace, source))
            except ValueError as error:
                doubt = f"the profile in {where} can't be used: {error}"
                last = before.get(source)
                stand_in = profile_of(last, "last good") if last else DEFAULT_PROFILE
                found[name] = replace(stand_in, stale=last is None, unreadable=True, doubt=doubt)
                good |= {source: last} if last else {}
            else:
                good[source] = given
                found[name] = judged(profile_of(given, where), given.measured_with, engines[name].view)
        if good:
            self._good[key] = good
        return found

    def forget(self, key: Key) -> None:
        """The serving is gone."""
        self._good.pop(key, None)

    async def _text(self, namespace: str, source: ProfileKey) -> str:
        try:
            found = await self._cluster.get("ConfigMap", namespace, source.name)
        except Refused as error:
            raise ValueError(str(error)) from error
        if found is None:
            raise ValueError(f"there is none in namespace {namespace}; `gemma-operator profile` prints it")
        data = found.get("data") or {}
        if source.key not in data:
            has = f"it has {', '.join(sorted(data)[:5])}" if data else "it is empty"
            raise ValueError(f"it has no key {source.key}: {has}")
        return str(data[source.key])


def judged(profile: Profile, measured: MeasuredWith, view: PoolView) -> Profile:
    """The profile, marked as stale where it was measured with something else than the pool has."""
    doubts = [doubt for doubt in (_model(measured, view), _version(measured, view), _gpu(measured, view)) if doubt]
    return replace(profile, stale=True, doubt="with " + ", ".join(doubts)) if doubts else profile


def _model(measured: MeasuredWith, view: PoolView) -> str:
    model = view.spec.model
    ours = {model.id, served_name(view.spec), view.model_path, model.checkpoint}
    if measured.model is None or measured.model in ours:
        return ""
    if (known := lookup(measured.model)) and known == view.known_model:
        return ""
    return f"model {measured.model}, now {model.id}"


def _version(measured: MeasuredWith, view: PoolView) -> str:
    """Patch versions count as the same."""
    try:
        version = parse_version(measured.engine_version or "")
    except UnknownVersion:
        return ""
    return "" if version[:2] == view.version[:2] else f"vLLM {spell(version)}, now {spell(view.version)}"


def _gpu(measured: MeasuredWith, view: PoolView) -> str:
    gpu, ours = named(measured.gpu or ""), view.accelerator
    return "" if gpu is None or ours is None or gpu == ours else f"GPU {measured.gpu}, now {ours.name}"
