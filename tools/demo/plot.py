"""The picture of a run: offered load, p95 TTFT against the SLO, replicas; over one time axis."""

import io
import math
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tools.demo.load import percentile
from tools.demo.recording import Recording, within

BIN_SECONDS = 5.0
P95_SECONDS = 15.0
DOTS_PER_INCH = 144


@dataclass(frozen=True)
class Theme:
    page: str
    ink: str
    faint: str
    load: str
    client: str
    prometheus: str
    slo: str
    replicas: str


LIGHT = Theme("#ffffff", "#1f2328", "#d8dce1", "#57606a", "#0a6cc9", "#8a4bd0", "#c62f2f", "#1a7f4b")
DARK = Theme("#15191f", "#e3e7ec", "#363d47", "#a0aab6", "#5cb0ff", "#c299ff", "#ff7b72", "#4cc38a")


def png(recording: Recording, theme: Theme, *, narrow: bool = False) -> bytes:
    """`narrow` is for a phone: the same panels, with larger letters for the width."""
    size, letters = ((4.6, 7.6), 9.5) if narrow else ((9.4, 7.4), 10.5)
    with mpl.rc_context({"font.size": letters, "axes.titlesize": letters + 1, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=size, dpi=DOTS_PER_INCH, facecolor=theme.page, layout="constrained")
        load, latency, replicas = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [2, 3, 2]})
        for axes in (load, latency, replicas):
            _dress(axes, theme, recording)
        _draw_load(load, theme, recording)
        _draw_latency(latency, theme, recording)
        _draw_replicas(replicas, theme, recording)
        replicas.set_xlabel("seconds since the load began", color=theme.ink)
        file = io.BytesIO()
        figure.savefig(file, format="png", facecolor=theme.page)
    return file.getvalue()


def _dress(axes: Axes, theme: Theme, recording: Recording) -> None:
    axes.set_facecolor(theme.page)
    axes.tick_params(colors=theme.ink, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(theme.faint)
    axes.grid(axis="y", color=theme.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    for phase in recording.phases[1:]:
        axes.axvline(phase.start, color=theme.faint, linewidth=1.2)
    if recording.phases:
        axes.set_xlim(0, recording.phases[-1].end)


def _draw_load(axes: Axes, theme: Theme, recording: Recording) -> None:
    axes.set_title("Load (requests per second)", loc="left", color=theme.ink)
    edges = [phase.start for phase in recording.phases] + [phase.end for phase in recording.phases[-1:]]
    rates = [phase.rate for phase in recording.phases]
    axes.stairs(rates, edges, baseline=None, color=theme.ink, linewidth=1.6, label="offered (mean)")
    times, served = _binned_throughput(recording)
    top = max([1, *rates, *served]) * 1.35
    axes.plot(times, served, color=theme.load, linewidth=1.2, alpha=0.8, label=f"answered ({BIN_SECONDS:.0f} s mean)")
    axes.set_ylim(0, top)
    for phase in recording.phases:
        axes.text((phase.start + phase.end) / 2, top * 0.97, phase.name, ha="center", va="top", color=theme.ink)
    _legend(axes, theme, "lower right")


def _draw_latency(axes: Axes, theme: Theme, recording: Recording) -> None:
    axes.set_title(f"p95 time to first token (ms, log scale, last {P95_SECONDS:g} s)", loc="left", color=theme.ink)
    slo = recording.slo * 1000
    axes.set_yscale("log")
    axes.axhline(slo, color=theme.slo, linewidth=1.8, linestyle=(0, (5, 2)))
    label = axes.annotate(f"SLO {slo:.0f} ms", (0, slo), xytext=(4, 4), textcoords="offset points", color=theme.slo)
    label.set_fontweight("bold")
    times, values = _binned_p95(recording)
    axes.plot(times, values, color=theme.client, linewidth=1.8, label="client")
    seen = [(s.at, s.p95 * 1000) for s in recording.samples if s.p95 is not None]
    if seen:
        axes.plot(*zip(*seen, strict=True), color=theme.prometheus, linewidth=1.8, label="Prometheus")
    figures = [value for value in values if math.isfinite(value)] + [value for _, value in seen]
    axes.set_ylim(min([50, *figures]) * 0.8, max([slo * 3, *figures]) * 1.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if str(value)[0] in "35" else ""))
    axes.tick_params(which="minor", colors=theme.ink, length=0)
    _legend(axes, theme, "upper right")


def _draw_replicas(axes: Axes, theme: Theme, recording: Recording) -> None:
    axes.set_title("Interactive engines", loc="left", color=theme.ink)
    known = [s for s in recording.samples if s.desired is not None and s.ready is not None]
    times = [s.at for s in known]
    ready = [s.ready or 0 for s in known]
    desired = [s.desired or 0 for s in known]
    axes.fill_between(times, ready, step="post", color=theme.replicas, alpha=0.25, linewidth=0)
    axes.step(times, ready, where="post", color=theme.replicas, linewidth=1.8, label="Ready")
    axes.step(times, desired, where="post", color=theme.ink, linewidth=1.4, linestyle=(0, (2, 1.5)), label="desired")
    axes.set_ylim(0, max([2, *ready, *desired]) + 0.7)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, theme, "upper left")


def _legend(axes: Axes, theme: Theme, place: Literal["lower right", "upper right", "upper left"]) -> None:
    axes.legend(loc=place, frameon=False, labelcolor=theme.ink, ncols=2, borderaxespad=0.2, handlelength=1.6)


def _binned_throughput(recording: Recording) -> tuple[list[float], list[float]]:
    end = recording.phases[-1].end if recording.phases else 0.0
    starts = [BIN_SECONDS * n for n in range(int(end / BIN_SECONDS))]
    done = [o.at + o.seconds for o in recording.interactive if o.ok]
    counts = [sum(start <= at < start + BIN_SECONDS for at in done) for start in starts]
    return [start + BIN_SECONDS / 2 for start in starts], [count / BIN_SECONDS for count in counts]


def _binned_p95(recording: Recording) -> tuple[list[float], list[float]]:
    """p95 in milliseconds of the last `P95_SECONDS`, at the end of each bin; failed requests can make it infinite."""
    end = recording.phases[-1].end if recording.phases else 0.0
    times = [BIN_SECONDS * n for n in range(1, int(end / BIN_SECONDS) + 1)]
    values = [percentile(within(recording.interactive, at - P95_SECONDS, at), 95) for at in times]
    known = [(at, value * 1000) for at, value in zip(times, values, strict=True) if value is not None]
    return [at for at, _ in known], [value for _, value in known]
