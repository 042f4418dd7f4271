"""A plan, or what would happen, as a picture, or as a page with the picture in it."""

from __future__ import annotations

import html
import io
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gemma_operator.planning.load import STEP
from gemma_operator.planning.plan import HOUR, Plan
from gemma_operator.planning.what_if import Answer


def save(plan: Plan, text: str, path: Path) -> None:
    """Write `.png`, `.svg`, or `.html`, which has the tables (`text`) too. Raises OSError."""
    save_figure(_figure(plan), "Capacity plan", text, path)


def save_answer(answer: Answer, text: str, path: Path) -> None:
    """The same for what would happen."""
    save_figure(_answer(answer), "What would happen", text, path)


def save_figure(figure: Figure, title: str, text: str, path: Path) -> None:
    """A figure as a picture, or in a page above its text. Raises OSError."""
    if path.suffix != ".html":
        figure.savefig(path)
        return
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    body = f"{svg[svg.index('<svg') :]}\n<pre>{html.escape(text)}</pre>"
    page = f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{title}</title>\n<body>{body}</body></html>\n"
    path.write_text(page, encoding="utf-8")


def _figure(plan: Plan) -> Figure:
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    rates, engines = figure.subplots(2, 1, sharex=True)
    hours = np.arange(len(plan.rates)) * STEP / HOUR
    rates.plot(hours, plan.rates, linewidth=0.8)
    rates.set_ylabel("requests/s")
    engines.step(hours, plan.interactive, where="post", label="up")
    engines.step(hours, plan.needed, where="post", linewidth=0.8, label="needed")
    if plan.batch:
        engines.axhline(plan.batch, linestyle="--", color="grey", label="batch pool")
    engines.set_ylabel("engines")
    engines.set_xlabel("hours")
    engines.set_ylim(bottom=0)
    engines.legend(loc="upper left")
    return figure


def _answer(answer: Answer) -> Figure:
    """Load, misses and engines over the hours; what fails is grey."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    rates, misses, engines = figure.subplots(3, 1, sharex=True)
    counts, missed = np.array(answer.minutes, dtype=np.float64).T
    minutes = np.arange(len(counts)) * 60 / HOUR
    rates.plot(minutes, counts / 60, linewidth=0.8)
    rates.set_ylabel("requests/s")
    shares = np.divide(100 * missed, counts, out=np.zeros(len(counts)), where=counts > 0)
    misses.fill_between(minutes, shares, step="post", color="#c62f2f")
    misses.set_ylabel("% over the target")
    misses.set_ylim(bottom=0)
    hours = np.array([tick.at for tick in answer.ticks]) / HOUR
    engines.step(hours, [tick.asked for tick in answer.ticks], where="post", linewidth=0.8, label="asked for")
    engines.step(hours, [tick.ready for tick in answer.ticks], where="post", label="Ready")
    engines.set_ylabel("engines")
    engines.set_xlabel("hours since the start")
    engines.set_ylim(bottom=0)
    engines.legend(loc="upper left")
    for fault in answer.faults:
        for axes in (rates, misses, engines):
            axes.axvspan(fault.start / HOUR, fault.end / HOUR, color="#d8dce1", zorder=0)
        rates.annotate(fault.kind.value, (fault.start / HOUR, 1), xycoords=("data", "axes fraction"), va="top")
    return figure
