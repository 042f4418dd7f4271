"""What every metrics source offers, and which one an installation has."""

from collections.abc import Mapping
from typing import Protocol

from gemma_operator.metrics.queries import Queries
from gemma_operator.scaling.counters import Reading


class MetricsSource(Protocol):
    """Reads the newest counters of all engines. Blocking; never raises: what fails becomes a `Missing`."""

    def read(self, now: float, engines: Mapping[str, str], queries: Queries, itl: bool = True) -> Reading:
        """The newest sample of each engine of the cluster.

        `now` is the operator's clock in epoch seconds, `engines` are the addresses of the metrics by Pod UID,
        `queries` are what users want to be asked beside them, `itl` says whether anybody judges the inter-token latency: its
        buckets are four of ten series.
        """
        ...
