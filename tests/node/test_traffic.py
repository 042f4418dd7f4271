"""Rollouts, scale-downs, evictions and crashes under constant streaming load: what is voluntary loses no request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.node.conftest import MODEL, address, await_ready, process_in, restarts, serving
from tests.node.load import ask, failures
from tests.support.kube import Kube, condition, eventually
from tools.cluster.node import NAME
from tools.demo import traffic
from tools.demo.load import Client, Outcome

# `GEMMA_ROUNDS=20 make test-node` is what docs/reliability.md shows.
ROUNDS = int(os.environ.get("GEMMA_ROUNDS", "2"))
RATE = 12.0  # requests/s
POD = "gemmaserving.dev/pool=interactive"


QUICK = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 4, "terminationGracePeriodSeconds": 1}
"""Of liveness: by our own a hung engine is killed after two minutes and its drain. What is lost doesn't hang on it."""


def pools(replicas: int = 2, **interactive: Any) -> dict[str, Any]:
    limits = {"limits": {"memory": "512Mi"}}
    common = {"replicas": {"min": replicas, "max": replicas}, "resources": limits, "livenessProbe": QUICK}
    return {"interactive": {**common, **interactive}}


@pytest.fixture(scope="module")
def url(kube: Kube) -> str:
    """Address of the interactive pool of a serving with two engines."""
    kube.apply(serving("busy", pools=pools()))
    await_ready(kube, "busy")
    found = address(kube, "busy-interactive")
    eventually(f"{found} answers", lambda: not failures(ask(found, traffic.text_body(MODEL, 0))), 20)
    return found


class Load:
    """Constant open-loop load from a thread of its own; `outcomes` grows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._offer(),))
        self.outcomes: list[Outcome] = []

    async def _offer(self) -> None:
        async with Client(self._url, timeout=60) as client:
            self.outcomes = client.outcomes
            await client.offer(traffic.mixed(MODEL, 0.2, seed=11), RATE, 3600, stop=self._stop)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(90)


@contextmanager
def loaded(url: str, what: str) -> Iterator[Load]:
    """Load around a block; prints how many requests there were, and how many were lost."""
    started = time.monotonic()
    with Load(url) as load:
        eventually("the load flows", lambda: len(load.outcomes) > 10)
        yield load
    lost = len(failures(load.outcomes))
    print(f"\n{what}: {lost} of {len(load.outcomes)} requests lost in {time.monotonic() - started:.0f} s")


def patch(kube: Kube, **spec: Any) -> None:
    kube.run("patch", "gsv", "busy", "--type=merge", "-p", json.dumps({"spec": spec}))


def ended(kube: Kube) -> bool:
    """True where no engine is on its way out any more."""
    return not any(pod["metadata"].get("deletionTimestamp") for pod in kube.list("pod", POD))


def running(kube: Kube) -> list[str]:
    """Names of the engines that are Ready and stay."""
    return [
        pod["metadata"]["name"]
        for pod in kube.list("pod", POD)
        if not pod["metadata"].get("deletionTimestamp") and condition(pod, "Ready").get("status") == "True"
    ]


def test_rolling_updates_lose_nothing(kube: Kube, url: str) -> None:
    """Each begins while the engines of the one before still drain."""
    with loaded(url, f"{ROUNDS} rolling updates") as load:
        for number in range(ROUNDS):
            patch(kube, pools=pools(env=[{"name": "ROUND", "value": str(number)}]))
            await_ready(kube, "busy", 120)
        eventually("the last old engine is gone", lambda: ended(kube), 120)
    assert failures(load.outcomes) == []


def test_scale_downs_lose_nothing(kube: Kube, url: str) -> None:
    with loaded(url, f"{ROUNDS} scale-downs") as load:
        for _ in range(ROUNDS):
            for size in (3, 2):
                patch(kube, pools=pools(size))
                eventually(f"{size} engines are Ready", lambda size=size: len(running(kube)) == size, 60)
        eventually("the last victim is gone", lambda: ended(kube), 120)
    assert failures(load.outcomes) == []


def test_an_eviction_as_of_a_node_drain_loses_nothing(kube: Kube, url: str) -> None:
    victim = running(kube)[0]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}}
    with loaded(url, "an eviction") as load:
        kube.run(
            "create", "--raw", f"/api/v1/namespaces/{kube.namespace}/pods/{victim}/eviction", "-f", "-",
            stdin=json.dumps(eviction),
        )  # fmt: skip
        eventually("it is replaced", lambda: len(running(kube)) == 2 and victim not in running(kube), 60)
        eventually("it is gone", lambda: ended(kube), 120)
    assert failures(load.outcomes) == []


def test_a_drain_of_the_only_node_takes_one_engine_and_loses_nothing(kube: Kube, url: str) -> None:
    """The next would leave none: the budget refuses it, and the drain waits until the first is elsewhere."""
    engines = "gemmaserving.dev/serving=busy"
    with loaded(url, "a drain of the only node") as load:
        kube.run("cordon", NAME)
        try:
            done = kube.run(
                "drain", NAME, f"--pod-selector={engines}", "--delete-emptydir-data", "--timeout=25s", check=False
            )
        finally:
            kube.run("uncordon", NAME)
        assert "violate the pod's disruption budget" in done.stderr
        eventually("two engines are Ready", lambda: len(running(kube)) == 2 and ended(kube), 120)
    assert failures(load.outcomes) == []


def test_an_image_that_cannot_be_pulled_on_update_loses_nothing(kube: Kube, url: str) -> None:
    with loaded(url, "an update to an image that can't be pulled") as load:
        patch(kube, engine={"image": "registry.invalid/vllm:v0.32.0"})
        stalled = eventually(
            "the status names it",
            lambda: (c := condition(kube.get("gsv", "busy"), "Stalled")).get("status") == "True" and c,
            60,
        )
        assert stalled["reason"] == "ImagePullFailed"
        assert len(running(kube)) == 2
        patch(kube, engine=None)
        await_ready(kube, "busy", 120)
    assert failures(load.outcomes) == []


def crash(kube: Kube, pod: str) -> None:
    """SIGKILL to the engine from outside of its container: PID 1 can't be killed from within."""
    os.kill(process_in(kube, pod, "standin"), signal.SIGKILL)
    eventually("the kubelet has seen it", lambda: restarts(kube, pod) == 1)


