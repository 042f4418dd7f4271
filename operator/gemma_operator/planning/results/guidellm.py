"""guidellm 0.7 and 0.8: one file with a list of benchmarks; times of tokens are in milliseconds."""

from __future__ import annotations

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

_NAMES = {"p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
          "p95": 0.95, "p99": 0.99, "p999": 0.999}  # fmt: skip
_PROCESSES = {"constant": CONSTANT, "poisson": POISSON, "concurrent": CLOSED, "synchronous": CLOSED}
# All requests at once: no rate was offered.
_NO_RATE = "throughput"


def is_result(found: Document) -> bool:
    """Whether it is a file of guidellm."""
    return isinstance(found.get("benchmarks").value, list)


def stages(found: Document, slo: Slo) -> list[Stage]:
    """Its benchmarks that have a rate. Raises ResultError."""
    name = found.path.name
    if (version := found.number("metadata.version")) is not None and version < 2:
        raise ResultError(f"{name} is of a guidellm before 0.7: run the test with 0.7 or newer")
    benchmarks = [item for item in found.items("benchmarks") if item.text("type_") in (None, "generative_benchmark")]
    if not benchmarks:
        raise ResultError(f"{name} holds no benchmark")
    known = [_stage(benchmark, slo) for benchmark in benchmarks if _kind(benchmark) != _NO_RATE]
    if not known:
        raise ResultError(
            f"{name} holds only throughput benchmarks, which offer no rate: run constant, poisson or sweep"
        )
    return known


def _stage(benchmark: Document, slo: Slo) -> Stage:
    metrics = benchmark.get("metrics")
    totals = metrics.get("request_totals")
    successful, failed = totals.count("successful"), totals.count("errored")
    achieved = metrics.amount("requests_per_second.successful.mean") or 0.0
    codes = [code for warning in benchmark.items("warnings") if (code := warning.text("code"))]
    process = _PROCESSES.get(_kind(benchmark), Process(_kind(benchmark), UNKNOWN.burstiness))
    requested = benchmark.amount("config.strategy.rate")
    requests, within, ttft = successful + failed, 0.0, None
    if successful:
        achieved *= 1 + failed / successful
        known = _ttfts(benchmark, metrics)
        try:
            ttft, within = at_percentile(known, slo), successful * share_within(known, slo)
        except ValueError as error:
            raise ResultError(f"{benchmark.path.name}: {error}") from None
        judged = metrics.count("slo_determined_requests")
        if _is_ours(benchmark, slo) and judged == requests and (share := metrics.share("slo_attainment")) is not None:
            within = share * judged
    # Clients that wait for an answer offer what they get (Little's law): the rate is the one measured.
    rate = achieved if requested is None or process is CLOSED else requested
    return Stage(
        requested=rate,
        achieved=achieved,
        requests=requests,
        within=within,
        ttft=ttft,
        mix=_mix(metrics, successful),
        process=process,
        incomplete=totals.count("incomplete"),
        delay=metrics.amount("request_dispatch_delay.successful.percentiles.p95"),
        failed=failed,
        flaws=tuple(f"guidellm warns of {code}" for code in codes if "delay" in code or "late" in code),
        model=benchmark.text("config.backend.model"),
        source=benchmark.path.name,
    )


def _ttfts(benchmark: Document, metrics: Document) -> dict[float, float]:
    measured = metrics.get("time_to_first_token_ms.successful")
    known = measured.get("percentiles").percentiles(_NAMES, 1e-3)
    if not known or max(known.values()) == 0:
        raise ResultError(f"{benchmark.path.name} has no TTFT: run the test with streaming")
    if (top := measured.amount("max")) is not None:
        known[1.0] = top / 1000
    return known


def _is_ours(benchmark: Document, slo: Slo) -> bool:
    """Whether the test judged by TTFT alone, and by the same target."""
    own = benchmark.get("config.slo")
    others = (own.number("tpot_ms"), own.number("e2el_ms"))
    target = own.number("ttft_ms")
    return target is not None and abs(target - slo.seconds * 1000) < 1e-6 and others == (None, None)


def _mix(metrics: Document, successful: int) -> Mix:
    def mean(path: str) -> float | None:
        return metrics.amount(f"{path}.successful.mean")

    def share(path: str) -> float:
        return metrics.count(f"{path}.successful.count") / successful if successful else 0.0

    frames = mean("video.frames.input") or 0.0
    videos = share("video.frames.input") if frames else 0.0
    images = (mean("image.images.input") or 0.0) * share("image.images.input")
    return mix_of(mean("prompt_token_count"), mean("output_token_count"), videos, frames, images)


def _kind(benchmark: Document) -> str:
    strategy = benchmark.get("config.strategy")
    return strategy.text("type_") or strategy.text("kind") or UNKNOWN.name
