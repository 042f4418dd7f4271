"""Run test tiers, two at a time, and print what each took: `python -m tools.tiers unit chart apiserver node argocd engine plugin demo`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from tools.cluster import binaries
from tools.cluster.console import ClusterError, duration, say

# Programs that a tier needs, compiled in one go before the first tier, so that they share their work.
PROGRAMS = {
    "unit": ("prometheus",),
    "chart": (*binaries.CONTROL_PLANE, "kubectl", "helm", "helm3", "flux-ssa", "promtool"),
    "monitoring": ("prometheus", "promtool"),
    "apiserver": (*binaries.CONTROL_PLANE, "kubectl", "helm"),
    "node": (*binaries.NODE, "kubectl", "helm", "prometheus"),
    "argocd": (*binaries.NODE, "kubectl", "helm", "argocd"),
    "engine": (*binaries.CONTROL_PLANE, "kubectl"),
    "demo": (*binaries.NODE, "kubectl", "helm", "prometheus"),
}
# What a machine has once: its node cluster, and the cores and memory that a real vLLM fills.
HOLDS = {
    "node": {"node cluster"},
    "argocd": {"node cluster"},
    "engine": {"vLLM"},
    "plugin": {"vLLM"},
    "demo": {"node cluster", "vLLM"},
}
LANES = 2  # tiers side by side: most of a tier's time is waiting for a cluster
BEHIND_THE_NODE = 5  # niceness of tiers without a node, whose tests don't watch latency
NOTHING_RAN = 5  # pytest's exit code for "no test was collected"


@dataclass(frozen=True)
class Result:
    tier: str
    code: int
    seconds: float

    @property
    def word(self) -> str:
        return {0: "ok", NOTHING_RAN: "NO TESTS"}.get(self.code, "FAILED")


def startable(waiting: Sequence[str], running: Iterable[str]) -> str | None:
    """The first tier that waits for nothing a running one holds; None if there is none or all lanes are taken."""
    busy = list(running)
    held = {thing for tier in busy for thing in HOLDS.get(tier, ())}
    if len(busy) >= LANES:
        return None
    return next((tier for tier in waiting if not held & HOLDS.get(tier, set())), None)


def main() -> int:
    """Run the tiers named on the command line; stops at none of them, fails if one failed."""
    tiers = sys.argv[1:]
    try:
        binaries.ensure(program for tier in tiers for program in PROGRAMS.get(tier, ()))
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    started = time.monotonic()
    results = _run_all(tiers) if len(tiers) > 1 else [_run(tier, None) for tier in tiers]
    print("\ntier        result   time")
    for result in sorted(results, key=lambda result: tiers.index(result.tier)):
        print(f"{result.tier:<11} {result.word:<8} {duration(result.seconds)}")
    print(f"{'together':<11} {'':<8} {duration(time.monotonic() - started)}")
    return int(any(result.code for result in results))


def _run_all(tiers: Sequence[str]) -> list[Result]:
    waiting, results = list(tiers), []
    running: dict[Future[Result], str] = {}
    with ThreadPoolExecutor(LANES) as lanes:
        while waiting or running:
            while tier := startable(waiting, running.values()):
                waiting.remove(tier)
                print(f"started     {tier}", flush=True)
                running[lanes.submit(_captured, tier)] = tier
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                del running[done]
                results.append(done.result())
    return results


def _captured(tier: str) -> Result:
    """Run a tier and print what it said when it has ended, so that two don't mix."""
    with tempfile.TemporaryFile("w+") as output:
        result = _run(tier, output.fileno())
        output.seek(0)
        print(
            f"\n=== {tier} ===\n{output.read()}=== {tier}: {result.word} after {duration(result.seconds)} ===",
            flush=True,
        )
        return result


def _run(tier: str, output: int | None) -> Result:
    nice = [] if "node cluster" in HOLDS.get(tier, ()) else ["nice", "-n", str(BEHIND_THE_NODE)]
    command = [*nice, sys.executable, "-m", "pytest", "-q", f"tests/{tier}"]
    started = time.monotonic()
    code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    return Result(tier, code, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
