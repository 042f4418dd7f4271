"""What every metrics source offers."""

from typing import Protocol

from gemma_operator.scaling import Reading


class MetricsSource(Protocol):
    """Reads the newest counters of all pools' engines. Blocking; never raises: what fails becomes a `Missing`."""

    def read(self, now: float) -> Reading:
        """The newest sample of each engine; `now` is the operator's clock in epoch seconds."""
        ...
