"""Which alerts fire in a Prometheus, and how long after a state began they did."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.support.kube import eventually


def firing(url: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(alert, pool) -> the alert; the pool is empty where it is about the operator."""
    with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=5) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return {
        (alert["labels"]["alertname"], alert["labels"].get("pool", "")): alert
        for alert in alerts
        if alert["state"] == "firing"
    }


@dataclass
class Table:
    """State, alert, and the seconds in between."""

    patience: float
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def wait(self, url: str, state: str, alert: str, pool: str, since: float) -> None:
        """Await the alert of a state that began at `since` (monotonic seconds); it is readable and names the pool."""
        found = eventually(f"{alert} for {state}", lambda: firing(url).get((alert, pool)), self.patience)
        self.rows.append((state, alert, time.monotonic() - since))
        told = found["annotations"]["summary"] + found["annotations"]["description"]
        assert pool in told
        assert "{{" not in told

    def text(self) -> str:
        """For a terminal."""
        return "\n".join(f"{state:<52} {alert:<26} {after:6.1f} s" for state, alert, after in self.rows)

    def markdown(self) -> str:
        """For docs/data."""
        rows = (f"| {state} | {alert} | {after:.0f} |" for state, alert, after in self.rows)
        return "\n".join(("| state | alert | fired after, s |", "|---|---|---|", *rows)) + "\n"
