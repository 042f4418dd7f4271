"""Draw one workload under several autoscalers: the load, and how many engines each asked for.

    python -m tools.compare.picture --traces FOLDER

Writes docs/pictures/simulated.png, which docs/autoscaling.md shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
from matplotlib.figure import Figure

from gemma_operator.simulation import peers
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.policies import Product, Static
from gemma_operator.simulation.run import PREROLL_SECONDS, TICK_SECONDS, Outcome, Policy, play
from tools.compare.workloads import Workload, multimodal_slice

OUT = Path(__file__).parents[2] / "docs/pictures/simulated.png"
INITIAL = 3
POLICIES: dict[str, tuple[Callable[[], Policy], str]] = {
    "this operator": (Product, "#1a7f4b"),
    "static 3": (lambda: Static(INITIAL), "#57606a"),
    "HPA on p95, vLLM's edges": (lambda: peers.hpa_p95(exact=False), "#c62f2f"),
}


def draw(workload: Workload, outcomes: dict[str, Outcome]) -> Figure:
    """Load per minute above, engines asked for below; what each achieved and cost is in the legend."""
    figure = Figure(figsize=(9.4, 5.6), dpi=120, layout="constrained", facecolor="#ffffff")
    load, engines = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 3]})
    counts = np.bincount((workload.arrivals.at // 60).astype(int)) / 60
    load.plot(np.arange(len(counts)) / 60, counts, color="#0a6cc9", linewidth=1)
    load.set_title("requests per second, a tenth of them videos", loc="left", fontsize=11)
    for name, outcome in outcomes.items():
        path = outcome.replicas[int(PREROLL_SECONDS // TICK_SECONDS) :]
        said = f"{name}: {outcome.attainment:.1%} within 300 ms, {outcome.gpu_hours:.1f} GPU-hours"
        hours = np.arange(len(path)) * TICK_SECONDS / 3600
        engines.step(hours, path, where="post", color=POLICIES[name][1], label=said, linewidth=1.4)
    engines.set_title("engines asked for", loc="left", fontsize=11)
    engines.set_xlabel("hours")
    engines.set_ylim(bottom=0)
    figure.legend(loc="outside lower left", frameon=False, fontsize=10)
    for axes in (load, engines):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#d8dce1", linewidth=0.6)
    return figure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compare.picture", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    given = parser.parse_args(arguments)
    workload = multimodal_slice(given.traces, 7).plain(7)
    outcomes = {
        name: play(make(), workload.arrivals, World(seed=0), length=workload.seconds, initial=INITIAL).outcome
        for name, (make, _) in POLICIES.items()
    }
    draw(workload, outcomes).savefig(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
