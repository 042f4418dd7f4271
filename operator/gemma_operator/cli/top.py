"""gemma-operator top: servings and pools as they stand, how they came there, and why; live, once, or as JSON."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gemma_operator.api.serving import KIND
from gemma_operator.cli.ask import ask
from gemma_operator.cli.ask import namespace as kubeconfig_namespace
from gemma_operator.cli.board import History, PoolKey, Samples, Serving, replicas_from_events, serving
from gemma_operator.settings import BadSetting

if TYPE_CHECKING:
    from gemma_operator.cluster import Cluster

KEEP_SECONDS = 3600.0
LEAST_SECONDS = 1.0
HISTORY = {
    "p95": "1000 * max by (namespace, serving, pool) (gemma_operator_ttft_p95_seconds)[1h:1m]",
    "replicas": "max by (namespace, serving, pool) (gemma_operator_desired_replicas)[1h:1m]",
}


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser("top", help="watch GemmaServings: p95, engines, last decisions")
    parser.add_argument("name", nargs="?", help="only the GemmaServing of this name")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="their namespace; the kubeconfig's where absent")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="those of all namespaces")
    parser.add_argument("--once", action="store_true", help="print once and end, as where the output is no terminal")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="json: once, for scripts")
    parser.add_argument("--interval", type=_interval, default=5.0, help="seconds between two looks, from 1 (5)")
    parser.add_argument("--prometheus", metavar="URL", help="take the last hour from this Prometheus")
    parser.set_defaults(command=top)


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not LEAST_SECONDS <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {LEAST_SECONDS:g}")
    return value


def top(arguments: Namespace) -> int:
    """Show the servings; returns the exit code."""
    watch = _Watch(arguments)
    servings = watch.look(time.time())
    if arguments.output == "json":
        print(json.dumps({"servings": [found.as_json() for found in servings]}, indent=2))
        return 0
    if not servings:
        print(f"there is no GemmaServing in {watch.where}", file=sys.stderr)
        return 0
    from rich.console import Console

    console = Console(highlight=False)
    if arguments.once or not console.is_terminal:
        console.print(watch.text(servings, console.width), soft_wrap=True)
        return 0
    return _live(watch, servings, console, arguments.interval)


def _live(watch: _Watch, servings: list[Serving], console: Any, interval: float) -> int:
    from rich.live import Live

    note = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(watch.text(servings, console.width, note), refresh=True)
                time.sleep(interval)
                try:
                    servings, note = watch.look(time.time()), ""
                except BadSetting as error:
                    # What was seen last stays, with the reason why it is not newer.
                    note = f"as of {watch.seen}: {error}"
    except KeyboardInterrupt:
        return 0


@dataclass
class _Watch:
    """Looks again and again, and remembers."""

    arguments: Namespace
    samples: dict[PoolKey, History] = field(default_factory=dict)
    seen: str = ""

    def __post_init__(self) -> None:
        everywhere = self.arguments.all_namespaces
        self.namespace = "" if everywhere else self.arguments.namespace or kubeconfig_namespace()
        self.where = "any namespace" if everywhere else f"namespace {self.namespace}"

    def look(self, now: float) -> list[Serving]:
        """The servings now. Raises BadSetting."""
        found, events = ask(self._read, f"GemmaServings in {self.where}", "top")
        if (name := self.arguments.name) is not None:
            found = [one for one in found if one.get("metadata", {}).get("name") == name]
            if not found:
                raise BadSetting(f"there is no GemmaServing {name} in {self.where}")
        histories = self._histories(events, now)
        servings = [serving(one, histories) for one in found]
        self._remember(servings, now)
        self.seen = time.strftime("%H:%M:%S", time.localtime(now))
        return sorted(servings, key=lambda one: (one.namespace, one.name))

    def text(self, servings: list[Serving], width: int, note: str = "") -> Any:
        """As rich shows it."""
        from gemma_operator.cli.board_text import board

        return board(servings, time.time(), width, self.arguments.all_namespaces, note)

    async def _read(self, cluster: Cluster) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        found = await cluster.list(KIND, self.namespace, "")
        return found, await _events(cluster, self.namespace)

    def _histories(self, events: list[dict[str, Any]], now: float) -> dict[PoolKey, History]:
        if self.arguments.prometheus:
            return _from_prometheus(self.arguments.prometheus)
        replicas = replicas_from_events(events, now)
        keys = replicas.keys() | self.samples.keys()
        known = {key: self.samples.get(key, History()) for key in keys}
        return {key: History(past.p95, replicas.get(key, past.replicas)) for key, past in known.items()}

    def _remember(self, servings: list[Serving], now: float) -> None:
        for one in servings:
            for pool in one.pools:
                key = (one.namespace, one.name, pool.name)
                past = self.samples.get(key, History())
                p95 = () if pool.p95 is None else ((now, pool.p95),)
                replicas = () if pool.desired is None else ((now, float(pool.desired)),)
                self.samples[key] = History(_recent((*past.p95, *p95), now), _recent((*past.replicas, *replicas), now))


def _recent(samples: Samples, now: float) -> Samples:
    return [(at, value) for at, value in samples if at >= now - KEEP_SECONDS]


async def _events(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """The operator's Events; none where they may not be read, as they are a courtesy."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError

    from gemma_operator.cluster import Refused

    try:
        return await cluster.list("Event", namespace, "", f"involvedObject.kind={KIND},reason=Scaled")
    except (Refused, ApiException, DynamicApiError):
        return []


def _from_prometheus(url: str) -> dict[PoolKey, History]:
    from gemma_operator.metrics.client import MALFORMED, Access, PrometheusClient, SourceFailed

    client = PrometheusClient(Access(url))
    found: dict[str, dict[PoolKey, Samples]] = {}
    try:
        client.begin()
        for name, query in HISTORY.items():
            found[name] = {_key(item["metric"]): _samples(item["values"]) for item in client.query(query)}
    except SourceFailed as error:
        raise BadSetting(f"--prometheus: {error}") from error
    except MALFORMED as error:
        raise BadSetting(f"--prometheus: {client.malformed(error)}") from error
    keys = found["p95"].keys() | found["replicas"].keys()
    return {key: History(found["p95"].get(key, ()), found["replicas"].get(key, ())) for key in keys}


def _key(metric: Mapping[str, str]) -> PoolKey:
    return metric["namespace"], metric["serving"], metric["pool"]


def _samples(values: list[list[Any]]) -> Samples:
    return [(float(at), float(value)) for at, value in values]
