"""Small pieces of PromQL that rules, alerts and panels share."""

from __future__ import annotations

import math
from dataclasses import dataclass

POOL = "namespace, serving, pool"
ENGINES = '{serving!=""}'
"""Only engines of ours: another vLLM in the same Prometheus has no such target label."""
TTFT = "vllm:time_to_first_token_seconds"
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Clock:
    """Durations, `scale` times as short as in production and none longer than `most` seconds: a test has no hours."""

    scale: float = 1.0
    most: float = math.inf

    def __call__(self, seconds: float) -> str:
        """A Prometheus duration, in its largest whole unit."""
        milliseconds = round(self._short(seconds) * 1000)
        for size, unit in UNITS:
            if milliseconds % (size * 1000) == 0:
                return f"{milliseconds // (size * 1000)}{unit}"
        return f"{milliseconds}ms"

    def seconds(self, seconds: float) -> str:
        """The same as a number, to compare a time with."""
        return f"{self._short(seconds):g}"

    def _short(self, seconds: float) -> float:
        return min(seconds / self.scale, self.most)


def name_of(seconds: int) -> str:
    """How a window is called in a rule's name, whatever the clock."""
    return Clock()(seconds)


def of_operator(name: str, matchers: str = "") -> str:
    """A pool's figure: two operators may tell it while one takes over from the other."""
    return f"max by ({POOL}) (gemma_operator_{name}{matchers})"


def term(name: str) -> str:
    """A term of a pool's last decision."""
    return of_operator("scaling_term", f'{{term="{name}"}}')
