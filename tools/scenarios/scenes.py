"""The scenes: a serving, and the load that it gets part by part. Rates are requests a second, times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROMETHEUS = ("--namespace", "gemma-system", "scale", "deployment/gemma-operator-prometheus")


@dataclass(frozen=True)
class Part:
    """One stretch of load."""

    name: str
    rate: float
    seconds: float
    video_share: float = 0.5
    before: tuple[str, ...] = ()
    """A kubectl command that begins it."""


@dataclass(frozen=True)
class Run:
    """One serving under one load. A scene has several where it compares."""

    name: str
    pools: Mapping[str, Any]
    parts: tuple[Part, ...]
    slo: float = 0.3
    batch_engines: int = 1
    """Warm at the beginning."""


@dataclass(frozen=True)
class Scene:
    """What is shown, and by which runs."""

    name: str
    title: str
    runs: tuple[Run, ...] = field(default=())


def scenes(short: bool = False) -> dict[str, Scene]:
    """All scenes by name; `short` ones take a fraction of the time, for tests.

    By the step model one engine holds 300 ms (p95, Poisson) up to 22 requests a second of which half are videos.
    """
    made = (_step(short), _video(short), _infeasible(short), _outage(short))
    return {scene.name: scene for scene in made}


def _pools(cold_start: float, most: int = 4, lend: int = 0, **interactive: Any) -> dict[str, Any]:
    """An interactive and a batch pool whose settings let the one stand in for the other."""
    env = [{"name": "STANDIN_STARTUP_SECONDS", "value": f"{cold_start:g}"}]
    shared = {"env": env, "modalities": {"video": {"count": 1, "frames": 6}}}
    return {
        "interactive": {"replicas": {"min": 1, "max": most}, **shared, **interactive},
        "batch": {
            "replicas": {"min": 1, "max": 3},
            # Its own size is no part of the scene; lending goes on.
            "scaling": {"mode": "Off"} | ({"lend": lend} if lend else {}),
            **shared,
        },
    }


def _step(short: bool) -> Scene:
    warm, peak, cold_start = (12, 45, 20) if short else (60, 240, 60)
    parts = (Part("before", 10, warm), Part("three times the load", 30, peak))
    return Scene(
        "step",
        f"Three times the load, engines that take {cold_start} s to start",
        (
            *(() if short else (Run("without donors", _pools(cold_start), parts, batch_engines=3),)),
            Run("with donors", _pools(cold_start, lend=2), parts, batch_engines=3),
        ),
    )


def _video(short: bool) -> Scene:
    first, second = (15, 40) if short else (90, 210)
    parts = (Part("10 % videos", 22, first, 0.1), Part("30 % videos", 22, second, 0.3))
    return Scene("video", "Three times the videos at the same request rate", (Run("video", _pools(5), parts),))


def _infeasible(short: bool) -> Scene:
    pools = _pools(5, slo={"ttft": {"percentile": 95, "target": "20ms"}})
    parts = (Part("nobody can be so quick", 6, 30 if short else 240),)
    return Scene(
        "infeasible", "A target that no number of engines can hold", (Run("infeasible", pools, parts, slo=0.02),)
    )


def _outage(short: bool) -> Scene:
    before, outage, after = (15, 20, 10) if short else (90, 600, 60)
    parts = (
        Part("peak", 24, before),
        Part("no Prometheus", 24, outage, before=(*PROMETHEUS, "--replicas=0")),
        Part("it is back", 24, after, before=(*PROMETHEUS, "--replicas=1")),
    )
    pools = _pools(5)
    return Scene("outage", f"Prometheus is gone for {outage} s at the peak", (Run("outage", pools, parts),))
