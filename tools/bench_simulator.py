"""Speed of the simulator: a day of 0.8 million requests, and a day of a fleet of ten thousand engines as a fluid, in CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.fluid import curve_of, flow
from gemma_operator.simulation.policies import DEFAULT, Product
from gemma_operator.simulation.run import TICK_SECONDS, play
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import sine, synthetic

DAY = 86_400.0
MEAN_RATE = 9.26
"""Requests per second: 0.8 million in a day."""
CARRIES = 25.0
"""Requests per second that an engine is measured around."""


def day_figures() -> dict[str, float]:
    """Both figures, and how many requests and engines they are for."""
    shape = sine(2.0, 2 * MEAN_RATE - 2.0, DAY)
    arrivals = synthetic(shape, DAY, seed=1, output_tokens=100).with_media(0.1, 1)
    short = arrivals.crop(0, 1800)
    play(Product(), short, World(), length=1800, preroll=0)  # compiles, where the cache has nothing
    day = _cpu_seconds(lambda: play(Product(), arrivals, World(), length=DAY, preroll=0))
    mix = Arrivals.of(np.arange(1000.0), 500, 20).with_media(0.1, 1)
    curve = curve_of(mix, World(), CARRIES, 0.3)
    rates = sine(70_000, 250_000, DAY)(np.arange(0.0, DAY, TICK_SECONDS))
    policy = replace(DEFAULT, maximum=20_000)
    highest: list[int] = []
    fluid = _cpu_seconds(lambda: highest.append(max(flow(policy, rates, curve, World(), initial=4000).replicas)))
    return {"requests": len(arrivals), "day": day, "engines": highest[0], "fluid": fluid}


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    print(day_figures())