EAT = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        kept = b"1" * (40 << 20)
        time.sleep(60)
time.sleep(60)
"""
"""Many small processes, none of them as large as the engine: the kernel takes the largest of a container."""


def out_of_memory(kube: Kube, pod: str) -> None:
    """Something beside the engine eats the container's memory, and the kernel takes the engine."""
    Path(f"/proc/{process_in(kube, pod, 'standin')}/oom_score_adj").write_text("1000")
    before = restarts(kube, pod)
    kube.run("exec", pod, "--", "python", "-c", EAT, check=False)
    eventually("the kubelet has seen it", lambda: restarts(kube, pod) > before)
    (state,) = (kube.get("pod", pod) or {})["status"]["containerStatuses"]
    assert state["lastState"]["terminated"]["reason"] == "OOMKilled"


CRASHES: dict[str, Callable[[Kube, str], Any]] = {
    "a crash": crash,
    "out of memory": out_of_memory,
    "a Pod deleted by force": lambda kube, pod: kube.run("delete", "pod", pod, "--force", "--grace-period=0"),
}


@pytest.mark.parametrize("what", CRASHES)
def test_a_crash_loses_no_more_than_what_ran_there(kube: Kube, url: str, what: str) -> None:
    """Until the node has seen it, kube-proxy goes on sending a half of the new requests there."""
    victim = running(kube)[0]
    with loaded(url, what) as load:
        at = time.time()
        CRASHES[what](kube, victim)
        eventually("two engines are Ready", lambda: len(running(kube)) == 2, 60)
        healed = time.time()
    lost = [outcome for outcome in load.outcomes if not outcome.ok]
    in_flight = [o for o in lost if o.at < at]
    assert len(in_flight) < 64, "no more than ran at once"
    assert all(outcome.at <= healed + 2 for outcome in lost), "later requests go elsewhere"


def test_an_engine_that_hangs_takes_no_request_after_its_probe_has_failed(kube: Kube, url: str) -> None:
    """Stopped, it keeps its connections and answers nothing: what it had is lost, and what comes until it is out of the endpoints."""
    victim = running(kube)[0]
    with loaded(url, "a hung engine (SIGSTOP)") as load:
        at, before = time.time(), restarts(kube, victim)
        os.kill(process_in(kube, victim, "standin"), signal.SIGSTOP)
        eventually("it is out of the endpoints", lambda: victim not in running(kube), 60)
        out = time.time()
        eventually("it is started anew", lambda: restarts(kube, victim) > before, 90)
        eventually("two engines are Ready", lambda: len(running(kube)) == 2, 60)
    lost = [outcome for outcome in load.outcomes if not outcome.ok]
    print(f"out of the endpoints after {out - at:.0f} s; {sum(o.at < at for o in lost)} of the lost were there before")
    assert lost
    assert all(outcome.at <= out + 5 for outcome in lost), "later requests go elsewhere"
