"""What an HPA controller was told and did, sync by sync, and what the simulator's makes of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

from gemma_operator.scaling.counters import Missing, MissingReason, Scrape
from gemma_operator.scaling.pool import Fleet, Member
from gemma_operator.simulation.peers import Hpa


@dataclass(frozen=True)
class Sync:
    """What the HPA controller was told, and what it found."""

    at: float
    value: float | None
    replicas: int
    ready: tuple[int, int]
    """Least and most: it counts Pods after it was told the value, while some become Ready."""


def model_of(syncs: Sequence[Sync], hpa: Callable[[list[float]], Hpa]) -> list[int]:
    """The replicas that the simulator's HPA comes to, told the same values at the same times.

    Of the numbers of Ready Pods that Kubernetes' own may have counted, that is taken which leads where it went, if one does.
    """
    told = [0.0]
    policy, replicas, path = hpa(told), syncs[0].replicas, []
    for sync, after in pairwise(syncs):
        told[0] = sync.value or 0.0
        down = Missing(MissingReason.QUERY_FAILED, "no such series")
        reading = down if sync.value is None else Scrape({})
        courses = []
        for ready in range(sync.ready[0], sync.ready[1] + 1):
            course = deepcopy(policy)
            members = tuple(Member(f"u{n}", sync.at - 1, sync.at - 1, sync.at - 1) for n in range(ready))
            fleet = Fleet(replicas, members, pending=max(0, replicas - ready))
            courses.append((course.replicas(sync.at, reading, fleet), course))
        replicas, policy = next((course for course in courses if course[0] == after.replicas), courses[0])
        path.append(replicas)
    return path
