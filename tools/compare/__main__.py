"""Compare the product's rule with other autoscalers, request by request, on public traces.

    python -m tools.compare --traces FOLDER [--workloads conversation,bursts] [--seeds 5] [--trace-seeds 9,10]

Every policy meets the same arrivals and the same cold starts, so differences are paired, seed by seed; their intervals
(95 %) are over all pairs. FOLDER holds the traces (docs/simulator.md says which). Writes docs/data/comparison.json and docs/data/comparison.html.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

from gemma_operator.simulation.bound import clairvoyant
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.measures import Run, summarise
from gemma_operator.simulation.run import simulate
from gemma_operator.workload.arrivals import WorkloadError
from tools.compare.policies import MOST, NAMES, OURS, policies
from tools.compare.report import page
from tools.compare.workloads import ALL

OUT = Path(__file__).parents[2] / "docs/data"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--workloads", default="conversation,bursts,mm 3.5 h", help=f"of: {', '.join(ALL)}")
    parser.add_argument("--seeds", type=int, default=5, help="cold-start seeds for each trace seed")
    parser.add_argument("--trace-seeds", default="7,8", help="seeds of what is drawn for the traces")
    parser.add_argument(
        "--policies", default=";".join(NAMES), help=f"separated by ';', of: {'; '.join(NAMES)} (default: all)"
    )
    given = parser.parse_args(arguments)
    names = [name.strip() for name in given.workloads.split(",")]
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no workload {', '.join(unknown)}: use some of {', '.join(ALL)}")
    chosen = list(dict.fromkeys([OURS, *(name.strip() for name in given.policies.split(";"))]))
    if unknown := [name for name in chosen if name not in NAMES]:
        parser.error(f"there is no policy {'; '.join(unknown)}: use some of {'; '.join(NAMES)}")
    runs: list[Run] = []
    try:
        for name in names:
            for trace_seed in map(int, given.trace_seeds.split(",")):
                runs += _runs(given, name, trace_seed, chosen)
    except WorkloadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    summaries = summarise(runs, OURS)
    OUT.mkdir(parents=True, exist_ok=True)
    command = f"python -m tools.compare --workloads '{given.workloads}' --seeds {given.seeds} --trace-seeds {given.trace_seeds}"
    data = {
        "command": f"{command} --traces FOLDER",
        "summaries": [asdict(one) for one in summaries],
        "runs": [_row(run) for run in runs],
    }
    (OUT / "comparison.json").write_text(json.dumps(data, indent=1) + "\n")
    (OUT / "comparison.html").write_text(page(command, summaries))
    return 0


def _row(run: Run) -> dict[str, object]:
    """One run, for whoever wants to pair it otherwise."""
    outcome = run.outcome
    return {
        "workload": run.workload,
        "policy": run.policy,
        "trace_seed": run.trace_seed,
        "seed": run.seed,
        "attainment": round(outcome.attainment, 6),
        "gpu_hours": round(outcome.gpu_hours, 4),
        "bound_gpu_hours": round(run.bound, 4),
        "digest": outcome.digest[:16],
    }


def _runs(given: argparse.Namespace, name: str, trace_seed: int, chosen: list[str]) -> list[Run]:
    workload = ALL[name](given.traces, trace_seed).plain(trace_seed)
    print(f"[{name}] {len(workload.arrivals)} requests in {workload.seconds / 3600:.1f} h: the bound …", flush=True)
    bound = clairvoyant(workload.arrivals, workload.seconds, World(), most=MOST)
    initial = max(1, math.ceil(bound.gpu_hours(0.99) * 3600 / workload.seconds))
    runs = []
    makers = policies(workload)
    for policy in chosen:
        started = time.monotonic()
        for seed in range(given.seeds):
            outcome = simulate(
                makers[policy](), workload.arrivals, World(seed=seed), length=workload.seconds, initial=initial
            )
            runs.append(Run(name, policy, trace_seed, seed, outcome, bound.gpu_hours(outcome.attainment)))
        last = runs[-1].outcome
        print(
            f"[{name}] {policy}: {last.attainment:.2%}, {last.gpu_hours:.2f} GPU-h ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
    return runs


if __name__ == "__main__":
    sys.exit(main())
