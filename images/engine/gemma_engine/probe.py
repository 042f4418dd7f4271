"""Readiness that tells the truth: `python3 -m gemma_engine.probe ready`, and `... progress`. For exec probes: exits 0 or 1.

`ready` wants all of: the server is healthy, lists the model, is not asleep; golden text, image and video have been answered
with something other than padding; and the self-check found our vision encoder bit-equal. The golden requests are sent once per
start of the server; later calls ask for the rest only. `ready --canary` sends them every time: the test after a rollout.

What is amiss is printed, and written to the container's log once a minute: a probe's own words are in the Pod's events only,
and GemmaServing's operator reads the log.

`progress` fails once requests have been there for `--after` seconds while no engine step gave a token.

Standard library only: a probe runs every few seconds beside the server, and importing vLLM takes longer than that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .media import image_part, video_part

GOOD_STATES = ("batched", "per_item", "plain")
PAD = "<pad>"
TOKENS = 2
"""One of the prompt's step, one of a step that decodes."""
LOG = Path("/proc/1/fd/1")
FIRST_PROCESS = Path("/proc/1/stat")
AGAIN_SECONDS = 60
LOOK_SECONDS = 6
"""For an answer that needs no engine: three of them are over before the kubelet ends the probe (20 s)."""


class NotReady(Exception):
    """Why the server must not get requests, in one line."""


class NotUp(NotReady):
    """Nothing listens: the server is still on its way, and its own log says how far."""


class Full(NotReady):
    """A limit on the queue turned a request away."""


@dataclass(frozen=True)
class Server:
    url: str
    key: str = ""
    seconds: float = 5.0

    def call(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The answer's text; HTTPError for a refusal, NotReady when there is no answer."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.seconds if data else LOOK_SECONDS) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            kind = NotUp if isinstance(getattr(error, "reason", error), ConnectionRefusedError) else NotReady
            raise kind(f"{path} does not answer: {error}") from error


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """(labels, value) of a metric's samples in the text format of Prometheus."""
    for match in re.finditer(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)", text, re.MULTILINE):
        yield dict(re.findall(r'(\w+)="([^"]*)"', match[1] or "")), float(match[2])


def total(text: str, name: str) -> float:
    return sum(value for _, value in samples(text, name))


def check_ready(server: Server, model: str, marker: Path, canary: bool) -> None:
    """NotReady with the first thing that is amiss."""
    healthy(server)
    names = [entry["id"] for entry in json.loads(server.call("/v1/models"))["data"]]
    if model and model not in names:
        raise NotReady(f"the model {model} is not served; these are: {', '.join(names)}")
    metrics = server.call("/metrics")
    awake(metrics)
    encoder = active_encoder(metrics)
    started = f"{total(metrics, 'process_start_time_seconds'):.3f} {container_start()} {model or names[0]}"
    media = marker.read_text().splitlines() if marker.exists() else []
    if canary or media[:1] != [started]:
        media = [started, *answered_canaries(server, model or names[0])]
        metrics = server.call("/metrics")
    if encoder != "vllm" and len(media) > 2:
        encoder_checked(metrics)
    marker.write_text("\n".join(media))


def container_start() -> str:
    """When process 1 began, in ticks of the system's clock: several API servers don't export when they did."""
    try:
        return FIRST_PROCESS.read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def healthy(server: Server) -> None:
    try:
        server.call("/health")
    except urllib.error.HTTPError as error:
        raise NotReady(f"the engine is dead: /health says {error.code}") from error


def awake(metrics: str) -> None:
    states = {labels["sleep_state"]: value for labels, value in samples(metrics, "vllm:engine_sleep_state")}
    if states and not states.get("awake"):
        raise NotReady("the engine is asleep; wake it, or end its Pod")


def active_encoder(metrics: str) -> str:
    """Whose vision encoder serves; NotReady where that was not asked for."""
    encoders = [labels["encoder"] for labels, value in samples(metrics, "gemma_engine_info") if value]
    if not encoders:
        raise NotReady(
            "gemma_engine is not active, so vLLM's own vision encoder serves: look for 'Failed to load plugin' in the log, and "
            "see that VLLM_PLUGINS, if set, names gemma_engine and gemma_engine_stats"
        )
    return encoders[0]


def encoder_checked(metrics: str) -> None:
    """NotReady unless our encoder, which has encoded something, was found bit-equal before."""
    (state,) = [labels["state"] for labels, value in samples(metrics, "gemma_engine_self_check") if value] or [""]
    if state == "unchecked":
        raise NotReady(
            "no worker runs gemma_engine's model class, though the plugin is loaded: look for --model-class-overrides, "
            "--model-impl or another plugin of the same architecture"
        )
    if state not in GOOD_STATES:
        raise NotReady("the vision encoder's bits differ from vLLM's: the log says where, at 'vision encoder'")


def answered_canaries(server: Server, model: str) -> list[str]:
    """The kinds of golden requests that were answered; text is one always, media may be turned off in the server."""
    parts: dict[str, list[dict[str, object]]] = {"text": [], "image": [image_part()], "video": [video_part()]}
    ask = partial(answered, server, model)

    def or_full(kind: str) -> bool | None:
        try:
            return ask(kind, parts[kind])
        except Full:
            return None

    with ThreadPoolExecutor(len(parts)) as together:
        found = dict(zip(parts, together.map(or_full, parts), strict=True))
    # A tight limit on the queue (--max-num-queued-tokens) lets in one at a time.
    return [kind for kind in parts if (ask(kind, parts[kind]) if found[kind] is None else found[kind])]


def answered(server: Server, model: str, kind: str, media: list[dict[str, object]]) -> bool:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [*media, {"type": "text", "text": "What do you see here?"}]}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": True,
    }
    try:
        choice = json.loads(server.call("/v1/chat/completions", body))["choices"][0]
    except urllib.error.HTTPError as error:
        why = error.read().decode(errors="replace")
        if kind != "text" and error.code == 400 and re.search(r"[Aa]t most 0 |not (a multimodal|support)", why):
            return False
        refusal = Full if error.code == 503 else NotReady
        raise refusal(f"the golden {kind} request was refused with {error.code}: {why[:300]}") from error
    tokens = [token["token"] for token in choice["logprobs"]["content"]]
    if not tokens or all(token == PAD for token in tokens):
        raise NotReady(f"the golden {kind} request was answered with padding only: the weights or a kernel are broken")
    return True


