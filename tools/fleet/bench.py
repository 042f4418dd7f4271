"""One operator before 10, 100 and 1,000 servings of two pools: `python -m tools.fleet.bench 10 100 1000`.

Cold: all servings are there before the operator is. Steady: every engine is Ready and answers two requests per second, nothing is
changed, and Prometheus scrapes the operator each 30 s. The rows go to docs/data/fleet.json, the plot to docs/pictures/fleet.svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemma_operator.api.serving import GROUP, PLURAL, VERSION
from gemma_operator.scaler import MEMORY_REFRESH_SECONDS
from tools.cluster.console import ClusterError, say
from tools.fleet.process import load_average
from tools.fleet.world import SPEC, World, await_all, condition, is_current, namespace_of

STEADY_SECONDS, SCRAPE_SECONDS, QUIET_SECONDS, APPLIES, POLL_SECONDS = 300, 30, 40, 20, 0.01
"""Steady for the chart's `resyncSeconds`, in which every serving is compared once with what its last look saw."""
GOALS = {
    "cold s": 120, "cold CPU s": None, "steady CPU of a core %": 5, "peak RSS MiB": 300, "apply to Deployments p95 s": 1, "restart s": None,
}  # fmt: skip
AFTERWARDS_SECONDS = 400
"""After a restart: the five minutes in which the status is left alone, and those in which it would be renewed."""
LIST_SECONDS = 5
"""A list of a thousand servings costs the API server as much as the operator's own work of that time."""


def measure(count: int, folder: Path) -> dict[str, float]:
    """The figures of one size. What can't be measured is told, and left out."""
    row: dict[str, float] = {"servings": count, "pools": 2 * count, "load average before": load_average()}
    with World(f"fleet-{count}", folder) as world:
        world.create(range(count))
        row |= _cold(world, count)
        for part in (_settled, _learnt, _steady, _applied, _warm):
            say(f"{count} servings: {row}")
            try:
                row |= part(world, count)
            except (TimeoutError, OSError, ClusterError, subprocess.TimeoutExpired) as error:
                say(f"{part.__name__} of {count} servings: {error}")
        row["load average after"] = load_average()
    return {name: round(value, 3) for name, value in row.items()}


def _are(world: World, kind: str) -> int:
    return sum(condition(serving, kind) == "True" for serving in world.servings())


def _cold(world: World, count: int) -> dict[str, float]:
    started = time.monotonic()
    operator = world.start()
    await_all("servings are reconciled", lambda: sum(map(is_current, world.servings())), count, 3600, LIST_SECONDS)
    seconds = time.monotonic() - started
    made = world.count("deployments")
    assert made == 2 * count, f"{made} Deployments of {2 * count}"
    assert operator.healthy()
    return {
        "cold s": seconds,
        "cold CPU s": world.usage().cpu_seconds,
        "cold RSS MiB": world.usage().rss_mib,
        "cold requests per serving": len(world.requests()) / count,
        "cold looks per serving": _reconciles(world.metrics()) / count,
    }


def _settled(world: World, count: int) -> dict[str, float]:
    await_all("engines are Ready", lambda: _are(world, "Ready"), count, 1200, 5)
    return {"seconds from Ready to rest": _rest(world)}


def _learnt(world: World, _: int) -> dict[str, float]:
    """Wait until what each pool has learnt at first is written down."""
    time.sleep(MEMORY_REFRESH_SECONDS)
    return {"seconds from lessons to rest": _rest(world)}


def _rest(world: World) -> float:
    """Wait until nothing has been written for a while; returns for how long something was."""
    started, before, since = time.monotonic(), -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        if (now := len(world.writes())) != before:
            before, since = now, time.monotonic()
        if time.monotonic() - started > 300:
            raise TimeoutError(f"the operator has not come to rest: {now} writes")
        time.sleep(5)
    return since - started


