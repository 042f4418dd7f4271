"""From the stages of a load test to the highest rate at which the SLO still holds, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gemma_operator.planning.stages import CLOSED, CONSTANT, UNKNOWN, Mix, Process, Stage
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.verdict import wilson

LEAST_ACHIEVED = 0.97
"""A client that sends less than this share of what it should is at its own limit: the test is no open loop any more."""
MOST_DELAY = 0.01
"""Seconds by which a client may be late with its requests; more is said."""
MOST_DELAY_SHARE = 0.1
"""Of the SLO's target; a stage whose client was later than that is left out."""
LEAST_SECONDS = 10.0
"""A stage that was shorter may have ended before its queue grew: seen on a real vLLM, 60 requests in two seconds."""
MOST_INCOMPLETE = 0.01
WIDEST_GAP = 0.25
"""Between the last rate that holds and the first that doesn't, up to which the rate between them is interpolated."""
DERATE_SAFETY = 0.85
"""On the M/D/1 queue: the step model needs that much where videos come one by one (0.65 where M/D/1 says 0.76)."""

_NOT_RANDOM = {
    CONSTANT: "a constant rate hides what bursts do; measure with poisson or gamma arrivals",
    CLOSED: "clients that wait for their answers hide what bursts do; measure with poisson or gamma arrivals",
    UNKNOWN: "the result doesn't say how requests arrived, so a constant rate is assumed; give --arrivals if you know",
}


@dataclass(frozen=True, slots=True)
class Found:
    """The operating point of one curve, in requests per second of everything that was measured."""

    mix: Mix
    process: Process
    rate: float | None
    """To plan with; None where not even the lowest rate holds."""
    measured: float | None
    """The same before it was derated."""
    holds: float | None
    """Highest rate that is proven to hold the SLO (Wilson, 95 % each side); None where too few requests prove any."""
    breaks: float | None
    """Lowest rate that is proven to miss it; None where none is."""
    tested: tuple[float, float]
    """Lowest and highest rate that counts."""
    crossed: bool
    """Whether both a rate that holds and one that doesn't were tested."""
    monotone: bool
    stages: tuple[Stage, ...]
    """Those that count, by rate."""
    notes: tuple[str, ...]
    model: str | None = None
    sources: tuple[str, ...] = ()

    @property
    def burstiness(self) -> float:
        """The coefficient of variation that `rate` holds for; what isn't open-loop and random is derated to Poisson."""
        return self.process.burstiness or 1.0


def operating_point(stages: Sequence[Stage], slo: Slo) -> Found | None:
    """The operating point of stages with one mix and one arrival process; None where no stage counts."""
    notes: list[str] = []
    kept = sorted(filter(None, (_kept(stage, slo, notes) for stage in stages)), key=lambda stage: stage.rate)
    if not kept:
        return None
    first = kept[0].stage
    failed = next((number for number, stage in enumerate(kept) if not stage.holds), len(kept))
    monotone = not any(stage.holds for stage in kept[failed:]) and not _dips(kept, slo)
    if not monotone:
        notes.append("the curve is not monotone: the highest rate below the first breach counts (monotone: false)")
    measured = _crossing(kept, failed, slo, notes)
    rate = measured
    if rate is not None and not first.process.burstiness:
        rate, said = _derated(rate, kept, slo, first.process)
        notes.append(said)
    requests = [stage.stage.requests for stage in kept]
    found = Found(
        mix=_mean_mix(kept),
        process=first.process,
        rate=rate,
        measured=measured,
        holds=_proven_to_hold(kept, slo),
        breaks=_proven_to_break(kept, slo),
        tested=(kept[0].rate, kept[-1].rate),
        crossed=0 < failed < len(kept),
        monotone=monotone,
        stages=tuple(stage.stage for stage in kept),
        notes=(),
        model=first.model,
        sources=tuple(dict.fromkeys(stage.source for stage in stages)),
    )
    if measured is not None and found.holds is None:
        notes.append(
            f"{min(requests)} to {max(requests)} requests per rate are too few to prove that any rate holds: "
            f"{_needed(slo)} without a miss prove it"
        )
    return replace(found, notes=tuple(notes))


