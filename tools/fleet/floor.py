"""What the control plane alone needs for a fleet: `python -m tools.fleet.floor 1000`.

A bare client creates the servings and all that the operator would create for each, over some connections at once, once and
without a dry run, a look or a status; the real controllers, the scheduler and kwok do the rest. An operator has all of that to do, and more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kubernetes import client, config

from gemma_operator.api.parse import parse
from gemma_operator.api.serving import GROUP, VERSION
from gemma_operator.cluster import KINDS
from gemma_operator.desired import desired
from gemma_operator.plan import plan
from gemma_operator.settings import read_settings
from tools.fleet.process import load_average, usage
from tools.fleet.world import SPEC, World, await_all, namespace_of

CONNECTIONS = 8


class Bare:
    """Posts objects, and nothing else."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._host = configuration.host
        self._pool = client.ApiClient(configuration).rest_client.pool_manager

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create one object; returns it as it stands."""
        group, version, plural = KINDS[kind]
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        url = f"{self._host}{root}/namespaces/{body['metadata']['namespace']}/{plural}"
        headers = {"Content-Type": "application/json"}
        answer = self._pool.request("POST", url, body=json.dumps(body), headers=headers, timeout=60.0)
        made: dict[str, Any] = json.loads(answer.data)
        if answer.status >= 300:
            raise RuntimeError(f"{kind}: {answer.status} {made.get('message')}")
        return made

    def serving(self, number: int) -> int:
        """A serving and its children; returns how many objects that are."""
        meta = {"name": f"fleet-{number}", "namespace": namespace_of(number)}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GemmaServing", "metadata": meta, "spec": SPEC}
        serving = parse(self.create("GemmaServing", body))
        want = desired(serving, read_settings({}).defaults)
        sizes = {name: pool.replicas.min for name, pool in serving.spec.pools.items()}
        children = plan(serving, (*want.children, *want.ways), [], sizes).apply
        for child in children:
            self.create(child["kind"], child)
        return 1 + len(children)


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds until all is created, and until every Pod is Ready; CPU seconds of the control plane, and of this client."""
    with World(f"floor-{count}", folder) as world:
        world.stop_looking()
        for number in range(0, count, 50):
            world.create_namespace(number)
        bare, before, started = Bare(world.plane.kubeconfig), time.process_time(), time.monotonic()
        cpu, load = control_plane_seconds(world), load_average()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            objects = sum(pool.map(bare.serving, range(count)))
        created, own = time.monotonic() - started, time.process_time() - before
        await_all("Pods are Ready", lambda: ready_pods(world), 2 * count, 3600, 5)
        return {
            "servings": count,
            "objects of the client": objects,
            "created s": created,
            "Pods Ready s": time.monotonic() - started,
            "control plane CPU s": control_plane_seconds(world) - cpu,
            "client CPU s": own,
            "load average before": load,
        }


def ready_pods(world: World) -> int:
    """Pods of ours that are Ready."""
    deployments = world.api.get("/apis/apps/v1/deployments?resourceVersion=0")["items"]
    return sum(found.get("status", {}).get("readyReplicas", 0) for found in deployments)


def control_plane_seconds(world: World) -> float:
    """CPU seconds of etcd, the API server, the controllers, the scheduler and kwok until now."""
    pids = [json.loads(found.read_text())["pid"] for found in (world.plane.audit_log.parent / "pids").iterdir()]
    return sum(usage(pid).cpu_seconds for pid in pids)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servings", type=int, nargs="?", default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/fleet-floor.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = {name: round(value, 1) for name, value in measure(args.servings, Path(folder)).items()}
    print(json.dumps(row, indent=1))
    args.out.parent.mkdir(exist_ok=True, parents=True)
    args.out.write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