def check_progress(server: Server, after: float, now: float) -> None:
    """NotReady when requests wait or run and the last step that gave tokens is longer ago than `after` seconds."""
    metrics = server.call("/metrics")
    in_engine = total(metrics, "vllm:num_requests_running") + total(metrics, "vllm:num_requests_waiting")
    # vLLM counts them from their first step on: before that, they are only unanswered.
    requests = max(in_engine, total(metrics, "gemma_engine_unanswered_requests"))
    last = max((value for _, value in samples(metrics, "gemma_engine_last_progress_timestamp_seconds")), default=now)
    if requests and now - last > after:
        raise NotReady(f"{requests:.0f} requests, but no token for {now - last:.0f} s")


def tell(text: str, log: Path, told: Path) -> None:
    """Writes a line to the container's log, unless it was the last one within a minute. What can't be written is left."""
    try:
        if told.exists() and told.read_text() == text and time.time() - told.stat().st_mtime < AGAIN_SECONDS:
            return
        told.write_text(text)
        with log.open("a") as lines:
            lines.write(f"gemma_engine.probe: {text}\n")
    except OSError:
        return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m gemma_engine.probe", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=["ready", "progress"])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--model", default="", help="the name that must be served (default: any)")
    parser.add_argument(
        "--canary", action="store_true", help="send the golden requests even if they were answered before"
    )
    parser.add_argument("--after", type=float, default=120, help="seconds without a token (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=20, help="seconds for one golden answer (default: %(default)s)"
    )
    parser.add_argument("--marker", type=Path, default=Path(tempfile.gettempdir(), "gemma-engine-ready"))
    parser.add_argument("--log", type=Path, default=LOG, help="where it also says what is amiss (default: %(default)s)")
    arguments = parser.parse_args()
    told = arguments.marker.with_name(f"{arguments.marker.name}-told")
    server = Server(arguments.url, os.environ.get("VLLM_API_KEY", ""), arguments.timeout)
    try:
        if arguments.what == "ready":
            check_ready(server, arguments.model, arguments.marker, arguments.canary)
            if told.exists() and told.read_text() != "ready":
                tell("ready", arguments.log, told)
        else:
            check_progress(server, arguments.after, time.time())
    except NotReady as reason:
        said = f"not ready: {reason}" if arguments.what == "ready" else f"no progress: {reason}"
        print(said)
        if not isinstance(reason, NotUp):
            tell(said, arguments.log, told)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
