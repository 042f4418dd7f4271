"""An hour of ordinary life with 50 servings: does the operator's memory grow?

`python -m tools.fleet.soak --minutes 60`: loads that rise and fall, changed specs, Pods that go, servings that come and go, a
scrape of the operator's metrics. Every 30 s what its process holds is written down. The result is docs/data/soak.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemma_operator.api.serving import GROUP, PLURAL, VERSION
from tools.cluster.console import ClusterError
from tools.fleet.process import load_average
from tools.fleet.world import OURS, SPEC, World, await_all, is_current, namespace_of

SAMPLE_SECONDS, STEP_SECONDS = 30, 5
WAVE_SECONDS = 600
WARM_SECONDS = 600
"""Caches and the heap fill in this time; growth is told from what comes after."""


def wave(pool: str, now: float) -> float:
    """Requests per second of a pool: between 0.5 and 12 over ten minutes, each pool at its own time."""
    phase = zlib.crc32(pool.encode()) % 100 / 100
    return 6.25 - 5.75 * math.cos(2 * math.pi * (now / WAVE_SECONDS + phase))


class Life:
    """What goes on in a cluster, a step every few seconds."""

    def __init__(self, world: World, servings: int) -> None:
        self._world = world
        self._random = random.Random(10)
        self._alive = list(range(servings))
        self._next = servings
        self.done = {"specs changed": 0, "Pods deleted": 0, "servings replaced": 0}

    def step(self, number: int) -> None:
        """The n-th step: a spec is changed each 20 s, a Pod deleted each 30 s, a serving replaced each minute."""
        if number % 4 == 0:
            self._change()
        if number % 6 == 3:
            self._delete_pod()
        if number % 12 == 7:
            self._replace()

    def _change(self) -> None:
        spec = copy.deepcopy(SPEC)
        spec["pools"]["batch"]["maxNumSeqs"] = self._random.randint(1, 200)
        self._world.put(self._random.choice(self._alive), spec)
        self.done["specs changed"] += 1

    def _delete_pod(self) -> None:
        pods = self._world.api.get(f"/api/v1/pods?labelSelector={OURS}&resourceVersion=0")["items"]
        if pods:
            meta = self._random.choice(pods)["metadata"]
            self._world.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
            self.done["Pods deleted"] += 1

    def _replace(self) -> None:
        old = self._alive.pop(self._random.randrange(len(self._alive)))
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace_of(old)}/{PLURAL}/fleet-{old}"
        self._world.api.delete(path)
        self._world.create([self._next])
        self._alive.append(self._next)
        self._next += 1
        self.done["servings replaced"] += 1


def soak(minutes: float, servings: int, folder: Path, out: Path) -> dict[str, Any]:
    """Live for so long; returns the samples and what was done, and writes them to `out` as they come."""
    data: dict[str, Any] = {"servings": servings, "samples": []}
    with World("soak", folder) as world:
        world.traffic.rate = wave
        world.create(range(servings))
        operator = world.start()
        await_all("servings are reconciled", lambda: sum(map(is_current, world.servings())), servings, 600)
        life, started, number = Life(world, servings), time.monotonic(), 0
        while (passed := time.monotonic() - started) < minutes * 60:
            try:
                life.step(number)
            except (ClusterError, OSError) as error:
                print(f"step {number}: {error}", flush=True)
            if number % (SAMPLE_SECONDS // STEP_SECONDS) == 0:
                sample = {"seconds": passed, **asdict(world.usage()), "load_average": load_average(), **counts(world)}
                data["samples"].append({name: round(value, 1) for name, value in sample.items()})
                data |= {"minutes": round(passed / 60, 1), "done": life.done, "MiB per hour": slope(data["samples"])}
                out.write_text(json.dumps(data, indent=1) + "\n")
            number += 1
            time.sleep(max(0.0, started + number * STEP_SECONDS - time.monotonic()))
        data["healthy"] = operator.healthy()
        data["seconds until all are reconciled"] = round(
            await_all("servings are reconciled", lambda: sum(map(is_current, world.servings())), servings, 600), 1
        )
    return data


def counts(world: World) -> dict[str, float]:
    """What the operator has done so far, by its own metrics."""
    metrics = world.metrics()
    named = {"looks": "gemma_operator_reconciles_total", "writes": "gemma_operator_writes_total"}
    return {
        what: sum(value for name, value in metrics.items() if name.startswith(metric)) for what, metric in named.items()
    } | {"engines": len(world.traffic.engines)}


def slope(samples: Sequence[dict[str, Any]]) -> float | None:
    """MiB per hour by least squares, once warm; None where the run was too short for that."""
    warm = [(sample["seconds"] / 3600, sample["rss_mib"]) for sample in samples if sample["seconds"] >= WARM_SECONDS]
    if len(warm) < 3:
        return None
    return round(statistics.linear_regression(*zip(*warm, strict=True)).slope, 1)


def plot(data: dict[str, Any], path: Path) -> None:
    """RSS over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    minutes = [sample["seconds"] / 60 for sample in data["samples"]]
    axes.plot(minutes, [sample["rss_mib"] for sample in data["samples"]], color="#1f5fa8")
    axes.set(xlabel="minutes", ylabel="RSS, MiB", ylim=(0, None), xlim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run, write the data and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--servings", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("docs/data/soak.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/soak.svg"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = soak(args.minutes, args.servings, Path(folder), args.out)
        if "Traceback" in Path(folder, "operator.log").read_text():
            print("the operator's log holds a traceback")
    args.out.write_text(json.dumps(data, indent=1) + "\n")
    plot(data, args.picture)
    print({name: value for name, value in data.items() if name != "samples"})


if __name__ == "__main__":
    main()
