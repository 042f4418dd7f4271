"""aiperf 0.13: a file per run, or one of a sweep. Each measure carries its unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

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

_NAMES = {"min": 0.0, "max": 1.0} | {f"p{percent}": percent / 100 for percent in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}
_RATES = ("request_rate", "rate")
_PROCESSES = {"constant": CONSTANT, "poisson": POISSON, "concurrency": CLOSED, "concurrency_burst": CLOSED}
_SWEPT = "per_combination_metrics"


def is_result(found: Document) -> bool:
    """Whether it is a run or a sweep of aiperf."""
    return found.has("aiperf_version") or found.has(_SWEPT)


def stages(found: Document, slo: Slo) -> list[Stage]:
    """The stage of a run, or those of a sweep. Raises ResultError."""
    if not found.has(_SWEPT):
        return [_run(found, slo)]
    combinations = list(found.items(_SWEPT))
    if not combinations:
        raise ResultError(f"{found.path.name} holds no combination: did the sweep run?")
    return [_combination(one, slo) for one in combinations]


def _run(found: Document, slo: Slo) -> Stage:
    phase = _phase(found)
    process = _process(phase)
    achieved = found.amount("request_throughput.avg") or 0.0
    answered = found.count("request_count.avg")
    failed = found.count("error_request_count.avg") or sum(item.count("count") for item in found.items("error_summary"))
    rate = next((value for name in _RATES if (value := phase.amount(name)) is not None), None)
    requests, within, ttft = answered + failed, 0.0, None
    if answered:
        achieved *= 1 + failed / answered
        measured = found.get("time_to_first_token")
        known = measured.percentiles(_NAMES, _scale(measured))
        if not known:
            raise ResultError(f"{found.path.name} has no TTFT: run the test with --streaming")
        ttft, within = _judged(known, slo, found, answered)
    flaws = ["it was cancelled"] if found.get("was_cancelled").value is True else []
    if found.get("is_complete").value is False:
        flaws.append(f"it is incomplete ({found.text('incomplete_reason') or 'no reason given'})")
    return Stage(
        requested=achieved if rate is None or process is CLOSED else rate,
        achieved=achieved,
        requests=requests,
        within=within,
        ttft=ttft,
        mix=_mix(found),
        process=process,
        failed=failed,
        flaws=tuple(flaws),
        model=_model(found),
        source=found.path.name,
    )


def _combination(found: Document, slo: Slo) -> Stage:
    """One point of a sweep: only means over its trials are known, so the share within the SLO is one of two bounds."""
    parameters, metrics = found.get("parameters").value, found.get("metrics")
    leaves = (
        {str(name).rpartition(".")[2]: value for name, value in parameters.items()}
        if isinstance(parameters, dict)
        else {}
    )
    swept = Document(leaves, found.path)
    rate = next((value for name in _RATES if (value := swept.amount(name)) is not None), None)
    achieved = _mean(metrics, "request_throughput_avg", "request_throughput") or 0.0
    percentile = f"time_to_first_token_p{slo.percentile:g}"
    measured = next(
        (
            part
            for name in (percentile, "time_to_first_token")
            if (part := metrics.get(name)).number("mean") is not None
        ),
        None,
    )
    if measured is None:
        raise ResultError(
            f"{found.path.name} has no {percentile}: run the test with --streaming, or give each run's own file"
        )
    ttft = (measured.amount("mean") or 0.0) * _scale(measured)
    requests = round(_mean(metrics, "request_count_avg", "request_count") or 1)
    failed = round(_mean(metrics, "error_request_count_avg", "error_request_count") or 0)
    lengths = (
        _mean(metrics, "input_sequence_length_avg", "input_sequence_length"),
        _mean(metrics, "output_sequence_length_avg", "output_sequence_length"),
    )
    share = slo.percentile / 100 if ttft <= slo.seconds else slo.percentile / 100 - 0.01
    achieved *= 1 + failed / requests if requests else 1
    return Stage(
        requested=achieved if rate is None else rate,
        achieved=achieved,
        requests=requests + failed,
        within=share * requests,
        ttft=ttft,
        mix=mix_of(*lengths, 0.0, 0.0, 0.0),
        process=CLOSED if rate is None else UNKNOWN,
        failed=failed,
        source=found.path.name,
    )


def _judged(known: dict[float, float], slo: Slo, found: Document, answered: int) -> tuple[float, float]:
    try:
        return at_percentile(known, slo), answered * share_within(known, slo)
    except ValueError as error:
        raise ResultError(f"{found.path.name}: {error}") from None


def _scale(measured: Document) -> float:
    """Seconds per unit of a measure; milliseconds where it has none."""
    unit = (measured.text("unit") or "ms").lower()
    if unit not in _UNITS:
        raise ResultError(
            f"{measured.path.name}: time_to_first_token has the unit {unit!r}, known are {', '.join(_UNITS)}"
        )
    return _UNITS[unit]


def _mean(metrics: Document, *names: str) -> float | None:
    return next((value for name in names if (value := metrics.amount(f"{name}.mean")) is not None), None)


def _phase(found: Document) -> Document:
    """The part of the configuration that says how load was made: the last phase, which is the one that is measured."""
    config = found.get("input_config")
    phases = list(config.items("phases")) or list(config.items("benchmark.phases"))
    if phases:
        return phases[-1]
    return config.get("loadgen")


def _process(phase: Document) -> Process:
    """By its type; gamma arrivals of smoothness k have a coefficient of variation of 1/sqrt(k)."""
    names = ("type", "arrival_pattern", "request_rate_mode")
    name = next((text for key in names if (text := phase.text(key))), "")
    if name == "gamma":
        smoothness = next((v for key in ("smoothness", "arrival_smoothness") if (v := phase.amount(key))), 1.0)
        return Process("gamma", 1 / math.sqrt(smoothness))
    if not name and phase.amount("concurrency"):
        return CLOSED
    return _PROCESSES.get(name, UNKNOWN)


def _mix(found: Document) -> Mix:
    """Media are told by the configuration alone, and only where they have a size."""
    videos = frames = images = 0.0
    for video in _named(found.get("input_config"), "video"):
        if _size(video) and (seconds := video.amount("duration")) and (fps := video.amount("fps")):
            videos, frames = video.amount("batch_size") or 1.0, min(32.0, seconds * fps)
    for image in _named(found.get("input_config"), "image"):
        if _size(image):
            images = image.amount("batch_size") or 1.0
    lengths = found.amount("input_sequence_length.avg"), found.amount("output_sequence_length.avg")
    return mix_of(*lengths, videos, frames, images)


def _size(media: Document) -> float:
    return media.amount("width.mean") or media.amount("width") or 0.0


def _named(config: Document, name: str, depth: int = 6) -> Iterator[Document]:
    """Every part of the configuration with that name, however deep it is."""
    if not depth:
        return
    for key, value in config.value.items() if isinstance(config.value, dict) else ():
        part = Document(value, config.path)
        if key in (name, f"{name}s"):
            yield part
        yield from _named(part, name, depth - 1)
    if isinstance(config.value, list):
        for part in config.items():
            yield from _named(part, name, depth - 1)


def _model(found: Document) -> str | None:
    for path in ("input_config.models.items", "input_config.endpoint.model_names"):
        for item in found.items(path):
            if text := item.text("name") or (item.value if isinstance(item.value, str) else None):
                return text
    return None
