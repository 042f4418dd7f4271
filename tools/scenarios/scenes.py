"""The scenes: a serving, and the load that it gets part by part. Rates are requests a second, times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLOWER = 4
"""The stand-in takes so many times as long as a GPU, and the target is as much longer: clients and engines share two cores."""
SLO_SECONDS = 0.3 * SLOWER
COSTS = {"request": 5, "promptToken": 0.04, "generatedToken": 0.18, "mediaItem": 30, "mediaUnit": 1.3}
"""Of the built-in profile (docs/autoscaling.md), milliseconds."""
PROCESSOR_CACHE_GB = 0.02
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
    slo: float = SLO_SECONDS
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

    By the step model one engine holds its target (p95, Poisson) up to 22 / SLOWER requests a second of which half are videos.
    """
    made = (_step(short), _video(short), _infeasible(short), _outage(short))
    return {scene.name: scene for scene in made}


def _pools(cold_start: float, lend: int = 0, slo: float = SLO_SECONDS) -> dict[str, Any]:
    """An interactive and a batch pool whose settings let the one stand in for the other."""
    profile = {"costs": {name: cost * SLOWER for name, cost in COSTS.items()}}
    variables = {"STANDIN_STARTUP_SECONDS": f"{cold_start:g}", "STANDIN_SPEED": f"{1 / SLOWER:g}"}
    shared = {
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "modalities": {"video": {"count": 1, "frames": 6}},
        "resources": {"requests": {"cpu": "80m"}},
        # Room for one item: without a processor cache, and without our plugin, vLLM doesn't count media.
        "encoder": {"processorCacheGb": PROCESSOR_CACHE_GB},
    }
    target = f"{slo * 1000:g}ms"
    return {
        "interactive": {
            "replicas": {"min": 1, "max": 4},
            "slo": {"ttft": {"percentile": 95, "target": target}},
            "scaling": {"profile": profile},
            **shared,
        },
        "batch": {
            "replicas": {"min": 1, "max": 3},
            # Its own size is no part of the scene; lending goes on.
            "scaling": {"mode": "Off"} | ({"lend": lend} if lend else {}),
            **shared,
        },
    }


def _step(short: bool) -> Scene:
    warm, peak, cold_start = (12, 45, 20) if short else (30, 165, 60)
    parts = (Part("before", 10 / SLOWER, warm), Part("three times the load", 30 / SLOWER, peak))
    return Scene(
        "step",
        f"Three times the load, engines that take {cold_start} s to start",
        (
            *(() if short else (Run("without donors", _pools(cold_start), parts, batch_engines=3),)),
            Run("with donors", _pools(cold_start, lend=2), parts, batch_engines=3),
        ),
    )


def _video(short: bool) -> Scene:
    first, second = (15, 40) if short else (45, 120)
    parts = (Part("10 % videos", 22 / SLOWER, first, 0.1), Part("30 % videos", 22 / SLOWER, second, 0.3))
    return Scene("video", "Three times the videos at the same request rate", (Run("video", _pools(5), parts),))


def _infeasible(short: bool) -> Scene:
    slo = SLO_SECONDS / 15
    # SloInfeasible needs five minutes' proof, and a minute before it for engines that settle.
    parts = (Part("nobody can be so quick", 6 / SLOWER, 45 if short else 480),)
    run = Run("infeasible", _pools(5, slo=slo), parts, slo)
    return Scene("infeasible", "A target that no number of engines can hold", (run,))


def _outage(short: bool) -> Scene:
    before, outage, after = (15, 20, 10) if short else (30, 600, 30)
    parts = (
        Part("peak", 24 / SLOWER, before),
        Part("no Prometheus", 24 / SLOWER, outage, before=(*PROMETHEUS, "--replicas=0")),
        Part("it is back", 24 / SLOWER, after, before=(*PROMETHEUS, "--replicas=1")),
    )
    pools = _pools(5)
    return Scene("outage", f"Prometheus is gone for {outage} s at the peak", (Run("outage", pools, parts),))
