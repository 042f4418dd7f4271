"""A scene as a picture: p95 TTFT as clients saw it, and the engines, over one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tools.demo.plot import LIGHT
from tools.scenarios.recording import BIN_SECONDS, Recording, figures

COLOURS = ("#8a4bd0", "#0a6cc9")
HIGHEST_SECONDS = 30.0
"""Where a request that never got an answer is drawn."""


def draw(title: str, recordings: Sequence[Recording], file: Path) -> None:
    """Write the picture to `file`."""
    with mpl.rc_context({"font.size": 10.5, "axes.titlesize": 11, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(9.4, 3.2 + 2.2 * len(recordings)), dpi=110, facecolor="white", layout="constrained")
        latency, *engines = figure.subplots(1 + len(recordings), 1, sharex=True)
        figure.suptitle(title, x=0.01, ha="left", color=LIGHT.ink, fontsize=12.5, fontweight="bold")
        colours = COLOURS[-len(recordings) :]
        _latency(latency, recordings, colours)
        for axes, recording, colour in zip(engines, recordings, colours, strict=True):
            _engines(axes, recording, colour, len(recordings) > 1)
        for axes in (latency, *engines):
            _dress(axes, recordings[-1])
        engines[-1].set_xlabel("seconds since the load began", color=LIGHT.ink)
        figure.savefig(file, format="png", facecolor="white")


def _latency(axes: Axes, recordings: Sequence[Recording], colours: Sequence[str]) -> None:
    slo = recordings[-1].slo * 1000
    axes.set_title("p95 time to first token (ms, log scale, 5 s each)", loc="left", color=LIGHT.ink)
    axes.set_yscale("log")
    axes.axhline(slo, color=LIGHT.slo, linewidth=1.6, linestyle=(0, (5, 2)))
    axes.annotate(f"SLO {slo:.0f} ms", (0, slo), xytext=(4, 4), textcoords="offset points", color=LIGHT.slo)
    for recording, colour in zip(recordings, colours, strict=True):
        bins = [one for one in recording.bins if one.sent]
        values = [min(one.p95 or HIGHEST_SECONDS, HIGHEST_SECONDS) * 1000 for one in bins]
        last = figures(recording, recording.parts[-1][0])
        label = f"{recording.name}: {last['attainment']:.1%} in time" if len(recordings) > 1 else "clients"
        axes.plot([one.at + BIN_SECONDS / 2 for one in bins], values, color=colour, linewidth=1.8, label=label)
    low, high = axes.get_ylim()
    axes.set_ylim(low * 0.6, high * 1.5)
    for pick in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        pick(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "125" else ""))
    axes.legend(loc="upper right", frameon=False, labelcolor=LIGHT.ink)


def _engines(axes: Axes, recording: Recording, colour: str, is_named: bool) -> None:
    axes.set_title(
        f"Engines for interactive requests{f', {recording.name}' if is_named else ''}", loc="left", color=LIGHT.ink
    )
    times = [one.at for one in recording.samples]
    own = [one.ready.get("interactive", 0) for one in recording.samples]
    total = [mine + one.borrowed for mine, one in zip(own, recording.samples, strict=True)]
    desired = [one.desired.get("interactive", 0) for one in recording.samples]
    axes.fill_between(times, own, step="post", color=colour, alpha=0.35, linewidth=0, label="its own, Ready")
    if total != own:
        axes.fill_between(
            times, own, total, step="post", color=LIGHT.replicas, alpha=0.45, linewidth=0, label="lent by batch"
        )
    axes.step(times, desired, where="post", color=LIGHT.ink, linewidth=1.4, linestyle=(0, (2, 1.5)), label="asked for")
    axes.set_ylim(0, max([2, *total, *desired]) + 0.9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", frameon=False, labelcolor=LIGHT.ink, ncols=3)


def _dress(axes: Axes, recording: Recording) -> None:
    axes.tick_params(which="both", colors=LIGHT.ink, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT.faint)
    axes.grid(axis="y", color=LIGHT.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    low, high = axes.get_ylim()
    for name, _, start, end in recording.parts:
        if start > 1:
            axes.axvline(start, color=LIGHT.faint, linewidth=1.2)
        if axes.get_yscale() == "log":
            axes.text((start + end) / 2, low * 1.08, name, ha="center", va="bottom", color=LIGHT.ink, fontsize=9.5)
    axes.set_ylim(low, high)
    axes.set_xlim(0, recording.parts[-1][3])
