"""An engine that hangs behind a healthy probe, on a real node: named, evicted, replaced, and the pool serves again."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.node.conftest import EXAMPLE, MODEL, address, await_ready, serving
from tests.node.load import ask, failures, load_until
from tests.support.kube import Kube, condition, eventually
from tools.demo import traffic

HANG = "/tmp/hang"
POOL: dict[str, Any] = {
    **EXAMPLE["spec"]["pools"]["interactive"],
    "replicas": {"min": 2},
    "drainSeconds": 1,
    "env": [{"name": "STANDIN_HANG_FILE", "value": HANG}],
}


def test_a_hung_engine_is_replaced(kube: Kube) -> None:
    kube.apply(serving("hangs", pools={"interactive": POOL}, heartbeat={"afterSeconds": 30, "restart": True}))
    await_ready(kube, "hangs")

    def pods() -> dict[str, str]:
        found = kube.list("pod", "gemmaserving.dev/serving=hangs")
        return {p["metadata"]["uid"]: p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]}

    old = pods()
    (uid, victim), *_ = old.items()
    said: list[str] = []

    def replaced() -> bool:
        found = condition(kube.get("gsv", "hangs"), "EnginesProgressing")
        if found.get("status") == "False" and not said:
            said.append(found["message"])
        return uid not in pods() and len(pods()) == 2

    async def load() -> None:
        url = address(kube, "hangs-interactive")
        bodies = traffic.mixed(MODEL, 0.2, seed=5)
        running = asyncio.create_task(load_until(url, bodies, 6, replaced, "it is replaced", 150))
        await asyncio.sleep(3)  # so that requests are in it when it stops
        await asyncio.to_thread(kube.run, "exec", victim, "-c", "engine", "--", "touch", HANG)
        await running

    asyncio.run(load())
    assert said, "it was named before it went"
    assert victim in said[0]
    await_ready(kube, "hangs", 90)
    assert len(pods().keys() & old.keys()) == 1, "the other one was left alone"
    events = kube.run("get", "events", "-o", "custom-columns=R:.reason,M:.message", "--no-headers").stdout
    assert events.count("EngineRestarted") == 1
    assert f"Pod {victim} was evicted" in events
    outcomes = ask(address(kube, "hangs-interactive"), *(traffic.text_body(MODEL, n) for n in range(6)))
    assert failures(outcomes) == []
    eventually("all get on", lambda: condition(kube.get("gsv", "hangs"), "EnginesProgressing")["status"] == "True", 30)
