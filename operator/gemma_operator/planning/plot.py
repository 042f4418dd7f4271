"""A plan as a picture, or as a page with the picture in it."""

from __future__ import annotations

import html
import io
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gemma_operator.planning.load import STEP
from gemma_operator.planning.plan import HOUR, Plan


def save(plan: Plan, text: str, path: Path) -> None:
    """Write `.png`, `.svg`, or `.html`, which has the tables (`text`) too. Raises OSError."""
    if path.suffix != ".html":
        _figure(plan).savefig(path)
        return
    picture = io.StringIO()
    _figure(plan).savefig(picture, format="svg")
    svg = picture.getvalue()
    body = f"{svg[svg.index('<svg') :]}\n<pre>{html.escape(text)}</pre>"
    page = (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>Capacity plan</title>\n<body>{body}</body></html>\n"
    )
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
