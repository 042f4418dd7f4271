"""Alerts fire on the node: the chart's own Prometheus, the real operator, and engines driven into each state.

Its rules are the shipped ones with every duration 30 times as short, and none longer than 90 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.node.conftest import MODEL, RELEASE, SYSTEM, Helm, address, process_in, restarts, serving
from tests.support.alerts import Table, firing
from tests.support.frozen import Frozen
from tests.support.kube import Kube, condition, eventually
from tools.demo import traffic
from tools.demo.load import Body, Client
from tools.monitoring.__main__ import rules_file
from tools.monitoring.alerts import groups
from tools.monitoring.promql import Clock

CLOCK = Clock(30, most=90)
PATIENCE = 240
"""Seconds; infeasible is told after 150 s without any queue."""
ONE = {"replicas": {"min": 1, "max": 1}, "gpus": 0}


def speed(times: str) -> dict[str, Any]:
    """Hardware so many times as fast as the measured GPU."""
    return {"env": [{"name": "STANDIN_SPEED", "value": times}]}


ENCODER = """
import time
from prometheus_client import Counter, start_http_server
tokens, budget = (Counter(f"gemma_engine_encoder_{name}", name) for name in ("tokens", "budget_tokens"))
start_http_server(9000)
while True:
    tokens.inc(800), budget.inc(4096), time.sleep(1)
"""


def costly(milliseconds: float, **measured_with: str) -> dict[str, Any]:
    return {"profile": {"costs": {"request": milliseconds}, "measuredWith": measured_with}}


ONLINE: dict[str, Any] = {
    "healthy": {**ONE, "class": "interactive", "slo": {"ttft": {"target": "1m"}}},
    "burning": {**ONE, **speed("0.02"), "class": "interactive"},
    "hung": {**ONE, **speed("0.01"), "class": "interactive", "maxModelLen": 131072, "maxNumBatchedTokens": 131072},
    "lost": {**ONE, "class": "interactive"},
    "busy": {**ONE, "class": "interactive", "scaling": costly(600, model="google/gemma-4-31B-it")},
    "cold": {**ONE, "class": "interactive"},
}
OTHERS: dict[str, Any] = {
    "greedy": {"replicas": {"min": 1, "max": 3}, "gpus": 1, "class": "interactive", "scaling": costly(600)},
    "batch": {
        **ONE,
        **speed("0.005"),
        "mtp": {"enabled": True, "tokens": 8},
        "scaling": {**costly(20_000), "deadline": "1m"},
    },
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "sparse",
        "labels": {
            "app.kubernetes.io/managed-by": "gemma-operator",
            "gemmaserving.dev/serving": "recorded",
            "gemmaserving.dev/pool": "sparse",
        },
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9000"},
    },
    "spec": {
        "containers": [{"name": "encoder", "image": "gemma-serving/operator:dev", "command": ["python", "-c", ENCODER]}]
    },
}
"""The encoder's counters as the engine image has them: the stand-in has none."""
DRIVEN: dict[str, Any] = {
    "cold": {"env": [{"name": "STANDIN_STARTUP_SECONDS", "value": "90"}]},
    "nowhere": {**ONE, "class": "interactive", "nodeSelector": {"is": "nowhere"}},
}
"""Changed later: an engine that starts more slowly than before, and one that no node takes."""
STATES = {
    "first tokens after a second, with a target of 0.3 s": ("GemmaSloBurn", "burning"),
    "first tokens after a second, by the operator's verdict": ("GemmaSloMissed", "burning"),
    "a step of 100,000 prompt tokens that doesn't end": ("GemmaEngineHung", "hung"),
    "an engine that is Ready and no longer scraped": ("GemmaEnginesNotScraped", "lost"),
    "an engine that is no longer scraped, to the autoscaler": ("GemmaMetricsMissing", "lost"),
    "2.5 requests/s where an engine carries 1.6": ("GemmaAboveOperatingPoint", "busy"),
    "two engines wanted, one allowed": ("GemmaAtMaximum", "busy"),
    "a profile of another model": ("GemmaProfileStale", "busy"),
    "two engines wanted, GPUs for one": ("GemmaGpuBudgetExhausted", "greedy"),
    "an engine that no node takes": ("GemmaNoCapacity", "nowhere"),
    "work of 20 s each, a deadline of 1 min": ("GemmaBatchDeadlineAtRisk", "batch"),
    "8 tokens drafted at a time, a fifth accepted": ("GemmaMtpAcceptanceLow", "batch"),
    "encoder batches a fifth full": ("GemmaEncoderFillLow", "sparse"),
    "an engine that starts 90 s more slowly": ("GemmaColdStartSlow", "cold"),
    "first tokens after a second, without any queue": ("GemmaSloInfeasible", "burning"),
}


