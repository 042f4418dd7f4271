"""Floors by the clock, for load that people know of before it comes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

STEP_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Slot:
    """At least `minimum` replicas on some days of the week, from one time of the day to another."""

    days: frozenset[int]
    """Days on which it begins; Monday is 0."""
    start: int
    end: int
    """Minutes after midnight, `end` not included; an end at or before the start is on the next day."""
    minimum: int
    zone: str = "UTC"
    """Name in the time zone database."""

    def holds(self, at: float) -> bool:
        """True where the slot covers the time `at` (epoch seconds)."""
        local = datetime.fromtimestamp(at, ZoneInfo(self.zone))
        minute, today = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        yesterday = (local - timedelta(days=1)).weekday()
        return (today in self.days and minute >= self.start) or (yesterday in self.days and minute < self.end)


def scheduled_floor(slots: tuple[Slot, ...], now: float, ahead: float) -> int:
    """The most that a slot asks for between `now` and `ahead` seconds later: engines need that long to start."""
    times = [now + STEP_SECONDS * step for step in range(int(ahead // STEP_SECONDS) + 1)]
    return max((slot.minimum for slot in slots if any(slot.holds(at) for at in (*times, now + ahead))), default=0)
