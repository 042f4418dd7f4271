"""The comparison as one HTML page without anything to load: a table and a plot for each workload."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from gemma_operator.simulation.measures import Interval, Summary

WIDTH, HEIGHT, EDGE = 560, 300, 46
STYLE = "body{font:15px sans-serif;max-width:70em;margin:2em auto}td,th{padding:.2em .6em;text-align:right}td:first-child{text-align:left}"


def page(command: str, summaries: Sequence[Summary]) -> str:
    """The whole page."""
    workloads = list(dict.fromkeys(summary.workload for summary in summaries))
    parts = [_section(name, [one for one in summaries if one.workload == name]) for name in workloads]
    head = f"<!doctype html><meta charset=utf-8><title>Autoscalers compared</title><style>{STYLE}</style>"
    intro = (
        f"<h1>Autoscalers compared</h1><p>Made by <code>{html.escape(command)}</code>. Simulated; no GPU was used.</p>"
    )
    return head + intro + "".join(parts) + "\n"


def _section(name: str, summaries: Sequence[Summary]) -> str:
    titles = (
        "policy", "requests within the SLO", "worst seed", "GPU-hours", "over the bound", "bad minutes",
        "longest run", "reversals", "wasted starts", "points to the first", "GPU-hours to the first",
    )  # fmt: skip
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(one))}</tr>" for one in summaries)
    header = "".join(f"<th>{title}</th>" for title in titles)
    return f"<h2>{html.escape(name)}</h2>{_plot(summaries)}<table><tr>{header}</tr>{rows}</table>"


def _cells(one: Summary) -> list[str]:
    return [
        html.escape(one.policy),
        f"{one.attainment:.2%}",
        f"{one.worst:.2%}",
        f"{one.gpu_hours:.2f}",
        f"{one.ratio:.2f}",
        f"{one.bad_minutes:.1%}",
        f"{one.worst_minutes:.0f} min",
        f"{one.reversals:.1f}",
        f"{one.wasted_starts:.1f}",
        _shown(one.attainment_difference),
        _shown(one.gpu_difference),
    ]


def _shown(found: Interval) -> str:
    if math.isnan(found.mean):
        return "-"
    return f"{found.mean:+.2f}" + (f" ± {found.half:.2f}" if math.isfinite(found.half) else "")


def _plot(summaries: Sequence[Summary]) -> str:
    """GPU-hours to the right, misses upwards on a logarithmic scale: the lower left corner is best."""
    most = max(one.gpu_hours for one in summaries) * 1.05

    def place(one: Summary) -> tuple[float, float]:
        misses = min(1.0, max(1e-4, 1 - one.attainment))
        x = EDGE + one.gpu_hours / most * (WIDTH - 2 * EDGE)
        return x, HEIGHT - EDGE - (math.log10(misses) + 4) / 4 * (HEIGHT - 2 * EDGE)

    marks = []
    for number, one in enumerate(summaries):
        x, y = place(one)
        colour = "#c33" if not number else "#357"
        label = html.escape(one.policy)
        marks.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="{colour}"/>')
        marks.append(f'<text x="{x + 7:.0f}" y="{y + 4:.0f}" font-size="11">{label}</text>')
    lines = []
    for power in range(-4, 1):
        y = HEIGHT - EDGE - (power + 4) / 4 * (HEIGHT - 2 * EDGE)
        lines.append(f'<line x1="{EDGE}" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        lines.append(f'<text x="2" y="{y + 4:.0f}" font-size="11">{100 * 10.0**power:g} %</text>')
    caption = f'<text x="{EDGE}" y="{HEIGHT - 8}" font-size="12">GPU-hours (0 to {most:.1f}); misses upwards</text>'
    return f'<svg width="{WIDTH + 150}" height="{HEIGHT}">{"".join(lines + marks)}{caption}</svg>'
