"""Compare the product's rule with other autoscalers, request by request, on public traces.

    python -m tools.compare --traces FOLDER [--workloads conversation,bursts] [--seeds 5] [--trace-seeds 7,8]

FOLDER holds the traces (docs/simulator.md says which). Writes docs/data/comparison.json and docs/data/comparison.html.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gemma_operator.simulation import peers
from gemma_operator.simulation.bound import Bound, clairvoyant
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.measures import Run, summarise
from gemma_operator.simulation.policies import Product, Static
from gemma_operator.simulation.run import Policy, simulate
from gemma_operator.workload.arrivals import WorkloadError
from tools.compare.report import page
from tools.compare.workloads import ALL, Workload

OUT = Path(__file__).parents[2] / "docs/data"
OURS = "gemma-operator"
CARRIES = 22.0
"""Requests per second that one engine carries at the SLO with a tenth of videos: what rate policies are told."""
IN_FLIGHT = 30.0


def policies(workload: Workload, bound: Bound) -> dict[str, Callable[[], Policy]]:
    """All that are compared, by name."""
    mean = len(workload.arrivals) / workload.seconds / CARRIES
    peak = max(1, math.ceil(max(_rates(workload)) / CARRIES))
    return {
        OURS: Product,
        "static, mean": lambda: Static(max(1, math.ceil(mean))),
        "static, busiest minute": lambda: Static(peak),
        "HPA on p95, vLLM's edges": lambda: peers.hpa_p95(exact=False),
        "HPA on p95, exact edge": lambda: peers.hpa_p95(exact=True),
        "KEDA on waiting": peers.keda_waiting,
        "Knative on concurrency": lambda: peers.Knative(IN_FLIGHT),
        "llm-d WVA V1": peers.SaturationV1,
        "Dynamo-like": lambda: peers.Dynamo(CARRIES, 1 / CARRIES),
        "rate feed-forward": lambda: peers.RateFeedForward(CARRIES),
    }


def _rates(workload: Workload) -> list[float]:
    at, minutes = workload.arrivals.at, int(workload.seconds // 60) or 1
    counts = [0] * (minutes + 1)
    for second in at:
        counts[min(int(second // 60), minutes)] += 1
    return [count / 60 for count in counts]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--workloads", default="conversation,bursts,mm 3.5 h", help=f"of: {', '.join(ALL)}")
    parser.add_argument("--seeds", type=int, default=5, help="cold-start seeds for each trace seed")
    parser.add_argument("--trace-seeds", default="7,8", help="seeds of what is drawn for the traces")
    parser.add_argument("--only-ours", action="store_true", help="no other autoscaler")
    given = parser.parse_args(arguments)
    names = [name.strip() for name in given.workloads.split(",")]
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no workload {', '.join(unknown)}: use some of {', '.join(ALL)}")
    runs: list[Run] = []
    try:
        for name in names:
            for trace_seed in map(int, given.trace_seeds.split(",")):
                runs += _runs(given, name, trace_seed)
    except WorkloadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    summaries = summarise(runs, OURS)
    OUT.mkdir(parents=True, exist_ok=True)
    command = f"python -m tools.compare --workloads '{given.workloads}' --seeds {given.seeds} --trace-seeds {given.trace_seeds}"
    data = {"command": f"{command} --traces FOLDER", "summaries": [asdict(one) for one in summaries]}
    (OUT / "comparison.json").write_text(json.dumps(data, indent=1) + "\n")
    (OUT / "comparison.html").write_text(page(command, summaries))
    return 0


def _runs(given: argparse.Namespace, name: str, trace_seed: int) -> list[Run]:
    workload = ALL[name](given.traces, trace_seed).plain(trace_seed)
    print(f"[{name}] {len(workload.arrivals)} requests in {workload.seconds / 3600:.1f} h: the bound …", flush=True)
    bound = clairvoyant(workload.arrivals, workload.seconds, World(), most=24)
    initial = max(1, math.ceil(bound.gpu_hours(0.99) * 3600 / workload.seconds))
    runs = []
    for policy, make in policies(workload, bound).items():
        if given.only_ours and policy != OURS:
            continue
        started = time.monotonic()
        for seed in range(given.seeds):
            outcome = simulate(make(), workload.arrivals, World(seed=seed), length=workload.seconds, initial=initial)
            runs.append(Run(name, policy, trace_seed, seed, outcome, bound.gpu_hours(outcome.attainment)))
        last = runs[-1].outcome
        print(
            f"[{name}] {policy}: {last.attainment:.2%}, {last.gpu_hours:.2f} GPU-h ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
    return runs


if __name__ == "__main__":
    sys.exit(main())
