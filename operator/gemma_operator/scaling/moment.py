"""One tick of a pool's history. A pool keeps 80 of them, a thousand servings keep 160,000: so each is one row of numbers."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, cast

from gemma_operator.scaling.counters import Buckets
from gemma_operator.scaling.verdict import NOTHING, Evidence, add

if TYPE_CHECKING:
    _Row = array[float]
else:
    _Row = array

_NEEDED, _TTFT, _ITL, _COUNTS = 5, 12, 15, 18


def _column(number: int) -> Any:
    return property(itemgetter(number))


class Moment(_Row):
    """One tick in which new samples came."""

    __slots__ = ("edges",)
    edges: tuple[float, ...]
    """Of the TTFT histogram: one object for all that have the same."""

    at: float = _column(0)
    seconds: float = _column(1)
    demand: float = _column(2)
    """Engine-seconds per second that clients asked for."""
    work: float = _column(3)
    """Engine-seconds per second that the engines answered."""
    level: float = _column(4)
    """Mean demand up to then."""
    needed: float = _column(_NEEDED)
    """Engines needed for it, headroom included, before rounding; an integer would be no proof for one engine less."""
    requests: float = _column(6)
    """Answered per second."""
    each: float = _column(7)
    """Engine-seconds of one request, by what came lately."""
    media_share: float = _column(8)
    engines: float = _column(9)
    saturated: float = _column(10)
    """1 where requests wait: the engines answer all that they can. Refusals don't show that: limits cut queues short."""
    load: float = _column(11)
    """Demand per engine."""
    samples: float = _column(_TTFT)
    """Requests that the SLO for TTFT can be judged by."""
    misses: float = _column(_TTFT + 1)
    """Requests that missed the SLO for TTFT for certain."""

    def __new__(cls, numbers: Iterable[float], edges: tuple[float, ...]) -> Self:
        """The columns, then the counts under each edge."""
        self = cast(Self, super().__new__(cls, "d", numbers))
        self.edges = _shared(edges)
        return self

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return type(self), (self.tolist(), self.edges)

    @classmethod
    def of(
        cls,
        *,
        at: float,
        seconds: float,
        each: float,
        demand: float = 0.0,
        work: float = 0.0,
        level: float = 0.0,
        needed: float = 0.0,
        requests: float = 0.0,
        media_share: float = 0.0,
        engines: int = 0,
        saturated: bool = False,
        ttft: Evidence = NOTHING,
        itl: Evidence = NOTHING,
        buckets: Buckets = (),
    ) -> Self:
        """A tick with its evidence for both SLOs, and the TTFT of what was answered."""
        numbers = (
            at, seconds, demand, work, level, needed, requests, each, media_share, engines, saturated, demand / max(engines, 1),
            ttft.samples, ttft.misses_low, ttft.misses_high, itl.samples, itl.misses_low, itl.misses_high,
        )  # fmt: skip
        return cls((*numbers, *[count for _, count in buckets]), tuple([edge for edge, _ in buckets]))

    def set_needed(self, engines: float) -> None:
        """What the work that waits says, in place of the demand."""
        self[_NEEDED] = engines

    @property
    def served(self) -> float:
        """Work answered per engine."""
        return self.work / max(self.engines, 1)


Moments = tuple[Moment, ...]
"""A history, ascending in time."""

_at = itemgetter(0)


@lru_cache(256)
def _shared(edges: tuple[float, ...]) -> tuple[float, ...]:
    return edges


def within(moments: Moments, since: float) -> Moments:
    """The moments after `since`."""
    return moments[bisect_right(moments, since, key=_at) :]


def gathered(moments: Moments, itl: bool = False) -> Evidence:
    """The evidence of some moments together."""
    first = _ITL if itl else _TTFT
    samples = low = high = 0.0
    for one in moments:
        samples, low, high = samples + one[first], low + one[first + 1], high + one[first + 2]
    return Evidence(samples, low, high)


def ttft(moments: Moments) -> Buckets:
    """The TTFT of what was answered in some moments together, over the edges that all have; empty for none."""
    listed = [one for one in moments if one.edges]
    if not listed:
        return ()
    edges = listed[0].edges
    if all(one.edges is edges for one in listed):
        return tuple(zip(edges, map(sum, zip(*[one[_COUNTS:] for one in listed], strict=True)), strict=True))
    return add(tuple(zip(one.edges, one[_COUNTS:], strict=True)) for one in listed)
