"""kill -9 between any two writes: several servings go through their lives while the operator is killed again and again.

After each step of a life there must be the same objects as in a life without kills: none twice, none left behind, no spec missed,
no engine started anew, no field with another owner. `GEMMA_CRASHES=200` is what docs/reliability.md shows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gemma_operator.desired.names import APPLIED, CLASS, DELETION_COST, LENT, POOL
from tests.apiserver.test_lifecycle import COLLECTION_SECONDS, serving
from tests.support.faulty_proxy import Fault, FaultyProxy, Request
from tests.support.kube import Kube
from tests.support.operator import free_port
from tests.support.pods import Kubelet
from tests.support.scripted_prometheus import scripted_prometheus
from tests.support.session import Session
from tests.support.spawner import Spawner, is_alive
from tools.cluster.control_plane import ControlPlane

CRASHES = int(os.environ.get("GEMMA_CRASHES", "4"))
SIDE_BY_SIDE = 3
STEP_SECONDS = 4 * COLLECTION_SECONDS
REST_SECONDS = 5
SERVING = "/apis/gemmaserving.dev/v1alpha1/namespaces/{}/gemmaservings/demo"
KINDS = {
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "service": "/api/v1/namespaces/{}/services",
    "poddisruptionbudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "persistentvolumeclaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
}
PODS = "/api/v1/namespaces/{}/pods"
MADE_UP = ("clusterIP", "clusterIPs")
LOW, HIGH = {"replicas": {"min": 2, "max": 4}}, {"replicas": {"min": 3, "max": 4}}
TWO, EXTRA = {"replicas": {"min": 2}}, {"class": "batch"}
LENDING = {"replicas": {"min": 1, "max": 2}, "scaling": {"mode": "Off", "lend": 1}}
FULL = HIGH | {"maxNumSeqs": 10}


@dataclass(frozen=True)
class Step:
    """What happens to a serving, and what must come of it."""

    what: str
    pools: dict[str, Any] | None
    """None: it is deleted."""
    fails: bool = False
    """Whether the interactive pool's engines are not Ready, so that it needs those of others."""
    lent: int = 0
    """Engines of the batch pool that answer for it in the end."""


LIFE = (
    Step("create", {"interactive": LOW, "batch": {}}),
    Step("update", {"interactive": LOW, "batch": {}, "extra": EXTRA}),
    Step("scale", {"interactive": HIGH, "batch": TWO, "extra": EXTRA}),
    Step("roll out", {"interactive": FULL, "batch": TWO, "extra": EXTRA}),
    Step("prune", {"interactive": FULL, "batch": TWO}),
    Step("donate", {"interactive": FULL, "batch": LENDING}, fails=True, lent=1),
    Step("call back", {"interactive": FULL, "batch": TWO}, fails=True),
    Step("donate again", {"interactive": FULL, "batch": LENDING}, fails=True, lent=1),
    Step("give back", {"interactive": FULL, "batch": LENDING}),
    Step("delete", None),
    Step("create again", {"interactive": {"replicas": {"min": 1, "max": 2}}, "other": EXTRA}),
)
Made = dict[str, Any]


class World:
    """One serving and its life, in a namespace of its own."""

    def __init__(self, api: Session, kubelet: Kubelet, name: str) -> None:
        self.api, self.kubelet, self.name = api, kubelet, name
        self.step = -1
        self.since = 0.0
        api.apply(f"/api/v1/namespaces/{name}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.go_on()

    def go_on(self) -> None:
        """Begin the next step of the life."""
        self.step, self.since = self.step + 1, time.monotonic()
        self.kubelet.fail(self.name, "interactive" if self.now.fails else "")
        if self.now.pools is None:
            self.api.delete(SERVING.format(self.name))
        else:
            self.api.apply(SERVING.format(self.name), serving(pools=self.now.pools))

    def end(self) -> None:
        """Its last step is done: nothing of it costs the others time."""
        self.api.delete(SERVING.format(self.name))

    @property
    def now(self) -> Step:
        """Where it is in its life."""
        return LIFE[self.step]

    def is_last(self) -> bool:
        """Nothing comes after this step."""
        return self.step == len(LIFE) - 1

    def is_seen(self) -> bool:
        """The operator says that it has done this step's spec; a deletion it needn't see."""
        if self.now.pools is None:
            return True
        body = self.api.get(SERVING.format(self.name))
        return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])

    def made(self) -> Made:
        """All that is there, as a person compares it."""
        found = {}
        for kind, path in KINDS.items():
            for body in self.api.get(path.format(self.name))["items"]:
                meta = body["metadata"]
                spec = {name: value for name, value in body["spec"].items() if name not in MADE_UP}
                owners = [owner["kind"] for owner in meta["ownerReferences"]]
                found[f"{kind}/{meta['name']}"] = (
                    spec, owners, notes(meta), meta.get("labels"), owners_of_replicas(body),
                )  # fmt: skip
        pods = [
            pod for pod in self.api.get(PODS.format(self.name))["items"] if "deletionTimestamp" not in pod["metadata"]
        ]
        if pods:
            found["pods"] = sorted(map(engine, pods))
        if self.now.pools is not None:
            conditions = self.api.get(SERVING.format(self.name))["status"].get("conditions", [])
            found["conditions"] = sorted((one["type"], one["status"], one["reason"]) for one in conditions)
        return dict(json.loads(json.dumps(found).replace(self.name, "NAMESPACE")))


def engine(pod: dict[str, Any]) -> tuple[str, str, bool, bool]:
    """A Pod's pool, whose requests it answers, and whether it bears the marks of a loan."""
    meta = pod["metadata"]
    marks = meta.get("annotations", {})
    return (meta["labels"][POOL], meta["labels"][CLASS], LENT in marks, DELETION_COST in marks)


