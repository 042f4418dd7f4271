"""Which alerts fire in a Prometheus, and how long after a state began they did."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.kube import eventually
from tools.monitoring.promql import Clock


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

    def wait(self, url: str, states: Mapping[str, tuple[str, str]], since: float) -> None:
        """Await the alert of each state, all of which began at `since` (monotonic seconds); each is readable and names its pool."""
        left = dict(states)

        def fired() -> bool:
            told = firing(url)
            for state, (alert, pool) in [*left.items()]:
                if found := told.get((alert, pool)):
                    self.rows.append((state, alert, time.monotonic() - since))
                    del left[state]
                    text = found["annotations"]["summary"] + found["annotations"]["description"]
                    assert pool in text
                    assert "{{" not in text
            return not left

        try:
            eventually("the alerts", fired, self.patience)
        except AssertionError as error:
            raise AssertionError(f"not fired within {self.patience:g} s: {left}") from error

    def show(self, config: pytest.Config, clock: Clock) -> None:
        """Print it past pytest's capture, with what the durations were cut to."""
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            cut = f"durations 1/{clock.scale:g}, at most {clock.most:g} s"
            print(f"\nstate -> alert fired after ({cut})\n{self.text()}")

    def text(self) -> str:
        """For a terminal."""
        return "\n".join(f"{state:<52} {alert:<26} {after:6.1f} s" for state, alert, after in self.rows)

    def markdown(self) -> str:
        """For docs/data."""
        rows = (f"| {state} | {alert} | {after:.0f} |" for state, alert, after in self.rows)
        return "\n".join(("| state | alert | fired after, s |", "|---|---|---|", *rows)) + "\n"