def _steady(world: World, _: int) -> dict[str, float]:
    assert world.operator is not None
    stood = {serving["metadata"]["uid"]: serving for serving in world.servings()}
    before, metrics, writes, queries, started = (
        world.usage(), world.metrics(), world.writes(), world.queries, time.monotonic(),
    )  # fmt: skip
    scrapes = 0
    while (passed := time.monotonic() - started) < STEADY_SECONDS:
        if passed >= scrapes * SCRAPE_SECONDS:
            urllib.request.urlopen(f"http://127.0.0.1:{world.operator.metrics_port}/metrics", timeout=30).read()
            scrapes += 1
        time.sleep(0.5)
    cpu = world.usage().cpu_seconds - before.cpu_seconds
    queries = world.queries - queries
    after = world.metrics()
    written = world.writes()[len(writes) :]
    moved = Counter(
        path
        for now in world.servings()
        for path in _moved(stood.get(now["metadata"]["uid"], {}).get("status"), now["status"])
    )
    say(f"written at rest: {Counter(told.rpartition(' ')[0] for told in written)}, moved: {moved.most_common(20)}")
    ticks = after["gemma_operator_tick_seconds_count"] - metrics["gemma_operator_tick_seconds_count"]
    tick_seconds = after["gemma_operator_tick_seconds_sum"] - metrics["gemma_operator_tick_seconds_sum"]
    looks = _reconciles(after) - _reconciles(metrics)
    return {
        "steady CPU of a core %": 100 * cpu / passed,
        "steady writes": len(written),
        "steady looks per s": looks / passed,
        "tick s": tick_seconds / max(1, ticks),
        "Prometheus queries per tick": queries / max(1, ticks),
        "steady RSS MiB": world.usage().rss_mib,
        "peak RSS MiB": world.usage().peak_mib,
    }


def _moved(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two statuses differ; lists as a whole, but for conditions."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from _moved(before.get(name), after.get(name), f"{path}.{name}")
    elif path == ".conditions":
        stood = {one["type"]: one for one in before}
        for new in after:
            yield from _moved(stood.get(new["type"]), new, f"{path}.{new['type']}")
    elif before != after:
        yield path


def _reconciles(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("gemma_operator_reconciles_total"))


def _applied(world: World, count: int) -> dict[str, float]:
    """Create to both Deployments, as a client sees it that asks every 10 ms."""
    from kubernetes import client, config

    config.load_kube_config(str(world.plane.kubeconfig))
    custom, apps = client.CustomObjectsApi(), client.AppsV1Api()
    world.create_namespace(count)
    found = []
    for number in range(count, count + APPLIES):
        name, namespace = f"fleet-{number}", namespace_of(count)
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GemmaServing", "metadata": {"name": name}, "spec": SPEC}
        started = time.perf_counter()
        custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body)
        for pool in SPEC["pools"]:
            while not _exists(apps, f"{name}-{pool}", namespace):
                time.sleep(POLL_SECONDS)
        found.append(time.perf_counter() - started)
        time.sleep(1)
    return {
        "apply to Deployments median s": statistics.median(found),
        "apply to Deployments p95 s": sorted(found)[round(0.95 * APPLIES) - 1],
        "apply to Deployments slowest s": max(found),
    }


def _exists(apps: Any, name: str, namespace: str) -> bool:
    from kubernetes.client.exceptions import ApiException

    try:
        apps.read_namespaced_deployment(name, namespace, _preload_content=False)
    except ApiException as error:
        if error.status == 404:
            return False
        raise
    return True


def _warm(world: World, count: int) -> dict[str, float]:
    """A restart: every serving is looked at, nothing is there to be done, then or later."""
    assert world.operator is not None
    _rest(world)
    world.operator.stop()
    writes = len(world.writes())
    started = time.monotonic()
    world.start()
    await_all("servings are looked at", lambda: int(_reconciles(world.metrics())), count + APPLIES, 900)
    row = {"restart s": time.monotonic() - started, "restart CPU s": world.usage().cpu_seconds}
    time.sleep(AFTERWARDS_SECONDS)
    return row | {
        "restart writes": len(world.writes()) - writes,
        "restart looks per serving": _reconciles(world.metrics()) / (count + APPLIES),
        "restart RSS MiB": world.usage().rss_mib,
        "restart peak RSS MiB": world.usage().peak_mib,
    }


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """How each figure grows with the fleet; dashed: what is wanted of a thousand servings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for axes, (name, wanted) in zip(figure.subplots(2, 3).flat, GOALS.items(), strict=True):
        found = [(row["servings"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*found, strict=True), "o-", color="#1f5fa8")
        if wanted is not None:
            axes.axhline(wanted, color="#b03030", linestyle="--", linewidth=1)
        axes.set(title=name, xscale="log", ylim=(0, None), xlabel="servings")
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure each size, write the data and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--out", type=Path, default=Path("out/fleet.json"))
    parser.add_argument("--picture", type=Path, default=Path("out/fleet.svg"))
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(size, Path(folder)))
        print(json.dumps(rows[-1], indent=1), flush=True)
        args.out.parent.mkdir(exist_ok=True, parents=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, args.picture)


if __name__ == "__main__":
    main()
