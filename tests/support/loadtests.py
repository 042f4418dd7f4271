"""Load test results for the importers' tests: recorded ones, and made ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemma_operator.planning.operating import Found, curves, operating_point
from gemma_operator.planning.results import read_results
from gemma_operator.planning.stages import POISSON, Stage
from gemma_operator.scaling.pool import Slo

DATA = Path(__file__).parents[1] / "unit/data/loadtests"
GUIDELLM, INFERENCE_PERF = DATA / "guidellm", DATA / "inference-perf"
SLO = Slo(95, 0.3)


def found_in(*paths: Path, slo: Slo = SLO) -> list[Found]:
    points = [operating_point(curve, slo) for curve in curves(read_results(paths, slo))]
    return [point for point in points if point]


def only(*paths: Path, slo: Slo = SLO) -> Found:
    (point,) = found_in(*paths, slo=slo)
    return point


def stage(rate: float, ttft: float, requests: int = 2000, share: float | None = None, **more: Any) -> Stage:
    """A Poisson stage; by default 96 % hold where the percentile does, else 80 %."""
    share = share if share is not None else (0.96 if ttft <= 0.3 else 0.8)
    given: dict[str, Any] = {"achieved": rate, "process": POISSON, **more}
    return Stage(rate, given.pop("achieved"), requests, share * requests, ttft, **given)


def judge(*stages: Stage) -> Found:
    point = operating_point(stages, SLO)
    assert point is not None
    return point


# --- rule 1: the tool by its shape, a folder's stages by rate, units by what the tool says ---


def aiperf(rate: float, p95: float, unit: str = "ms", **more: Any) -> dict[str, Any]:
    """A run as aiperf 0.13 writes it (export models of ai-dynamo/aiperf)."""
    scale = {"ms": 1.0, "s": 1e-3}[unit]
    ttft = {name: p95 * part * scale for name, part in (("min", 0.5), ("p50", 0.7), ("p90", 0.9), ("p95", 1.0))}
    return {
        "schema_version": "1.0",
        "aiperf_version": "0.13.0",
        "request_throughput": {"unit": "requests/sec", "avg": rate},
        "request_count": {"unit": "requests", "avg": 2000.0},
        "time_to_first_token": {"unit": unit, **ttft, "p99": p95 * scale * 1.1, "max": p95 * scale * 1.2},
        "input_sequence_length": {"unit": "tokens", "avg": 512.0},
        "output_sequence_length": {"unit": "tokens", "avg": 100.0},
        "input_config": {
            "models": {"items": [{"name": "google/gemma-4-E4B-it"}]},
            "phases": [
                {"name": "warmup", "type": "concurrency"},
                {"name": "profiling", "type": "poisson", "rate": rate},
            ],
        },
        **more,
    }


def write(folder: Path, *documents: Any, name: str = "profile_export_aiperf.json") -> Path:
    for number, document in enumerate(documents):
        (folder / str(number)).mkdir(exist_ok=True)
        (folder / str(number) / name).write_text(json.dumps(document))
    return folder


def guidellm(name: Callable[[], str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GUIDELLM / f"{name()}.json").read_text())
    return found


def poisson() -> str:
    return "poisson_text_clean"


def without(document: dict[str, Any], path: str, value: Any = None) -> dict[str, Any]:
    """A copy with another value at a dotted path; digits are list indices."""
    made = copy.deepcopy(document)
    *parts, last = path.split(".")
    at: Any = made
    for part in parts:
        at = at[int(part) if part.isdigit() else part]
    at[last] = value
    return made


P95 = "benchmarks.0.metrics.time_to_first_token_ms.successful.percentiles"
