"""Compare the product's rule with other autoscalers, request by request, on public traces.

    python -m tools.compare --traces FOLDER [--workloads conversation,bursts] [--seeds 5] [--trace-seeds 9,10]

Every policy meets the same arrivals and the same cold starts, so differences are paired, seed by seed; their intervals
(95 %) are over all pairs. FOLDER holds the traces (docs/simulator.md says which). Writes docs/data/comparison.json and docs/data/comparison.html
after each policy: runs of the same workload, policy and seeds are replaced, all others stay.
With --admission every engine, the bound's too, turns away what it can't answer in time (spec.pools.NAME.admission).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from gemma_operator.simulation.bound import clairvoyant
from gemma_operator.simulation.engine_model import INTERACTIVE
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.measures import Run, summarise
from gemma_operator.simulation.run import play
from gemma_operator.workload.arrivals import WorkloadError
from tools.compare.policies import DONORS, MOST, NAMES, OURS, policies
from tools.compare.report import page
from tools.compare.workloads import ALL

OUT = Path(__file__).parents[2] / "docs/data"
WITH_ADMISSION = ", admission limits"
MAX_QUEUED_TOKENS = INTERACTIVE.limits.tokens
"""What a step takes; these engines work off 12,000 tokens a second, media included: 3,600 in 300 ms."""
ADMITTING = replace(INTERACTIVE, limits=INTERACTIVE.limits._replace(queued_tokens=MAX_QUEUED_TOKENS))
COMMAND = "python -m tools.compare --traces FOLDER --workloads NAMES --seeds N --trace-seeds NUMBERS"


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
    parser.add_argument(
        "--admission",
        action="store_true",
        help=f"engines with maxQueuedTokens: {MAX_QUEUED_TOKENS}, as workloads of their own",
    )
    given = parser.parse_args(arguments)
    names = [name.strip() for name in given.workloads.split(",")]
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no workload {', '.join(unknown)}: use some of {', '.join(ALL)}")
    chosen = list(dict.fromkeys([OURS, *(name.strip() for name in given.policies.split(";"))]))
    if unknown := [name for name in chosen if name not in NAMES]:
        parser.error(f"there is no policy {'; '.join(unknown)}: use some of {'; '.join(NAMES)}")
    try:
        for name in names:
            for trace_seed in map(int, given.trace_seeds.split(",")):
                _compare(given, name, trace_seed, chosen)
    except WorkloadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(given: argparse.Namespace, name: str, trace_seed: int, chosen: list[str]) -> None:
    workload = ALL[name](given.traces, trace_seed).plain(trace_seed)
    usual = World(engine=ADMITTING) if given.admission else World()
    name += WITH_ADMISSION if given.admission else ""
    print(f"[{name}] {len(workload.arrivals)} requests in {workload.seconds / 3600:.1f} h: the bound …", flush=True)
    bound = clairvoyant(workload.arrivals, workload.seconds, usual, most=MOST)
    initial = max(1, math.ceil(bound.gpu_hours(0.99) * 3600 / workload.seconds))
    makers = policies(workload, given.admission)
    for policy in chosen:
        started, runs = time.monotonic(), []
        for seed in range(given.seeds):
            world = replace(usual, seed=seed, donors=DONORS.get(policy, 0))
            outcome = play(makers[policy](), workload.arrivals, world, length=workload.seconds, initial=initial).outcome
            runs.append(Run.of(name, policy, trace_seed, seed, outcome, bound.gpu_hours(outcome.attainment)))
        _keep(runs)
        last = runs[-1]
        print(
            f"[{name}] {policy}: {last.attainment:.2%}, {last.gpu_hours:.2f} GPU-h ({time.monotonic() - started:.0f} s)",
            flush=True,
        )


def _keep(runs: list[Run]) -> None:
    """Write them beside what is there already, in place of runs of the same seeds."""
    path = OUT / "comparison.json"
    before = [Run(**row) for row in json.loads(path.read_text())["runs"]] if path.exists() else []
    kept = {run.key: run for run in (*before, *runs)}
    workloads = (name + limits for name in ALL for limits in ("", WITH_ADMISSION))
    order = {name: number for number, name in enumerate((*workloads, *NAMES))}
    found = sorted(kept.values(), key=lambda run: (order[run.workload], order[run.policy], run.trace_seed, run.seed))
    OUT.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(asdict(run)) for run in found)
    path.write_text(f'{{"command": "{COMMAND}",\n"runs": [\n{rows}\n]}}\n')
    (OUT / "comparison.html").write_text(page(COMMAND, summarise(found, OURS)))


if __name__ == "__main__":
    sys.exit(main())
