"""A proxy before the API server that fails as a test says: by status, by delay, by a cut connection, at the n-th write."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

WRITES = {"POST", "PUT", "PATCH", "DELETE"}
HOP = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"}


@dataclass(frozen=True)
class Request:
    """What a fault may look at."""

    method: str
    path: str
    query: str

    @property
    def is_write(self) -> bool:
        """A write that changes something."""
        return self.method in WRITES and "dryRun" not in self.query and "/leases/" not in self.path

    @property
    def is_watch(self) -> bool:
        """A watch, or a read of a log that is followed."""
        return "watch=" in self.query

    @property
    def is_list(self) -> bool:
        """A list or a watch."""
        return self.method == "GET" and not self.path.rpartition("/")[2].count(".") and self.path.count("/") < 7


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: `status` instead of an answer; `cut`: no answer at all; `lost`: done, but the answer is cut."""

    status: int = 0
    cut: bool = False
    lost: bool = False
    delay_seconds: float = 0.0


class FaultyProxy:
    """Plain HTTP on loopback in front of the API server of a kubeconfig; `fault(request)` may be set at any time."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text())
        cluster = self._config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._tls = _context(cluster)
        self.kubeconfig = folder / "proxied-kubeconfig"
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.writes: list[Request] = []
        self.repeats = 0
        """How often the next event of a watch that tells of a change is given, beside once."""
        self._watches: set[web.StreamResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._start())
        self._config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        self.kubeconfig.write_text(json.dumps(self._config))
        self.kubeconfig.chmod(0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut_watches()
        self._do(self._runner.cleanup())
        self._do(self._session.close())
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut_watches(self) -> None:
        """End every watch that is open."""

        async def cut() -> None:
            for watch in list(self._watches):
                if watch._req is not None and watch._req.transport is not None:
                    watch._req.transport.abort()

        self._do(cut())

    async def _end(self) -> None:
        """What still runs belongs to clients that were killed."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=5) if left else None

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> int:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls), timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(incoming.method, incoming.path, incoming.query_string)
        fault = self.fault(request) or Fault()
        await asyncio.sleep(fault.delay_seconds)
        if fault.status:
            return _refusal(fault.status)
        if fault.cut:
            return _abort(incoming)
        headers = {name: value for name, value in incoming.headers.items() if name.lower() not in HOP}
        body = await incoming.read()
        async with self._session.request(
            incoming.method,
            self._server + incoming.path_qs,
            headers=headers,
            data=body or None,
            skip_auto_headers=["Content-Type", "Accept-Encoding"],
            auto_decompress=False,
        ) as answer:
            if request.is_write:
                self.writes.append(request)
            if fault.lost:
                await answer.read()
                return _abort(incoming)
            return await self._pass_on(incoming, answer)

    def _take_repeats(self, chunk: bytes) -> int:
        is_one_event = chunk.startswith(b'{"type":"MODIFIED"') and chunk.find(b"\n") == len(chunk) - 1
        taken, self.repeats = (self.repeats, 0) if is_one_event else (0, self.repeats)
        return taken

    async def _pass_on(self, incoming: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP - {"content-encoding"}}
        out = web.StreamResponse(status=answer.status, headers=kept)
        self._watches.add(out)
        try:
            await out.prepare(incoming)
            async for chunk in answer.content.iter_any():
                await out.write(chunk + chunk * self._take_repeats(chunk))
            await out.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass  # either side has gone
        finally:
            self._watches.discard(out)
        return out


def _refusal(status: int) -> web.Response:
    reasons = {403: "Forbidden", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}
    said = {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
        "reason": reasons.get(status, "InternalError"), "message": f"the test says {status}",
    }  # fmt: skip
    return web.json_response(said, status=status, headers={"Retry-After": "1"} if status == 429 else {})


def _abort(incoming: web.Request) -> web.Response:
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response(status=500)


def _context(cluster: dict[str, Any]) -> ssl.SSLContext:
    if "certificate-authority" in cluster:
        return ssl.create_default_context(cafile=cluster["certificate-authority"])
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return ssl.create_default_context(cadata=authority)
