"""The capacity profile: what a request costs an engine, and how much of it an engine carries within the SLO.

Work is counted in engine-seconds: a load of 1.0 keeps one engine at its operating point under random (Poisson)
arrivals. Costs depend on the model and the GPU; the load an engine carries depends on the mix and the burstiness.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Rates:
    """What came to a pool, per second. `None` where its engines don't export it."""

    requests: float = 0.0
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    media_items: float | None = None
    media_units: float | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Engine-seconds of work. The defaults are for gemma-4-E4B on one GPU with the batched encoder.

    Source: the published sweeps (seed 000: a prefill of 500 tokens adds 20 ms, a step is 5 ms) through the step model
    of `simulation.step_model`, whose operating points for 0 to 100 % video and for 10 and 200 output tokens are all
    met within 6 % by these costs.
    """

    request: float = 5e-3
    prompt_token: float = 40e-6
    generated_token: float = 0.18e-3
    media_item: float = 30e-3
    media_unit: float = 4e-3 / 3
    """Per video frame, or per 70 embeddings of an image."""


@dataclass(frozen=True, slots=True)
class Point:
    """The highest load per engine at which the SLO holds, measured with open-loop arrivals."""

    media_share: float
    """Media items per request, 0 to 1."""
    burstiness: float
    """Coefficient of variation of the gaps between requests; 1 is Poisson."""
    load: float
    """Engine-seconds per second."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What one request is taken for where its engine doesn't say."""

    prompt_tokens: float = 500.0
    generated_tokens: float = 200.0
    media_items: float = 0.1
    units_per_item: float = 6.0


DEFAULT_POINTS = (
    Point(0.0, 1.0, 1.0), Point(0.1, 1.0, 0.96), Point(0.3, 1.0, 0.96), Point(1.0, 1.0, 1.0),
    Point(0.0, 2.0, 0.69), Point(0.1, 2.0, 0.58), Point(0.3, 2.0, 0.48), Point(1.0, 2.0, 0.18),
)  # fmt: skip
"""One engine alone, answers of 10 tokens (the worst case), gamma arrivals, TTFT 300 ms at p95: from the step model."""


SATURATED_SHARE = 0.85
"""Operating point over what a saturated engine answers: 1.0 over 1.2 in the step model."""


@dataclass(frozen=True)
class Profile:
    """Costs and operating points of one engine version, model and GPU."""

    costs: Costs = Costs()
    points: tuple[Point, ...] = DEFAULT_POINTS
    assumed: Assumed = Assumed()
    burstiness: float = 1.0
    """What the pool's clients are like within seconds; bursts that last longer are learnt by the autoscaler."""
    batch_load: float = 1.1
    """Load per engine of a pool without TTFT objective."""
    name: str = "built-in"
    """Where it comes from, for people."""
    stale: bool = False
    """Not measured with the engine version, model and GPU that the pool has: less of it is trusted."""
    doubt: str = ""
    """Why it is stale, for people."""
    unreadable: bool = False
    """It stands in for one that was asked for and can't be read."""

    @cached_property
    def saturated(self) -> float:
        """Load that an engine answers at most, whatever waits."""
        return max(point.load for point in self.points) / SATURATED_SHARE

    def capacity(self, media_share: float, engines: float = 1.0) -> float:
        """Load that each of so many engines carries within the SLO.

        What one engine needs free beside its load, to take in what comes at random, n engines need only for each root
        of n: the rule of square-root staffing (Halfin and Whitt). Four engines of the step model carry 1.01 to 1.10 each
        where one carries 0.88 to 1.06, and 0.76 to 1.0 where it carries 0.32 to 0.73 (gamma arrivals of CV 2).
        """
        reserve = self.saturated - self.operating_point(media_share)
        return self.saturated - reserve / math.sqrt(max(engines, 1.0))

    def engines(self, load: float, media_share: float) -> float:
        """Engines for a load, before rounding: the inverse of `capacity` times engines."""
        alone = self.operating_point(media_share)
        if load <= alone:
            return load / alone
        reserve = self.saturated - alone
        root = (reserve + math.sqrt(reserve * reserve + 4 * self.saturated * load)) / (2 * self.saturated)
        return root * root

    def work(self, rates: Rates) -> float:
        """Engine-seconds per second that these rates ask for."""
        costs, assumed, requests = self.costs, self.assumed, rates.requests
        prompt = requests * assumed.prompt_tokens if rates.prompt_tokens is None else rates.prompt_tokens
        generated = requests * assumed.generated_tokens if rates.generated_tokens is None else rates.generated_tokens
        items = requests * assumed.media_items if rates.media_items is None else rates.media_items
        units = items * assumed.units_per_item if rates.media_units is None else rates.media_units
        return (
            requests * costs.request
            + prompt * costs.prompt_token
            + generated * costs.generated_token
            + items * costs.media_item
            + units * costs.media_unit
        )

    def media_share(self, rates: Rates) -> float:
        """Media items per request, at most 1."""
        if rates.media_items is None or rates.requests <= 0:
            return min(1.0, self.assumed.media_items)
        return min(1.0, rates.media_items / rates.requests)

    def operating_point(self, media_share: float) -> float:
        """Load per engine at which the SLO still holds: linear between the points, never beyond them."""
        rows = self._rows
        low, high, share = _between(tuple(rows), self.burstiness)
        at_low = _load(rows[low], media_share)
        return at_low + (_load(rows[high], media_share) - at_low) * share if share else at_low

    @cached_property
    def _rows(self) -> dict[float, dict[float, float]]:
        """Burstiness -> media share -> load, both ascending."""
        rows: dict[float, dict[float, float]] = {}
        for point in sorted(self.points, key=lambda point: (point.burstiness, point.media_share)):
            rows.setdefault(point.burstiness, {})[point.media_share] = point.load
        return rows


def _load(row: dict[float, float], media_share: float) -> float:
    low, high, share = _between(tuple(row), media_share)
    return row[low] + (row[high] - row[low]) * share


def _between(grid: tuple[float, ...], value: float) -> tuple[float, float, float]:
    """The neighbours of `value` in an ascending grid, and how far it is from the lower to the upper one (0 to 1)."""
    above = bisect_right(grid, value)
    if above == 0:
        return grid[0], grid[0], 0.0
    if above == len(grid):
        return grid[-1], grid[-1], 0.0
    low, high = grid[above - 1], grid[above]
    return low, high, (value - low) / (high - low)


DEFAULT_PROFILE = Profile()