def curves(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Stages that belong together: measured with the same mix, the same arrivals, the same model, in the same folder."""
    found: list[list[Stage]] = []
    for stage in stages:
        for curve in found:
            other = curve[0]
            same = (other.process, other.model, other.folder) == (stage.process, stage.model, stage.folder)
            if same and other.mix.like(stage.mix):
                curve.append(stage)
                break
        else:
            found.append([stage])
    return found


def interval(found: Found) -> str:
    """`18.2 requests/s (proven: at least 15, less than 20)`, or the bounds alone where the crossing wasn't tested."""
    low, high = found.tested
    if found.rate is None:
        return f"less than {low:.3g} requests/s, the lowest rate tested"
    if not found.crossed:
        said = f"at least {high:.3g} requests/s, the highest rate tested"
        return f"{said}; {found.rate:.3g} to plan with" if found.rate != high else said
    bounds = [f"at least {found.holds:.3g}"] if found.holds is not None else []
    bounds += [f"less than {found.breaks:.3g}"] if found.breaks is not None else []
    measured = f", measured {found.measured:.3g}" if found.measured != found.rate else ""
    return f"{found.rate:.3g} requests/s{measured} (proven: {', '.join(bounds) or 'nothing, too few requests'})"


@dataclass(frozen=True, slots=True)
class _Kept:
    stage: Stage
    rate: float
    share: float
    """Attainment."""
    holds: bool
    capped: bool = False
    """The client was at its limit."""


def _kept(stage: Stage, slo: Slo, notes: list[str]) -> _Kept | None:
    """What a stage is worth; None, with a note, where it says nothing of the engine."""
    name = f"the stage of {stage.requested:.3g} requests/s"
    wanted = slo.percentile / 100
    if not stage.requests:
        notes.append(f"{name} is left out: no request came to an end")
        return None
    share = stage.within / stage.requests
    holds = share >= wanted - 1e-9
    short = stage.achieved < stage.requested * (LEAST_ACHIEVED - _chance(stage))
    if short:
        said = f"{name} sent {stage.achieved:.3g}: the client was at its limit"
        if holds:
            notes.append(f"{said}, so it is left out")
            return None
        notes.append(f"{said}, so it counts as a breach at {stage.achieved:.3g}")
        return _Kept(stage, stage.achieved, share, False, capped=True)
    if (delay := stage.delay or 0.0) > MOST_DELAY:
        said = f"the client was late by {delay * 1000:.0f} ms at p95"
        if delay > MOST_DELAY_SHARE * slo.seconds:
            notes.append(f"{name} is left out: {said}")
            return None
        notes.append(f"{name}: {said}")
    if stage.flaws:
        notes.append(f"{name} is left out: {', '.join(stage.flaws)}")
        return None
    if stage.incomplete > MOST_INCOMPLETE * (stage.requests + stage.incomplete):
        worst = stage.within / (stage.requests + stage.incomplete)
        said = f"{name}: {stage.incomplete} of {stage.requests + stage.incomplete} requests were cut off"
        if holds and worst < wanted:
            notes.append(f"{said}, so it is left out")
            return None
        notes.append(f"{said}; it {'holds' if holds else 'fails'} either way")
    if stage.failed:
        notes.append(f"{name}: {stage.failed} of {stage.requests} requests failed, which counts as misses")
    return _Kept(stage, min(stage.requested, stage.achieved), share, holds)


def _chance(stage: Stage) -> float:
    """How much fewer random arrivals may come than asked for, by chance (two standard deviations of a Poisson count)."""
    return 2 / math.sqrt(stage.requests) if stage.process.burstiness else 0.0


def _crossing(kept: Sequence[_Kept], failed: int, slo: Slo, notes: list[str]) -> float | None:
    """The highest rate that holds: the last tested one, or between it and the first breach where they are close."""
    if failed == 0:
        return None
    last = kept[failed - 1]
    if (lasted := last.stage.requests / max(last.rate, 1e-9)) < LEAST_SECONDS:
        notes.append(
            f"the stage of {last.stage.requested:.3g} requests/s lasted {lasted:.2g} s: a queue takes longer to build up, so it "
            f"may hold for that alone; test it with {math.ceil(LEAST_SECONDS * last.rate)} requests"
        )
    if failed == len(kept):
        return last.rate
    first = kept[failed]
    gap = first.rate / last.rate - 1
    if gap > WIDEST_GAP:
        notes.append(
            f"between {last.rate:.3g} (holds) and {first.rate:.3g} requests/s (doesn't) nothing was tested: "
            f"{last.rate:.3g} counts; test a rate or two between them"
        )
        return last.rate
    low, high = last.stage.ttft, first.stage.ttft
    if first.capped or low is None or high is None or not 0 < low <= slo.seconds < high:
        return last.rate
    part = math.log(slo.seconds / low) / math.log(high / low)
    return last.rate + (first.rate - last.rate) * part


def _dips(kept: Sequence[_Kept], slo: Slo) -> bool:
    """Whether TTFT falls while the rate rises, where it matters: near the SLO or beyond it."""
    times = [stage.stage.ttft for stage in kept if stage.stage.ttft and not stage.capped]
    return any(high < 0.99 * low and low > slo.seconds / 2 for low, high in pairwise(times))


def _proven_to_hold(kept: Sequence[_Kept], slo: Slo) -> float | None:
    """A rate holds where it and some higher ones together do: less load is never worse."""
    for number in range(len(kept) - 1, -1, -1):
        if any(wilson(*_pool(kept[number:end]))[0] >= slo.percentile / 100 for end in range(number + 1, len(kept) + 1)):
            return kept[number].rate
    return None


def _proven_to_break(kept: Sequence[_Kept], slo: Slo) -> float | None:
    for number, stage in enumerate(kept):
        if any(wilson(*_pool(kept[start : number + 1]))[1] < slo.percentile / 100 for start in range(number + 1)):
            return stage.rate
    return None


def _pool(stages: Sequence[_Kept]) -> tuple[float, float]:
    return sum(kept.stage.within for kept in stages), sum(kept.stage.requests for kept in stages)


def _needed(slo: Slo) -> int:
    """Fewest requests, all within the SLO, that prove it."""
    return next(count for count in range(1, 10**6) if wilson(count, count)[0] >= slo.percentile / 100)


def _derated(rate: float, kept: Sequence[_Kept], slo: Slo, process: Process) -> tuple[float, str]:
    """What a rate measured without bursts is worth with Poisson arrivals, by the M/D/1 queue.

    The engine is taken for a server that needs 1/rate for a request; a request may wait for as long as the SLO leaves
    over what it took at the lowest rate. The share that waits longer falls as exp(-x w/s), where x solves
    e^x = 1 + x/load (Cramér-Lundberg).
    """
    alone = min((stage.stage.ttft for stage in kept if stage.stage.ttft is not None), default=slo.seconds)
    room = max(0.0, slo.seconds - alone) * rate
    allowed = 1 - slo.percentile / 100
    low, high = 0.0, 1.0
    for _ in range(40):
        load = (low + high) / 2
        if _waits_longer(load, room) <= allowed:
            low = load
        else:
            high = load
    factor = DERATE_SAFETY * low
    why = _NOT_RANDOM.get(process, f"{process.name} arrivals hide what bursts do")
    return (
        factor * rate,
        f"{why}: {rate:.3g} requests/s are derated to {factor * rate:.3g} (x {factor:.2f}, an M/D/1 queue)",
    )


def _waits_longer(load: float, room: float) -> float:
    """Share of requests that wait longer than `room` service times in an M/D/1 queue of this load."""
    if load <= 0:
        return 0.0
    low, high = 1e-9, 50.0
    for _ in range(60):
        x = (low + high) / 2
        if math.expm1(x) < x / load:
            low = x
        else:
            high = x
    x = (low + high) / 2
    scale = (1 - load) / (load + x - 1) if load + x > 1 else 1.0
    return min(1.0, scale * math.exp(-x * room))


def _mean_mix(kept: Sequence[_Kept]) -> Mix:
    total = sum(stage.stage.requests for stage in kept)

    def mean(value: Callable[[Mix], float]) -> float:
        return sum(value(stage.stage.mix) * stage.stage.requests for stage in kept) / total

    return Mix(
        mean(lambda mix: mix.prompt_tokens),
        mean(lambda mix: mix.output_tokens),
        mean(lambda mix: mix.media_share),
        mean(lambda mix: mix.units),
    )
