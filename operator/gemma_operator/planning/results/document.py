"""A result file of which nothing can be taken for granted: paths may be absent, null, NaN or of another type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma_operator.planning.errors import ResultError


@dataclass(frozen=True, slots=True)
class Document:
    """Any part of a result file."""

    value: Any
    path: Path

    def get(self, dotted: str) -> Document:
        """The part at a dotted path; an empty one where it isn't there."""
        value = self.value
        for name in dotted.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return Document(value, self.path)

    def has(self, name: str) -> bool:
        """Whether it is a map with that name in it."""
        return isinstance(self.value, dict) and name in self.value

    def number(self, dotted: str = "") -> float | None:
        """The finite number there; None where there is none."""
        value = self.get(dotted).value if dotted else self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e15 or math.isnan(value):
            return None
        return float(value)

    def amount(self, dotted: str) -> float | None:
        """The number there if it is 0 or more; raises ResultError where it is negative."""
        found = self.number(dotted)
        if found is not None and found < 0:
            raise ResultError(f"{self.path.name}: {dotted} is {found:g}, which can't be")
        return found

    def share(self, dotted: str) -> float | None:
        """The number there if it is from 0 to 1; raises ResultError where it isn't."""
        found = self.amount(dotted)
        if found is not None and found > 1:
            raise ResultError(f"{self.path.name}: {dotted} is {found:g}, and a share is at most 1")
        return found

    def count(self, dotted: str) -> int:
        """The whole number there, 0 where there is none."""
        return round(self.amount(dotted) or 0)

    def text(self, dotted: str) -> str | None:
        """The text there; None where there is none."""
        found = self.get(dotted).value
        return found if isinstance(found, str) and found else None

    def items(self, dotted: str = "") -> Iterator[Document]:
        """The items of the list, or the values of the map, there."""
        found = self.get(dotted).value if dotted else self.value
        values = found if isinstance(found, list) else list(found.values()) if isinstance(found, dict) else []
        return (Document(value, self.path) for value in values)

    def percentiles(self, names: dict[str, float], scale: float = 1.0) -> dict[float, float]:
        """Those of the named percentiles that are there, each times `scale`."""
        known = ((share, self.amount(name)) for name, share in names.items())
        return {share: value * scale for share, value in known if value is not None}
