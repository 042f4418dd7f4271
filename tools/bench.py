"""Speeds as data: `make bench` prints one table, and writes it as JSON to out/bench.json.

Apply to Deployments is measured against the real API server: from the creation of the object to the existence of both Deployments,
as a client that polls every 5 ms sees it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from gemma_operator.api.crd import crd
from gemma_operator.api.parse import parse
from gemma_operator.desired import Defaults, desired
from tools.bench_scaling import POOLS, decide_milliseconds, tick_figures
from tools.bench_simulator import day_figures
from tools.cluster.control_plane import ControlPlane

ROUNDS = 20
RENDERS = 200
EXAMPLE: dict[str, Any] = yaml.safe_load(Path("examples/quick-start/serving.yaml").read_text())


def render_milliseconds() -> list[float]:
    """Time to parse and render one object, in milliseconds."""
    body = {**EXAMPLE, "metadata": {"name": "bench", "uid": "u", "generation": 1}}
    found = []
    for _ in range(RENDERS):
        started = time.perf_counter()
        desired(parse(body), Defaults("vllm/vllm-openai:v0.32.0"))
        found.append((time.perf_counter() - started) * 1000)
    return found


def apply_milliseconds() -> list[float]:
    """Time from the creation of a serving to the existence of both Deployments, in milliseconds."""
    from kubernetes import client, config  # the other figures don't need a cluster

    from tests.support.operator import Operator

    found = []
    with ControlPlane.start("bench") as plane, tempfile.TemporaryDirectory() as folder:
        config.load_kube_config(str(plane.kubeconfig))
        client.ApiextensionsV1Api().create_custom_resource_definition(crd())
        custom, apps = client.CustomObjectsApi(), client.AppsV1Api()
        with Operator(plane.kubeconfig, Path(folder, "log")):
            for round_ in range(ROUNDS + 1):
                name = f"bench-{round_}"
                body = {**EXAMPLE, "metadata": {"name": name}}
                started = time.perf_counter()
                custom.create_namespaced_custom_object("gemmaserving.dev", "v1alpha1", "default", "gemmaservings", body)
                while (
                    len(
                        apps.list_namespaced_deployment(
                            "default", label_selector=f"gemmaserving.dev/serving={name}"
                        ).items
                    )
                    < 2
                ):
                    time.sleep(0.005)
                found.append((time.perf_counter() - started) * 1000)
    return found[1:]  # the first one also pays for the client's discovery


def main() -> None:
    """Measure, print, write."""
    renders, applies, tick, day = render_milliseconds(), apply_milliseconds(), tick_figures(), day_figures()
    rows = {
        "render one object, median ms": statistics.median(renders),
        "apply to both Deployments, median ms": statistics.median(applies),
        "apply to both Deployments, slowest of 20, ms": max(applies),
        "CRD as JSON, KiB": len(json.dumps(crd())) / 1024,
        "one scaling decision, median CPU ms": decide_milliseconds(),
        f"scaler tick over {POOLS} pools, CPU ms": tick["cpu_seconds"] * 1000,
        f"scaler tick over {POOLS} pools, queries": tick["queries"],
        f"a day of {day['requests']:,} requests simulated, CPU s": day["day"],
        f"a day of up to {day['engines']:,} engines as a fluid, CPU s": day["fluid"],
    }
    for name, value in rows.items():
        print(f"{name:<58} {value:8.2f}")
    Path("out").mkdir(exist_ok=True)
    Path("out/bench.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
