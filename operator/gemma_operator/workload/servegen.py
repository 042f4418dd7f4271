"""ServeGen clients (Alibaba, Apache-2.0): per client, rates and gaps per 600 s window, and distributions of lengths.

A folder holds `chunk-<n>-trace.csv` (`t,rate,cv,family,a,b` without header) and `chunk-<n>-dataset.json`
(per start second: `{"text_tokens": "{tokens: probability}", "image_count": …, "output_tokens": …}`).
"""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemma_operator.workload.arrivals import FRAMES_PER_IMAGE, MAX_FRAMES, Arrivals, WorkloadError, merged

WINDOW = 600.0
FAMILIES = {"Gamma", "Weibull", "Exponential"}


def read_servegen(folder: Path, seed: int = 0) -> Arrivals:
    """Requests of all clients over the recorded time, drawn at random.

    Each window has exactly as many arrivals as recorded; their gaps have the recorded family and shape.

    Raises:
        WorkloadError: no client, or a file that isn't as documented.
    """
    traces = sorted(folder.glob("chunk-*-trace.csv"))
    if not traces:
        raise WorkloadError(f"{folder} holds no chunk-*-trace.csv: give a folder of ServeGen clients")
    return merged([_client(trace, np.random.default_rng((seed, number))) for number, trace in enumerate(traces)])


def _client(trace: Path, rng: np.random.Generator) -> Arrivals:
    dataset = trace.with_name(trace.name.replace("-trace.csv", "-dataset.json"))
    lengths = _lengths(dataset)
    parts = []
    with trace.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            try:
                start, rate, _, family, shape = float(row[0]), float(row[1]), row[2], row[3], float(row[4])
                if rate < 0 or start < 0 or not np.isfinite(rate) or (rate and (shape <= 0 or family not in FAMILIES)):
                    raise ValueError
            except (ValueError, IndexError):
                shown = ",".join(row)[:60]
                raise WorkloadError(
                    f"{trace.name} line {number}: {shown!r} is not t,rate,cv,Gamma|Weibull|Exponential,shape,scale"
                ) from None
            if count := round(rate * WINDOW):
                parts.append(_requests(start + _times(count, family, shape, rng), lengths, start, rng))
    return merged(parts)


def _times(count: int, family: str, shape: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` times within a window, with gaps of the family; the window's ends are no arrivals."""
    if family == "Gamma":
        gaps = rng.gamma(shape, size=count + 1)
    elif family == "Weibull":
        gaps = rng.weibull(shape, size=count + 1)
    else:
        gaps = rng.exponential(size=count + 1)
    total = gaps.sum()
    return np.cumsum(gaps)[:-1] / total * WINDOW if total > 0 else np.zeros(count)


def _requests(
    at: NDArray[np.float64], lengths: dict[float, dict[str, _Pdf]], start: float, rng: np.random.Generator
) -> Arrivals:
    begins = max((begin for begin in lengths if begin <= start), default=min(lengths))
    drawn = {name: pdf.draw(len(at), rng) for name, pdf in lengths[begins].items()}
    images = drawn["image_count"]
    frames = np.where(images > 1, np.minimum(images * FRAMES_PER_IMAGE, MAX_FRAMES), images)
    return Arrivals.of(at, drawn["text_tokens"], np.maximum(drawn["output_tokens"], 1), frames)


class _Pdf:
    """Values with their probabilities."""

    def __init__(self, text: str) -> None:
        table = ast.literal_eval(text)
        self.values = np.array(list(table), dtype=np.int64)
        weights = np.array(list(table.values()), dtype=np.float64)
        if not len(weights) or not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() <= 0:
            raise ValueError("no distribution")
        self.edges = np.cumsum(weights) / weights.sum()

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return self.values[
            np.minimum(np.searchsorted(self.edges, rng.random(count), side="right"), len(self.values) - 1)
        ]


def _lengths(dataset: Path) -> dict[float, dict[str, _Pdf]]:
    try:
        with dataset.open(encoding="utf-8") as file:
            found = json.load(file)
        return {
            float(start): {name: _Pdf(pdfs[name]) for name in ("text_tokens", "image_count", "output_tokens")}
            for start, pdfs in found.items()
        } or _no_lengths(dataset)
    except OSError as error:
        raise WorkloadError(f"{dataset.name} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError):
        return _no_lengths(dataset)


def _no_lengths(dataset: Path) -> dict[float, dict[str, _Pdf]]:
    raise WorkloadError(
        f'{dataset.name} is not {{"0": {{"text_tokens": "{{tokens: probability}}", "image_count": …, "output_tokens": …}}}}'
    )
