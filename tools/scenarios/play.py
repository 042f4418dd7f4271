"""Plays a run on a cluster: applies its serving, sends its load, and looks at both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import yaml

from tools.demo import deploy, traffic
from tools.demo.console import DemoError, Shell, say
from tools.demo.load import Client
from tools.demo.watch import Unanswered, Watch, watch
from tools.scenarios.recording import Recording, Sample, figures
from tools.scenarios.scenes import Part, Run

SAMPLE_SECONDS = 2.0
READY_SECONDS = 240.0
REQUEST_SECONDS = 20.0
SHOWN = ("SLOMet", "MetricsAvailable", "ScalingSound")


async def play(run: Run, shell: Shell, kubectl: list[str], namespace: str, name: str = "scene") -> Recording:
    """One run from an applied serving to its recording; the serving is deleted afterwards."""
    manifest = {**yaml.safe_load((deploy.ROOT / deploy.EXAMPLES["standin"]).read_text()), "metadata": {"name": name}}
    manifest["spec"]["pools"] = run.pools
    try:
        await _apply(shell, kubectl, namespace, name, manifest)
        async with watch(shell, kubectl, namespace, name) as seen:
            await deploy.await_ready(seen, READY_SECONDS)
            if run.batch_engines > 1:
                scale = ("scale", f"deployment/{name}-batch", f"--replicas={run.batch_engines}")
                shell.read([*kubectl, "--namespace", namespace, *scale])
                await _await_batch(seen, run.batch_engines)
            return await _Stage(run, shell, kubectl, name, seen).tell()
    finally:
        shell.read(
            [*kubectl, "--namespace", namespace, "delete", "gemmaserving", name, "--ignore-not-found"], needed=False
        )


class _Stage:
    def __init__(self, run: Run, shell: Shell, kubectl: list[str], name: str, seen: Watch) -> None:
        self._run, self._shell, self._kubectl, self._watch = run, shell, kubectl, seen
        self._name = name
        self._recording = Recording(run.name, run.slo)
        self._ended = asyncio.Event()

    async def tell(self) -> Recording:
        url = await self._watch.url("interactive")
        model = await self._watch.model(url)
        found = self._recording
        found.load_average.append(round(os.getloadavg()[0], 1))
        self._began = time.time()
        async with Client(url, timeout=REQUEST_SECONDS, max_in_flight=2048) as client, self._observed():
            for number, part in enumerate(self._run.parts):
                await self._play(part, client, model, number)
        found.take(client.outcomes, self._began)
        found.load_average.append(round(os.getloadavg()[0], 1))
        found.events = [
            f"{event.at:.0f} s {event.reason}: {event.message}"
            for event in await self._watch.events(self._began)
            if event.at >= 0 and event.about.split(" ")[-1].startswith(self._name)
        ]
        return found

    async def _play(self, part: Part, client: Client, model: str, number: int) -> None:
        start = time.time() - self._began
        say(
            f"{start:4.0f} s  {part.name}: {part.rate:g} requests a second, {part.video_share:.0%} videos, {part.seconds:g} s"
        )
        if part.before:
            self._shell.read([*self._kubectl, *part.before])
        await client.offer(traffic.mixed(model, part.video_share, seed=number), part.rate, part.seconds, seed=number)
        self._recording.parts.append((part.name, part.rate, start, time.time() - self._began))

    @contextlib.asynccontextmanager
    async def _observed(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._observe())
        try:
            yield
        finally:
            self._ended.set()
            await task

    async def _observe(self) -> None:
        while not self._ended.is_set():
            began = time.time()
            with contextlib.suppress(Unanswered):
                self._recording.samples.append(await self._sample(began - self._began))
            await asyncio.sleep(max(0.2, SAMPLE_SECONDS - (time.time() - began)))

    async def _sample(self, at: float) -> Sample:
        status, written = await asyncio.gather(self._watch.status(), self._watch.generations())
        pools, told = status.get("pools") or {}, status.get("conditions") or []
        return Sample(
            at=round(at, 1),
            desired={name: pool.get("desired", 0) for name, pool in pools.items()},
            ready={name: pool.get("ready", 0) for name, pool in pools.items()},
            borrowed=pools.get("interactive", {}).get("borrowed", 0),
            conditions={c["type"]: f"{c['status']} {c['reason']}" for c in told if c["type"] in SHOWN},
            decision=pools.get("interactive", {}).get("lastDecision", {}).get("message", ""),
            replicas_written={name.rpartition("-")[2]: number for name, number in written.items()},
        )


async def _apply(shell: Shell, kubectl: list[str], namespace: str, name: str, manifest: dict[str, Any]) -> None:
    """Apply once an earlier run's engines are gone, so that none of them counts."""
    end = time.monotonic() + READY_SECONDS
    while "pod/" in shell.read(
        [*kubectl, "--namespace", namespace, "get", "pods", "-l", f"gemmaserving.dev/serving={name}", "-o", "name"]
    ):
        if time.monotonic() > end:
            raise DemoError("engines of an earlier run don't end")
        await asyncio.sleep(1)
    file = deploy.ROOT / "out" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(manifest))
    shell.read([*kubectl, "apply", "--namespace", namespace, "-f", str(file)])


async def _await_batch(seen: Watch, engines: int) -> None:
    end = time.monotonic() + READY_SECONDS
    while ((await seen.status()).get("pools") or {}).get("batch", {}).get("ready") != engines:
        if time.monotonic() > end:
            raise DemoError(f"the batch pool did not get {engines} Ready engines within {READY_SECONDS:.0f} s")
        await asyncio.sleep(0.5)


def table(recording: Recording) -> str:
    """The figures of each part, for the terminal."""
    lines = [
        f"{'part':<24} {'requests':>8} {'within':>7} {'over':>6} {'GPU-s':>6} {'engines':>8} {'borrowed':>8} {'writes':>6}"
    ]
    for name, *_ in recording.parts:
        f = figures(recording, name)
        share = "-" if f["attainment"] is None else f"{f['attainment']:.1%}"
        lines.append(
            f"{name:<24} {f['requests']:>8} {share:>7} {f['seconds_over_slo']:>4} s {f['gpu_seconds']:>6} "
            f"{f['most_interactive']:>8} {f['most_borrowed']:>8} {f['writes_of_interactive']:>6}"
        )
    return "\n".join(lines)