@pytest.fixture(scope="module")
def prometheus(installed: Kube, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the chart's Prometheus, with quick rules; afterwards the chart is as it was."""
    quick = tmp_path_factory.mktemp("chart") / "gemma-operator"
    shutil.copytree("charts/gemma-operator", quick)
    (quick / "files" / "rules.yaml").write_text(rules_file(CLOCK))
    where = ("-n", SYSTEM, "--values", "tests/node/values.yaml", "--wait", "--timeout", "2m")
    helm("upgrade", RELEASE, str(quick), *where, "--set", "prometheus.scrapeInterval=2s")
    service = installed.get("service", f"{RELEASE}-prometheus")
    assert service
    yield f"http://{service['spec']['clusterIP']}:9090"
    helm("upgrade", RELEASE, "charts/gemma-operator", *where)


@pytest.fixture(scope="module")
def engines(kube: Kube) -> Kube:
    """A Ready engine in each pool, of two servings: one has eight pools at most."""
    kube.apply(serving("online", pools=ONLINE), serving("others", pools=OTHERS, gpuBudget=1), SPARSE)
    kube.run("wait", "--for=condition=Ready", "gsv", "--all", "--timeout=110s")
    return kube


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """Printed at the end, and written to the file that GEMMA_ALERTS_TABLE names."""
    made = Table(PATIENCE)
    yield made
    made.show(request.config, CLOCK)
    if path := os.environ.get("GEMMA_ALERTS_TABLE"):
        Path(path).write_text(
            "# Alerts on the node\nSeconds from the beginning of a state to its alert, with every duration of the rules "
            f"{CLOCK.scale:g} times as short and none longer than {CLOCK.most:g} s; written by "
            f"`GEMMA_ALERTS_TABLE=FILE make test-node`.\n\n{made.markdown()}"
        )


def service(pool: str) -> str:
    return f"{'online' if pool in ONLINE else 'others'}-{pool}"


@contextmanager
def chats(kube: Kube) -> Iterator[None]:
    """Requests a second to each pool from a thread of their own, whatever becomes of them."""
    text, work = traffic.text_body(MODEL, 1), traffic.text_body(MODEL, 2, max_tokens=40, stream=False)
    rates = {
        "healthy": (1.0, text),
        "burning": (0.25, text),
        "busy": (2.5, text),
        "greedy": (2.5, text),
        "batch": (0.5, work),
    }
    stop, loop = asyncio.Event(), asyncio.new_event_loop()

    async def offer(url: str, body: Body, rate: float) -> None:
        async with Client(url, timeout=60) as client:
            await client.offer(iter(lambda: body, None), rate, 3600, stop=stop)

    async def hang(url: str) -> None:
        """A long answer, and while it is written a prompt of 100,000 tokens: a step of minutes on this hardware."""
        async with Client(url, timeout=600) as client:
            bodies = (
                traffic.text_body(MODEL, 3, max_tokens=1000),
                traffic.text_body(MODEL, 4, characters=400_000),
            )
            sent = []
            for body in bodies:
                sent.append(asyncio.create_task(client.send(body)))
                await asyncio.sleep(5)
            await stop.wait()
            for task in sent:
                task.cancel()

    async def everything() -> None:
        offers = (offer(address(kube, service(pool)), body, rate) for pool, (rate, body) in rates.items())
        await asyncio.gather(*offers, hang(address(kube, service("hung"))))

    thread = Thread(target=loop.run_until_complete, args=(everything(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(120)


def test_each_state_fires_its_alert_and_a_healthy_pool_none(prometheus: str, engines: Kube, table: Table) -> None:
    with chats(engines):
        began = time.monotonic()
        engines.run("annotate", "pod", "-l", "gemmaserving.dev/pool=lost", "prometheus.io/scrape=false", "--overwrite")
        engines.run("patch", "gsv", "online", "--type=merge", "-p", json.dumps({"spec": {"pools": DRIVEN}}))
        table.wait(prometheus, STATES, began)
        assert [alert for alert, pool in firing(prometheus) if pool == "healthy"] == []
    assert condition(engines.get("gsv", "online"), "SLOMet")["status"] == "False"


@contextmanager
def lease_taken(kube: Kube) -> Iterator[None]:
    """Somebody else holds the Lease, and renews it."""
    given_back = Event()

    def hold() -> None:
        while not given_back.wait(2):
            held = {"holderIdentity": "elsewhere/other/pod", "renewTime": datetime.now(UTC).isoformat()}
            kube.run(
                "patch", "lease", "gemmaserving.dev", "--type=merge", "-p", json.dumps({"spec": held}), check=False
            )

    thread = Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        given_back.set()
        thread.join()
        kube.run("patch", "lease", "gemmaserving.dev", "--type=merge", "-p", '{"spec":{"holderIdentity":""}}')


def test_an_operator_that_does_not_lead_or_is_gone_is_told(prometheus: str, installed: Kube, table: Table) -> None:
    began = time.monotonic()
    with lease_taken(installed):
        table.wait(prometheus, {"another holds the operator's Lease": ("GemmaNoLeader", "")}, began)
    began = time.monotonic()
    installed.run("scale", f"deployment/{RELEASE}", "--replicas=0")
    table.wait(prometheus, {"the operator is scaled to 0": ("GemmaOperatorDown", "")}, began)
    installed.run("scale", f"deployment/{RELEASE}", "--replicas=1")
    installed.run("rollout", "status", f"deployment/{RELEASE}", "--timeout=60s")


def test_an_operator_that_lives_and_does_not_tick_is_told_and_started_anew(
    prometheus: str, installed: Kube, table: Table
) -> None:
    """Its loop's thread is stopped; the one that answers Prometheus is not."""
    (pod,) = (found["metadata"]["name"] for found in installed.list("pod", "app.kubernetes.io/component=operator"))
    before, began = restarts(installed, pod), time.monotonic()
    with Frozen(process_in(installed, pod, "gemma_operator")) as operator:
        table.wait(prometheus, {"the operator's loop stands still": ("GemmaOperatorTickOld", "")}, began)
        eventually("its liveness probe has it ended", operator.has_ended, 120)
    eventually("it is started anew", lambda: restarts(installed, pod) > before, 60)
    installed.run("rollout", "status", f"deployment/{RELEASE}", "--timeout=60s")
    print(f"a loop that stands still: started anew after {time.monotonic() - began:.0f} s")


def test_every_alert_is_driven_here() -> None:
    names = {rule["alert"] for rule in groups()["groups"][1]["rules"]}
    driven = {alert for alert, _ in STATES.values()}
    assert names == driven | {"GemmaNoLeader", "GemmaOperatorDown", "GemmaOperatorTickOld"}
