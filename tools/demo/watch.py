"""Reads the cluster while the load runs: the GemmaServing's status, events, Prometheus; all through `kubectl proxy`.

One proxy process costs less than a kubectl per reading, and it works with every cluster that kubectl reaches.
"""

import asyncio
import contextlib
import datetime
import math
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp

from tools.demo.console import DemoError, Shell
from tools.demo.recording import Event, Sample

P95_WINDOW_SECONDS = 15
SERVICE_TRIES = 6
PROMETHEUS = "/api/v1/namespaces/gemma-system/services/gemma-operator-prometheus:9090/proxy"


class Unanswered(DemoError):
    """The API server, or what it proxies to, gave no usable answer; it may be back at the next try."""


class Watch:
    """One GemmaServing, seen from outside. Every method but `model` can raise Unanswered."""

    def __init__(self, session: aiohttp.ClientSession, base: str, namespace: str, name: str) -> None:
        self._session = session
        self._base = base
        self._namespace = namespace
        self._name = name

    async def status(self) -> dict[str, Any]:
        path = f"/apis/gemmaserving.dev/v1alpha1/namespaces/{self._namespace}/gemmaservings/{self._name}"
        status = (await self._get(path)).get("status")
        return status if isinstance(status, dict) else {}

    async def generations(self) -> dict[str, int]:
        """Deployment -> generation, for those of this GemmaServing: it grows with each write of a spec."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments?labelSelector=gemmaserving.dev/serving={self._name}"
        found = (await self._get(path))["items"]
        return {item["metadata"]["name"]: item["metadata"]["generation"] for item in found}

    async def sample(self, since: float, now: float) -> Sample:
        """The interactive pool now; `since` is when the load began, both epoch seconds."""
        status, p95 = await asyncio.gather(self.status(), self.p95())
        pool = (status.get("pools") or {}).get("interactive") or {}
        decision = pool.get("lastDecision") or {}
        return Sample(
            at=now - since,
            desired=pool.get("desired"),
            ready=pool.get("ready"),
            p95=p95,
            conditions={c["type"]: c["status"] for c in status.get("conditions") or []},
            decision=f"{decision['reason']}: {decision.get('message', '')}" if decision.get("reason") else "",
        )

    async def p95(self) -> float | None:
        """p95 TTFT of the interactive pool in seconds, as anyone would ask Prometheus for it."""
        rate = f"rate({self._series('bucket', 'interactive')}[{P95_WINDOW_SECONDS}s])"
        return await self._query(f"histogram_quantile(0.95, sum by (le) ({rate}))")

    async def answered(self, pool: str) -> float | None:
        """Requests of a pool that got a first token so far, by the engines' own counters."""
        return await self._query(f"sum({self._series('count', pool)})")

    async def events(self, since: float) -> list[Event]:
        items = (await self._get(f"/api/v1/namespaces/{self._namespace}/events"))["items"]
        found = [_event(item, since) for item in items if _is_ours(item)]
        return sorted(found, key=lambda event: event.at)

    async def url(self, pool: str) -> str:
        """Where this machine reaches a pool's Service: its ClusterIP, or else the API server's proxy.

        Both choose an engine anew for each connection, which `kubectl port-forward` would not.
        """
        service = f"{self._name}-{pool}"
        path = f"/api/v1/namespaces/{self._namespace}/services/{service}"
        address = str((await self._get(path))["spec"]["clusterIP"])
        for _ in range(SERVICE_TRIES):  # a new Service takes a moment to work
            if await _reachable(address, 8000):
                return f"http://{address}:8000"
            await asyncio.sleep(0.5)
        return f"{self._base}{path}:8000/proxy"

    async def model(self, url: str) -> str:
        """Name of the model that an engine serves."""
        async with self._session.get(url + "/v1/models") as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])

    def _series(self, part: str, pool: str) -> str:
        name = f"vllm:time_to_first_token_seconds_{part}"
        return f'{{__name__="{name}",namespace="{self._namespace}",pool="{pool}"}}'

    async def _query(self, expression: str) -> float | None:
        try:
            answer = await self._get(f"{PROMETHEUS}/api/v1/query?query={quote(expression)}")
        except Unanswered:
            return None
        result = answer["data"]["result"]
        value = float(result[0]["value"][1]) if result else math.nan
        return value if math.isfinite(value) else None

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            async with self._session.get(self._base + path) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = getattr(error, "status", type(error).__name__)
            raise Unanswered(f"the API server doesn't answer {path.partition('?')[0]} ({problem})") from None


@contextlib.asynccontextmanager
async def watch(shell: Shell, kubectl: list[str], namespace: str, name: str) -> AsyncIterator[Watch]:
    process = await asyncio.create_subprocess_exec(
        *(*kubectl, "proxy", "--port=0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # what fails is told by Unanswered
        env=shell.environment,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 15)).decode()
        address = line.rpartition(" ")[2].strip()
        if ":" not in address:
            raise DemoError(f"`kubectl proxy` did not say where it listens, but: {line.strip() or 'nothing'}")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            yield Watch(session, f"http://{address}", namespace, name)
    finally:
        process.terminate()
        await process.wait()


async def _reachable(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1)
    except OSError:  # a TimeoutError is one as well
        return False
    writer.close()
    return True


def _is_ours(item: dict[str, Any]) -> bool:
    """Ours, and news: that a starting Pod isn't Ready yet is none."""
    kind = item["involvedObject"].get("kind")
    trouble = item.get("type") == "Warning" and item.get("reason") != "Unhealthy"
    return kind in ("GemmaServing", "Deployment") or (kind == "Pod" and trouble)


def _event(item: dict[str, Any], since: float) -> Event:
    about = item["involvedObject"]
    when = item.get("lastTimestamp") or item.get("eventTime") or item["metadata"]["creationTimestamp"]
    at = datetime.datetime.fromisoformat(when).timestamp() - since
    return Event(at, f"{about['kind']} {about['name']}", item.get("reason") or "", item.get("message") or "")
