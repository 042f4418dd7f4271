"""inference-perf: a folder with a file per stage; times are in seconds. The arrivals are in the config.yaml beside them."""

from __future__ import annotations

import yaml

from gemma_operator.planning.errors import ResultError
from gemma_operator.planning.results.document import Document
from gemma_operator.planning.stages import (
    CLOSED,
    CONSTANT,
    POISSON,
    UNKNOWN,
    Mix,
    Process,
    Stage,
    at_percentile,
    mix_of,
    share_within,
)
from gemma_operator.scaling.pool import Slo

_NAMES = {"min": 0.0, "median": 0.5, "max": 1.0} | {
    f"p{percent:g}": percent / 100 for percent in (0.1, 1, 5, 10, 25, 50, 75, 80, 90, 95, 97.5, 98, 99, 99.5, 99.9)
}
_PROCESSES = {"constant": CONSTANT, "poisson": POISSON, "concurrent": CLOSED}


def is_result(found: Document) -> bool:
    """Whether it is a stage of inference-perf."""
    return found.has("load_summary") and found.has("successes")


def stages(found: Document, slo: Slo) -> list[Stage]:
    """The stage of a file. Raises ResultError."""
    name = found.path.name
    load, good = found.get("load_summary"), found.get("successes")
    answered, failed = good.count("count"), found.count("failures.count")
    process = _process(found)
    achieved = load.amount("achieved_rate")
    requested = load.amount("requested_rate")
    if requested is None or process is CLOSED:
        requested = achieved = good.amount("throughput.requests_per_sec") or achieved
    if requested is None:
        raise ResultError(f"{name} has no load_summary.requested_rate")
    within, ttft = 0.0, None
    if answered:
        known = good.get("latency.time_to_first_token").percentiles(_NAMES)
        if not known:
            raise ResultError(f"{name} has no TTFT: run the test with streaming (api.streaming: true)")
        try:
            ttft, within = at_percentile(known, slo), answered * share_within(known, slo)
        except ValueError as error:
            raise ResultError(f"{name}: {error}; set report.request_lifecycle.percentiles") from None
    stage = Stage(
        requested=requested,
        achieved=requested if achieved is None else achieved,
        requests=answered + failed,
        within=within,
        ttft=ttft,
        mix=_mix(good),
        process=process,
        delay=load.amount("schedule_delay.p95") if (load.number("schedule_delay.p95") or 0) > 0 else None,
        failed=failed,
        source=f"{found.path.parent.name}/{name}",
    )
    return [stage]


def _mix(good: Document) -> Mix:
    def mean(*paths: str) -> float | None:
        return next((value for path in paths if (value := good.amount(f"{path}.mean")) is not None), None)

    return mix_of(
        mean("prompt_tokens", "prompt_len"),
        mean("output_tokens", "output_len"),
        mean("video.count") or 0.0,
        mean("video.frames") or 0.0,
        mean("image.count") or 0.0,
    )


def _process(found: Document) -> Process:
    try:
        text = (found.path.parent / "config.yaml").read_text(encoding="utf-8", errors="replace")
        config = Document(yaml.safe_load(text), found.path)
    except (OSError, yaml.YAMLError, RecursionError):
        return UNKNOWN
    return _PROCESSES.get(config.text("load.type") or "", UNKNOWN)
