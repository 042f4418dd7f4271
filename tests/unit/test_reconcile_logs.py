"""What a reconcile reads in the logs of engines: while they start, and when they died."""

from __future__ import annotations

import math
from typing import Any

from gemma_operator.desired.names import selector
from gemma_operator.reconcile import STARTING_SECONDS
from tests.unit.test_failures import CORE, KEPT_BYTES
from tests.unit.test_reconcile import KEY, World


def starting(name: str = "chat-interactive-0") -> dict[str, Any]:
    """A Pod whose engine runs and isn't Ready."""
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": name,
        "labels": selector("chat", "interactive"),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}]
    engine = {"name": "engine", "started": False, "state": {"running": {"startedAt": "2026-01-01T00:01:00Z"}}}
    return {"kind": "Pod", "metadata": meta, "status": {"conditions": conditions, "containerStatuses": [engine]}}


async def test_the_log_of_an_engine_is_read_while_it_starts_and_once_when_it_is_ready() -> None:
    world = World()
    await world.reconcile()
    pod = starting()
    world.cluster.objects["Pod", "ns", pod["metadata"]["name"]] = pod
    world.cluster.logs[pod["metadata"]["name"]] = (
        "2026-01-01T00:03:00.123456789Z Loading safetensors checkpoint shards:   0% Completed | 0/2\n"
    )
    assert await world.operator.reconcile(KEY) == STARTING_SECONDS
    startup = world.status["pools"]["interactive"]["startup"]
    assert startup == {
        "pod": "chat-interactive-0",
        "phase": "Loading",
        "seconds": {"Scheduling": 2, "Pulling": 58, "Downloading": 120},
    }
    world.cluster.logs[pod["metadata"]["name"]] += (
        "2026-01-01T00:04:00.5Z (Worker pid=9) INFO Model loading took 15.2 GiB memory and 60 seconds\n"
    )
    pod["status"]["containerStatuses"][0]["started"] = True
    pod["status"]["conditions"].append(
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:05:00Z"}
    )
    world.cluster.logs_read.clear()
    assert await world.operator.reconcile(KEY) == math.inf
    startup = world.status["pools"]["interactive"]["startup"]
    assert startup["phase"] == "Ready"
    assert startup["seconds"] == {"Scheduling": 2, "Pulling": 58, "Downloading": 120, "Loading": 60, "Compiling": 60}
    await world.reconcile()
    assert world.cluster.logs_read == ["chat-interactive-0"]
    assert world.status["pools"]["interactive"]["startup"] == startup


async def test_a_pod_that_has_not_begun_has_no_log_to_read() -> None:
    world = World()
    await world.reconcile()
    pod = starting()
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    world.cluster.objects["Pod", "ns", pod["metadata"]["name"]] = pod
    await world.reconcile()
    assert world.cluster.logs_read == []
    assert world.status["pools"]["interactive"]["startup"]["phase"] == "Pulling"


async def test_an_engine_whose_core_died_is_diagnosed_by_its_log() -> None:
    """A11: the termination message holds no more than the API server's traceback."""
    world = World()
    await world.reconcile()
    pod = starting()
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": CORE[-KEPT_BYTES:]}}
    engine = {
        "name": "engine",
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended,
    }
    pod["status"]["containerStatuses"] = [engine]
    world.cluster.objects["Pod", "ns", pod["metadata"]["name"]] = pod
    world.cluster.last[pod["metadata"]["name"]] = CORE
    await world.reconcile()
    assert world.condition("Stalled") == "True KvCacheTooSmall"
    assert "less than requested memory for kv" in world.status["pools"]["interactive"]["message"]