def notes(meta: dict[str, Any]) -> dict[str, str]:
    """Annotations, less the hash of what was applied, which the namespace is part of."""
    return {name: value for name, value in meta.get("annotations", {}).items() if name != APPLIED}


def owners_of_replicas(body: dict[str, Any]) -> list[str]:
    """Who has a say in the size of a Deployment."""
    return sorted(
        entry["manager"]
        for entry in body["metadata"].get("managedFields", [])
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    )


class Doom:
    """Kills the operator at a write that is chosen at random, and at every second engine that is lent or comes back; half of the
    writes are done all the same, and their answer lost."""

    def __init__(self, moments: random.Random) -> None:
        self._moments = moments
        self.pid = 0
        self.left = 0
        self.killed: Counter[str] = Counter()

    @property
    def kills(self) -> int:
        """How often it has struck."""
        return self.killed.total()

    def arm(self, pid: int, last: bool = False) -> None:
        """The operator that runs now, and how many writes it may still do; all of them where it is the last."""
        self.pid, self.left = pid, -1 if last else self._moments.randint(1, 25)

    def fault(self, request: Request) -> Fault | None:
        """What becomes of a request."""
        if not request.is_write or self.left <= 0:
            return None
        self.left -= 1
        is_flip = "/pods/" in request.path  # one write in a hundred, so that chance would hardly meet it
        if self.left and not (is_flip and self._moments.getrandbits(1)):
            return None
        self.left = 0
        os.kill(self.pid, signal.SIGKILL)
        is_lost = bool(self._moments.getrandbits(1))
        parts = request.path.replace("/status", " status").split("/")
        kind = parts[-1] if request.method == "POST" else f"{parts[-2]}{' status' * parts[-1].endswith(' status')}"
        self.killed[f"{'after' if is_lost else 'before'} {request.method} {kind}"] += 1
        return Fault(lost=True) if is_lost else Fault(cut=True)


@pytest.fixture
def proxy(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[FaultyProxy]:
    with FaultyProxy(operator_kubeconfig, tmp_path) as running:
        yield running


def undisturbed(api: Session, kubelet: Kubelet) -> list[Made]:
    """What there is after each step where nothing goes wrong."""
    world, expected = World(api, kubelet, "life-undisturbed"), []
    while True:
        await_rest(world)
        expected.append(world.made())
        if world.is_last():
            return expected
        world.go_on()


def await_rest(world: World) -> None:
    """Wait until the operator has done the step and nothing has changed for some seconds."""
    end, before, since = time.monotonic() + STEP_SECONDS, {}, 0.0
    while time.monotonic() < end:
        now = world.made() if world.is_seen() else {}
        if now != before or not is_done(world.now, now):
            before, since = now, time.monotonic()
        elif time.monotonic() - since > REST_SECONDS:
            return
        time.sleep(0.1)
    raise AssertionError(f"{world.now.what}: not at rest; last {before}")


def is_done(step: Step, made: Made) -> bool:
    """Whether what the step is about is there."""
    if step.pools is None:
        return not made
    lent = [engine for engine in made.get("pods", []) if engine[0] == "batch" and engine[1] == "interactive"]
    ready = "False" if step.fails else "True"
    return len(lent) == step.lent and any(one[:2] == ["Ready", ready] for one in made.get("conditions", []))


def test_killed_between_any_two_writes_it_comes_to_the_same_end(
    plane: ControlPlane, admin: Kube, proxy: FaultyProxy, tmp_path: Path
) -> None:
    api, doom = Session(plane), Doom(random.Random(10))
    environment = {
        "GEMMA_LOG_FORMAT": "plain",
        "GEMMA_SCALING_TICK_SECONDS": "1",
        "GEMMA_HEALTH_PORT": str(free_port()),
        "GEMMA_METRICS_PORT": str(free_port()),
    }
    with (
        scripted_prometheus() as prometheus,
        Kubelet(Session(plane), prometheus) as kubelet,
        Spawner(proxy.kubeconfig, tmp_path / "log") as spawner,
    ):
        environment["GEMMA_PROMETHEUS_URL"] = prometheus.url
        doom.arm(spawner.start(**environment), last=True)
        expected = undisturbed(api, kubelet)
        assert len(expected[0]) > 6
        os.kill(doom.pid, signal.SIGKILL)
        proxy.fault = doom.fault
        worlds: list[World] = []
        lives = starts = 0
        while doom.kills < CRASHES or worlds:
            if not is_alive(doom.pid):
                doom.arm(spawner.start(**environment), last=doom.kills >= CRASHES)
                starts += 1
            while doom.kills < CRASHES and len(worlds) < SIDE_BY_SIDE:
                worlds.append(World(api, kubelet, f"life-{lives}"))
                lives += 1
            for world in list(worlds):
                came = world.made() if world.is_seen() else {}
                if came != expected[world.step]:
                    late = time.monotonic() - world.since > STEP_SECONDS
                    assert not late, f"{world.name}: {world.now.what}: {difference(expected[world.step], came)}"
                elif world.is_last():
                    worlds.remove(world)
                    world.end()
                else:
                    world.go_on()
            time.sleep(0.2)
    print(f"\n{doom.kills} kills, {starts} starts, {lives} lives: {dict(doom.killed)}")
    assert "Traceback" not in (tmp_path / "log").read_text()


def difference(expected: Made, came: Made) -> dict[str, Any]:
    """What is not as it should be: name -> (expected, found)."""
    names = sorted(expected.keys() | came.keys())
    return {name: (expected.get(name), came.get(name)) for name in names if expected.get(name) != came.get(name)}
