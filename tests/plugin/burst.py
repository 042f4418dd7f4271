"""Requests that come at once, and what a server with a limit on its queue makes of them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.server import Server
from tests.plugin.server import values

CHAT = "/v1/chat/completions"
LIMIT = ["--max-num-queued-tokens=100", "--mm-processor-cache-gb=0"]
"""So tight that even golden requests are let in one at a time; with a cache, what was refused fails once when it comes again."""
LONG = "word " * 1200
"""A prompt that alone fills the limit: while it waits, every other is refused."""
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}], "max_tokens": 8},
    "/v1/completions": {"prompt": LONG, "max_tokens": 8},
    "/v1/responses": {"input": LONG, "max_output_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 8},
}


@dataclass(frozen=True)
class Answer:
    streamed: bool
    status: int
    headers: dict[str, str]
    text: str

    @property
    def is_refused_in_its_stream(self) -> bool:
        return self.status == 200 and '"code": 503' in self.text


def send(server: Server, path: str, stream: bool) -> Answer:
    body = json.dumps({"model": server.model, "stream": stream, **PROMPTS[path]}).encode()
    request = urllib.request.Request(server.url + path, body, {"Content-Type": "application/json"})
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as refused:
        answer = refused
    with answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(stream, answer.status, headers, answer.read().decode())


def burst(clients: ThreadPoolExecutor, server: Server, path: str) -> list[Any]:
    """Twelve requests on their way, every second one of them streamed."""
    return [clients.submit(send, server, path, bool(number % 2)) for number in range(12)]


def unread(server: Server, size: int) -> list[int]:
    """Bytes of each of the server's connections of which it has yet to read more than `size` (Linux: Documentation/networking/proc_net_tcp)."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    waiting = [int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port) and row[3] == "01"]
    return [number for number in waiting if number > size]


def rejections(server: Server) -> float:
    return sum(values(server, "vllm:admission_rejections_total").values())
