"""The dashboard's panels as one picture, for who has a Prometheus and no Grafana."""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.monitoring.dashboard import content
from tools.monitoring.grafana import WIDTH

matplotlib.use("Agg")
INCH = 0.62
"""Of a dashboard's column; rows are half as high."""
MOST_LINES = 8
POINTS = 120
Lines = list[tuple[str, list[float], list[float]]]


def main() -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.monitoring.page", description=__doc__)
    parser.add_argument("url", help="of the Prometheus")
    parser.add_argument("file", help="the picture to write, such as dashboard.png")
    parser.add_argument("--seconds", type=int, default=3600, help="how far back it goes (3600)")
    arguments = parser.parse_args()
    if not arguments.url.startswith(("http://", "https://")):
        parser.error(f"{arguments.url} is no URL such as http://localhost:9090")
    try:
        picture(arguments.url, arguments.seconds).savefig(arguments.file, dpi=70)
    except (OSError, ValueError) as error:
        print(f"no picture of {arguments.url}: {error}", file=sys.stderr)
        return 1
    return 0


def picture(url: str, seconds: int, window: str = "1m") -> Figure:
    """All panels with the last `seconds` of a Prometheus; `window` stands for Grafana's rate interval."""
    panels = content()["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(WIDTH * INCH, rows * INCH / 2))
    values = {"namespace": ".*", "serving": ".*", "pool": ".*", "__rate_interval": window, "__range": f"{seconds}s"}
    for panel in panels:
        at = panel["gridPos"]
        left, top = at["x"] / WIDTH, 1 - at["y"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.005, top - at["h"] / rows, panel["title"], weight="bold", size=13)
            continue
        width, height = at["w"] / WIDTH, at["h"] / rows
        axes = figure.add_axes((left + 0.035, top - height + 0.2 / rows * 4, width - 0.045, height - 2.4 / rows))
        lines = [line for target in panel["targets"] for line in _range(url, target, values, seconds)]
        _draw(axes, panel, lines)
    return figure


def _draw(axes: Axes, panel: Mapping[str, Any], lines: Lines) -> None:
    axes.set_title(panel["title"], size=9, loc="left")
    axes.tick_params(labelsize=6)
    axes.xaxis.set_major_formatter(lambda at, _: datetime.fromtimestamp(at).strftime("%H:%M:%S"))
    if not lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="red")
        return
    for name, times, values in lines:
        axes.plot(times, values, label=name, linewidth=1)
    axes.locator_params(axis="x", nbins=4)
    axes.set_ylim(bottom=min(0.0, *(min(values) for _, _, values in lines)))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:MOST_LINES], labels[:MOST_LINES], fontsize=5, loc="upper left", framealpha=0.6)


def _range(url: str, target: Mapping[str, Any], variables: Mapping[str, str], seconds: int) -> Lines:
    query = target["expr"]
    for name, value in variables.items():
        query = query.replace(f"${name}", value)
    now = time.time()
    asked = {"query": query, "start": now - seconds, "end": now, "step": max(1.0, seconds / POINTS)}
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        found = json.load(answer)["data"]["result"]
    return [(_legend(target["legendFormat"], one["metric"]), *_points(one["values"])) for one in found]


def _legend(template: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        template = template.replace(f"{{{{{name}}}}}", value)
    return template


def _points(values: list[list[Any]]) -> tuple[list[float], list[float]]:
    return [float(at) for at, _ in values], [float(value) for _, value in values]


if __name__ == "__main__":
    sys.exit(main())
