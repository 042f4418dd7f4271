"""Fit the step model to a real vLLM on this machine's CPU, then predict loads that it was not fitted to.

    python -m tools.calibrate [--write] [--url URL --model NAME]

Starts the tiny Gemma 4 of the engine's own environment where no URL is given. Takes about five minutes. `--write` renews
docs/data/calibration.json and the table in docs/simulator.md. Meant for a machine that does nothing else; what it does
beside is measured and told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from gemma_operator.planning.prompts import Wanted
from gemma_operator.planning.sweep_run import LONGEST_WAIT, Target
from gemma_operator.simulation.step_model import EngineConfig
from tools.calibrate import fit, measure

ROOT = Path(__file__).parents[2]
DATA, DOCS = ROOT / "docs/data/calibration.json", ROOT / "docs/simulator.md"
FIRST, LAST = "<!-- calibration -->", "<!-- /calibration -->"
CONFIG = EngineConfig(max_num_batched_tokens=4096, max_num_seqs=64)
FRAMES, MEDIA_SHARE = 2, 0.1
"""Of the loads: a frame of 480p costs a CPU about a tenth of a second."""
BURSTS = (1, 2, 3)
"""Seeds of the bursts of 60 requests that are part of the fit."""
SECONDS = 45.0
"""Length of each load."""
ARGUMENTS = [
    "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", str(CONFIG.max_num_seqs),
    "--max-num-batched-tokens", str(CONFIG.max_num_batched_tokens), "--no-enable-prefix-caching",
    "--mm-processor-cache-gb", "0", "--limit-mm-per-prompt", '{"image": 1, "video": 1}',
    "--distributed-executor-backend", "uni",
]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="of a vLLM that serves nobody else; else one is started")
    parser.add_argument("--model", default="tiny", help="the name that it serves (default: tiny)")
    parser.add_argument("--pid", type=int, default=0, help="of its process, to see what it waits for a core")
    parser.add_argument("--write", action="store_true", help="renew data and docs")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.url:
        found = asyncio.run(calibrate(given.url, given.model, given.pid))
    else:
        with tiny_engine() as (url, pid):
            found = asyncio.run(calibrate(url, "tiny", pid))
    print("\n".join(rows(found)))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    if given.write:
        DATA.write_text(json.dumps(found, indent=1) + "\n")
        before, _, rest = DOCS.read_text().partition(FIRST)
        _, _, after = rest.partition(LAST)
        DOCS.write_text("\n".join([f"{before}{FIRST}", *rows(found), f"{LAST}{after}"]))
    return 0


@contextmanager
def tiny_engine() -> Iterator[tuple[str, int]]:
    """A vLLM with the tiny Gemma 4, its computing on one core: threads that wait for each other wait for everything else too."""
    from tests.engine.server import Home, serving
    from tools.images.engine_venv import engine_venv

    home = Home(engine_venv(), bind="0")
    arguments = ["--model", home.model, "--served-model-name", "tiny", *ARGUMENTS]
    with tempfile.TemporaryDirectory() as scratch, serving(home, arguments, "tiny", Path(scratch)) as server:
        for pid in (server.process.pid, os.getpid()):
            _weigh(pid)
        yield server.url, server.process.pid


def _weigh(pid: int) -> None:
    """Give a session the weight of our own niceness: where Linux groups processes by session, nice alone counts within one."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(os.nice(0)))


async def calibrate(url: str, model: str, pid: int) -> dict[str, Any]:
    """Measure, fit, predict, measure again."""
    target = Target(url, model, Wanted())
    timeout = aiohttp.ClientTimeout(total=2 * LONGEST_WAIT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        engine = measure.Engine(session, target, random.Random(1))
        with measure.waited_for_a_core(pid) as alone:
            singles, decodings = await measure.singles(engine), await measure.decodings(engine)
            bursts = []
            for seed in BURSTS:
                bursts.append(await measure.played(engine, fit.asks_of(fit.at_once(60, seed, FRAMES, MEDIA_SHARE))))
        costs = fit.fit(singles, decodings)
        factors = [fit.slowdown(costs, CONFIG, burst.asks, burst.ttft) for burst in bursts]
        factor = statistics.median(factors)
        say(f"a burst is answered {factor:.2f} times as slowly as single requests say ({factors})")
        costs = costs.scaled(factor)
        say(f"fitted: {json.dumps({k: round(v * 1000, 3) for k, v in asdict(costs).items()})} ms")
        highest = fit.highest_rate(costs, CONFIG, FRAMES, MEDIA_SHARE)
        say(f"predicted to hold a p95 of {fit.LIMIT_SECONDS:g} s up to {highest:.2f} requests/s")
        loads = []
        for number, part in enumerate(fit.LOADS):
            rate = part * highest
            asked = fit.asks_of(fit.draw(rate, max(60, int(rate * SECONDS)), 100 + number, FRAMES, MEDIA_SHARE))
            with measure.waited_for_a_core(pid) as under_load:
                seen = await measure.played(engine, asked)
            loads.append(_load(rate, seen, fit.predicted(seen.asks, CONFIG, costs), under_load))
            say(f"{rate:.2f}/s: p95 {loads[-1]['measured_p95']:.3f} s, predicted {loads[-1]['predicted_p95']:.3f} s")
    return {
        "command": "make calibrate",
        "engine": "vLLM 0.32.0, tiny Gemma 4 on one CPU core",
        "cores": os.cpu_count(),
        "fitted_to": {
            "requests": len(singles),
            "decodings": [asdict(one) for one in decodings],
            "burst_slowdowns": factors,
        }
        | alone,
        "costs_seconds": asdict(costs),
        "highest_rate": highest,
        "loads": loads,
    }


def _load(rate: float, seen: measure.Played, predicted: list[float], waited: dict[str, float]) -> dict[str, Any]:
    measured, low_high = fit.p95(seen.ttft), fit.interval_of_p95(seen.ttft)
    return {
        "rate": rate,
        "requests": len(seen.ttft),
        "failed": seen.failed,
        "measured_p95": measured,
        "measured_interval": low_high,
        "predicted_p95": fit.p95(predicted),
        "error": fit.p95(predicted) / measured - 1,
        "measured_median": sorted(seen.ttft)[len(seen.ttft) // 2],
        "predicted_median": sorted(predicted)[len(predicted) // 2],
        "waited_for_a_core": waited["share"],
        "load_average": waited["load_average"],
    }


def rows(found: dict[str, Any]) -> list[str]:
    """The table of docs/simulator.md."""
    out = [
        "| requests/s | requests | p95 TTFT measured (95 % interval) | predicted | error | median: measured, predicted | waited for a core |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found["loads"]:
        low, high = one["measured_interval"]
        out.append(
            f"| {one['rate']:.2f} | {one['requests']} | {one['measured_p95']:.2f} s ({low:.2f} to {high:.2f}) "
            f"| {one['predicted_p95']:.2f} s | {one['error']:+.0%} "
            f"| {one['measured_median']:.2f} s, {one['predicted_median']:.2f} s | {one['waited_for_a_core']:.0%} of its time |"
        )
    return out


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
