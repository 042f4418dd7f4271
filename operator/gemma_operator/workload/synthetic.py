"""Workloads made from a rate: constant, Poisson, bursty, and rates that change over time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gemma_operator.workload.arrivals import Arrivals, WorkloadError

Rate = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Requests per second at given seconds."""


def arrivals_at(rate: Rate, seconds: float, *, cv: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Times (seconds) of arrivals whose rate changes over time.

    Gaps are gamma distributed with the coefficient of variation `cv` (1 is Poisson, 0 is evenly spaced), drawn in units
    of expected arrivals and mapped to time by the inverse of the integrated rate.
    """
    if not 0 < seconds < np.inf:
        raise WorkloadError(f"a workload of {seconds:g} seconds is none: give a length above 0")
    if not 0 <= cv <= 20:
        raise WorkloadError(f"a CV of {cv:g} is out of range: give 0 (even) to 20; 1 is Poisson")
    grid = np.linspace(0.0, seconds, max(2, int(np.ceil(seconds)) * 4 + 1))
    rates = rate(grid)
    if not np.isfinite(rates).all() or rates.min() < 0:
        raise WorkloadError("rates must be numbers of 0 or more")
    expected = np.concatenate(([0.0], np.cumsum(np.diff(grid) * (rates[1:] + rates[:-1]) / 2)))
    marks = _marks(expected[-1], cv, seed)
    return np.interp(marks, expected, grid)


def constant(rate: float) -> Rate:
    """The same rate all the time."""
    return lambda at: np.full_like(at, rate)


def step(rate: float, to: float, at: float) -> Rate:
    """From `rate` to `to` at second `at`."""
    return lambda now: np.where(now < at, rate, to)


def ramp(rate: float, to: float, start: float, end: float) -> Rate:
    """Evenly from `rate` at `start` to `to` at `end` (seconds)."""
    return lambda now: np.interp(now, (start, max(end, start + 1e-9)), (rate, to))


def sine(low: float, high: float, period: float = 86_400.0) -> Rate:
    """A day: lowest at its start, highest in its middle."""
    return lambda now: low + (high - low) * (1 - np.cos(2 * np.pi * now / period)) / 2


def spike(rate: float, to: float, at: float, length: float = 30.0) -> Rate:
    """`to` for `length` seconds from `at`, else `rate`."""
    return lambda now: np.where((now >= at) & (now < at + length), to, rate)


def synthetic(
    rate: Rate, seconds: float, *, cv: float = 1.0, seed: int = 0, prompt_tokens: int = 500, output_tokens: int = 200
) -> Arrivals:
    """A text workload of one kind of request; add media with `with_media`."""
    return Arrivals.of(arrivals_at(rate, seconds, cv=cv, seed=seed), prompt_tokens, output_tokens)


def _marks(total: float, cv: float, seed: int) -> NDArray[np.float64]:
    """Arrivals of a renewal process of mean gap 1 up to `total`, from a random phase."""
    rng = np.random.default_rng((seed, 0))
    if cv == 0:
        return np.arange(0.5, total)
    shape = 1 / cv**2
    # A long run-up, so that the process starts anywhere within a gap, not always at the start of one.
    lead = 20 * cv**2
    drawn: list[NDArray[np.float64]] = []
    reached = -lead
    while reached < total:
        size = int((total - reached) * 1.1) + 100
        drawn.append(reached + np.cumsum(rng.gamma(shape, 1 / shape, size)))
        reached = float(drawn[-1][-1])
    marks = np.concatenate(drawn)
    return marks[(marks >= 0) & (marks < total)]
