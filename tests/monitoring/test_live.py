"""Alerts fire for real: stand-in engines driven into each state, scraped by a real Prometheus; and every panel has data.

The rules are the shipped ones with every duration 20 times as short, and none longer than 45 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.monitoring.live import Autoscaler, Engine, Plugin, Prometheus, Target, Traffic
from tests.support.alerts import Table, firing
from tests.support.kube import eventually
from tools.monitoring.dashboard import content
from tools.monitoring.page import picture
from tools.monitoring.promql import Clock

CLOCK = Clock(20, most=45)
PATIENCE = 150
"""Seconds; the alerts themselves come within 60 on an idle machine."""
SPEC = {
    "model": {"id": "google/gemma-4-E4B-it"},
    "gpuBudget": 8,
    "pools": {
        "healthy": {"class": "interactive", "replicas": {"min": 1, "max": 2}, "slo": {"ttft": {"target": "2500ms"}}},
        "burning": {"class": "interactive", "replicas": {"min": 1, "max": 2}},
        "hung": {"class": "interactive", "replicas": {"min": 1, "max": 2}},
        "lost": {"class": "interactive", "replicas": {"min": 1, "max": 2}},
        "busy": {
            "class": "interactive",
            "replicas": {"min": 1, "max": 1},
            "scaling": {"profile": {"costs": {"request": 600}}},
        },
        "batch": {"replicas": {"min": 1, "max": 2}},
    },
}
MTP = '--speculative-config={"num_speculative_tokens": 8}'
STATES = {
    "first tokens after a second, with a target of 0.3 s": ("GemmaSloBurn", "burning"),
    "a step that doesn't end": ("GemmaEngineHung", "hung"),
    "an engine that is Ready and not scraped": ("GemmaEnginesNotScraped", "lost"),
    "2.5 requests a second where an engine carries 1.6": ("GemmaAboveOperatingPoint", "busy"),
    "two engines wanted, one allowed": ("GemmaAtMaximum", "busy"),
    "encoder batches a fifth full": ("GemmaEncoderFillLow", "sparse"),
    "8 tokens drafted at a time, a fifth of them accepted": ("GemmaMtpAcceptanceLow", "batch"),
}


class World:
    """One serving with a pool for each state."""

    def __init__(self, folder: Path) -> None:
        flags = {"burning": (0.01,), "hung": (0.01,), "batch": (0.05, MTP)}
        pools = ("healthy", "burning", "hung", "lost", "busy", "batch")
        self.engines = {pool: Engine(folder / f"{pool}.log", *flags.get(pool, ())) for pool in pools}  # type: ignore[arg-type]
        self.plugin, self.traffic = Plugin(fill=0.2), Traffic()
        for pool, engine in self.engines.items():
            eventually(f"engine {pool} answers", engine.answers, 60)
        self.autoscaler = Autoscaler(SPEC, self.engines)
        targets = [self._target(engine.port, pool) for pool, engine in self.engines.items()]
        targets += [self._target(self.plugin.port, "sparse"), Target(self.autoscaler.port, {}, "gemma-operator")]
        self.prometheus = Prometheus(folder / "prometheus", CLOCK, targets)

    def _target(self, port: int, pool: str) -> Target:
        labels = {"namespace": "ns", "serving": "chat", "pool": pool, "pod": f"chat-{pool}", "class": "interactive"}
        return Target(port, labels)

    def drive(self) -> None:
        """Into the states."""
        engines = self.engines
        self.traffic.stream(0.5, engines["healthy"].ask)
        self.traffic.stream(0.5, engines["burning"].ask)
        self.traffic.stream(0.4, engines["busy"].ask)
        self.traffic.stream(2.0, lambda: engines["batch"].ask(40, stream=False))
        self.traffic.once(lambda: engines["hung"].ask(tokens=1000))

    def hang(self) -> None:
        """A prompt of 100,000 tokens; each of its steps takes half a minute on this hardware."""
        eventually("an answer is being written", lambda: self.value('vllm:num_requests_running{pool="hung"}') > 0, 60)
        self.traffic.once(lambda: self.engines["hung"].ask(characters=400_000))

    def value(self, expression: str) -> float:
        found = self.prometheus.query(expression)
        return float(found[0]["value"][1]) if found else 0.0

    def close(self) -> None:
        self.traffic.stop()
        for thing in (self.prometheus, self.plugin, *self.engines.values()):
            thing.stop()
        self.autoscaler.stop_ticks()
        self.autoscaler.clean_up()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("live"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    made = Table(PATIENCE)
    yield made
    made.show(request.config, CLOCK)


def test_each_state_fires_its_alert_and_a_healthy_pool_none(world: World, table: Table) -> None:
    began = time.monotonic()
    world.drive()
    eventually(
        "the lost engine was there", lambda: world.prometheus.query('vllm:num_requests_running{pool="lost"}'), 60
    )
    world.engines["lost"].stop()
    world.hang()
    table.wait(world.prometheus.url, STATES, began)
    assert [alert for alert, pool in firing(world.prometheus.url) if pool == "healthy"] == []


QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['refId']}")
    for panel in content()["panels"]
    for target in panel.get("targets", [])
]


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_the_dashboard_has_data(world: World, expression: str) -> None:
    for variable, value in (
        ("namespace", "ns"),
        ("serving", ".*"),
        ("pool", ".*"),
        ("__rate_interval", "15s"),
        ("__range", "30s"),
    ):
        expression = expression.replace(f"${variable}", value)
    assert "$" not in expression
    found = eventually(f"data of {expression}", lambda: world.prometheus.query(expression), 60)
    assert all(sample["value"][1] != "NaN" for sample in found[:1]) or len(found) > 1


def test_the_page_of_panels_shows_lines_in_each(world: World, tmp_path: Path) -> None:
    figure = picture(world.prometheus.url, 60, "15s")
    assert [axes.get_title(loc="left") for axes in figure.axes if not axes.lines] == []
    figure.savefig(tmp_path / "page.png", dpi=30)
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_the_query_of_the_keda_example_has_data(world: World) -> None:
    (trigger,) = yaml.safe_load(Path("examples/external-autoscaler/keda.yaml").read_text())["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert 'serving="gemma4-e4b"' in query
    (found,) = world.prometheus.query(query.replace("gemma4-e4b", "chat").replace("interactive", "burning"))
    assert float(found["value"][1]) > 0


def test_variables_offer_what_is_there(world: World) -> None:
    found = world.prometheus.query("count by (namespace, serving) (gemma_operator_ready_replicas)")
    assert [sample["metric"] for sample in found] == [{"namespace": "ns", "serving": "chat"}]


def test_an_operator_that_stops_is_told(world: World, table: Table) -> None:
    """Last, as it ends the world."""
    began = time.monotonic()
    world.autoscaler.stop_ticks()
    table.wait(world.prometheus.url, {"ticks end": ("GemmaOperatorTickOld", "")}, began)
    began = time.monotonic()
    world.autoscaler.vanish()
    table.wait(world.prometheus.url, {"the operator is gone": ("GemmaOperatorDown", "")}, began)
