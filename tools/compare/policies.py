"""Who is compared. Those that plan by rate or concurrency are told what an engine carries; the others get their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gemma_operator.simulation import llm_d, peers
from gemma_operator.simulation.bound import Oracle
from gemma_operator.simulation.fleet import World
from gemma_operator.simulation.policies import DEFAULT, Borrower, Part, Product, Static, Without
from gemma_operator.simulation.run import PREROLL_SECONDS, Policy, with_preroll
from tools.compare.workloads import Workload

OURS = "gemma-operator"
CARRIES = 22.0
"""Requests per second that one engine carries at the SLO with a tenth of videos."""
IN_FLIGHT = 30.0
MOST = 24
"""Engines that the bound and the oracle may use."""
Makers = dict[str, Callable[[], Policy]]
FIXED = ("static, mean", "static, busiest minute")
AUTOSCALERS: Makers = {
    "HPA on p95, vLLM's edges": lambda: peers.hpa_p95(exact=False),
    "HPA on p95, exact edge": lambda: peers.hpa_p95(exact=True),
    "KEDA on waiting": peers.keda_waiting,
    "KEDA on waiting, fallback": lambda: peers.keda_waiting(null_is_zero=False, fallback=4),
    "Knative on concurrency": lambda: peers.Knative(IN_FLIGHT),
    "llm-d WVA V1": peers.SaturationV1,
    "llm-d WVA V2": llm_d.SaturationV2,
    "llm-d SLO guide": llm_d.SloGuide,
    "Dynamo-like": lambda: peers.Dynamo(CARRIES, 1 / CARRIES),
    "rate feed-forward": lambda: peers.RateFeedForward(CARRIES),
}
PARTS = {f"{OURS} without {part}": part for part in Part}
DONORS = {f"{OURS}, 1 donor": 1, f"{OURS}, 2 donors": 2}
"""Warm engines of a batch pool that may be lent."""
ORACLE = "oracle, one cold start ahead"
NAMES = (OURS, *DONORS, *PARTS, ORACLE, *FIXED, *AUTOSCALERS)


def policies(workload: Workload, sheds: bool = False) -> Makers:
    """All of them by name, for a workload; `sheds`: its engines have admission limits."""
    own = replace(DEFAULT, sheds=sheds)
    at, minutes = workload.arrivals.at, max(1, math.ceil(workload.seconds / 60))
    busiest = np.bincount((at // 60).astype(int), minlength=minutes).max() / 60
    mean = len(at) / workload.seconds
    static = (math.ceil(rate / CARRIES) for rate in (mean, busiest))
    fixed: Makers = {name: lambda n=n: Static(max(1, n)) for name, n in zip(FIXED, static, strict=True)}  # type: ignore[misc]
    return {
        OURS: lambda: Product(own),
        **dict.fromkeys(DONORS, lambda: Borrower(own)),
        **{name: partial(Without, part, own) for name, part in PARTS.items()},
        ORACLE: _oracle(workload),
        **fixed,
        **AUTOSCALERS,
    }


def _oracle(workload: Workload) -> Callable[[], Policy]:
    """Made once for a workload: what it knows doesn't depend on the seed of cold starts."""
    made: list[Oracle] = []

    def make() -> Policy:
        if not made:
            arrivals = with_preroll(workload.arrivals, PREROLL_SECONDS, workload.seconds)
            made.append(Oracle(arrivals, workload.seconds + PREROLL_SECONDS, World(), most=MOST))
        return made[0]

    return make
