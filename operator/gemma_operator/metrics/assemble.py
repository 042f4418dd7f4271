"""From the samples of one scrape of one engine to its counters. Pure; both sources end here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from gemma_operator.metrics import names
from gemma_operator.scaling.counters import EMBEDDINGS_PER_FRAME, Buckets, EngineCounters

Sample = tuple[str, Mapping[str, str], float]
"""Name as it is exported, labels, value."""
_Series = list[tuple[Mapping[str, str], float]]
_CACHED = ("local_cache_hit", "external_kv_transfer")


class Unusable(ValueError):
    """An engine lacks something that every judgement needs; the text says what."""


def engine_counters(pod_uid: str, at: float, samples: Iterable[Sample]) -> EngineCounters:
    """The counters of one engine, its data-parallel ranks summed. Raises Unusable.

    A value that can't be (NaN, infinite, negative, a histogram that falls) makes a required field unusable and an
    optional one unknown; it is never read as zero.
    """
    series: dict[str, _Series] = defaultdict(list)
    for name, labels, value in samples:
        series[name].append((labels, value))
    ttft, running, waiting = (_required(series, wanted) for wanted in names.REQUIRED)
    buckets = _histogram(ttft)
    if buckets is None:
        raise Unusable(f"{names.TTFT[0]} is no histogram: an edge is missing, or counts fall or are no numbers")
    ranks = sum(labels["le"] in ("+Inf", "Inf") for labels, _ in ttft)
    if not ranks == len(running) == len(waiting):
        raise Unusable(f"{names.RUNNING[0]}, {names.WAITING[0]} and {names.TTFT[0]} are of different engine ranks")
    itl = _pick(series, names.ITL)
    embeddings = _sum(_pick(series, names.ENCODER_EMBEDDINGS))
    computed, cached = _prompt_tokens(series)
    return EngineCounters(
        pod_uid=pod_uid,
        at=at,
        ttft=buckets,
        running=_gauge(running, names.RUNNING),
        waiting=_gauge(waiting, names.WAITING),
        unanswered=_sum(_pick(series, names.UNANSWERED)),
        answered=_sum(_pick(series, names.ANSWERED)),
        itl=_histogram(itl) if itl else None,
        finished=_by_label(_pick(series, names.FINISHED), "finished_reason"),
        rejected=_sum(_pick(series, names.REJECTED)),
        prompt_tokens=computed,
        cached_tokens=cached,
        generated_tokens=_sum(_pick(series, names.GENERATION_TOKENS)),
        media_items=_media_items(series),
        media_units=embeddings / EMBEDDINGS_PER_FRAME if embeddings else None,
        kv_usage=_highest(_pick(series, names.KV_USAGE)),
        started_at=_highest(_pick(series, names.STARTED)),
    )


def _required(series: Mapping[str, _Series], wanted: tuple[str, ...]) -> _Series:
    if found := _pick(series, wanted):
        return found
    raise Unusable(f"{wanted[0]} is missing")


def _pick(series: Mapping[str, _Series], wanted: tuple[str, ...]) -> _Series:
    """The series under the newest name that is there."""
    for name in wanted:
        if name in series:
            return series[name]
    return []


def _is_count(value: float) -> bool:
    return 0 <= value < math.inf


def _sum(found: _Series) -> float | None:
    total = 0.0
    for _, value in found:
        if not 0 <= value < math.inf:
            return None
        total += value
    return total if found else None


def _highest(found: _Series) -> float | None:
    values = [value for _, value in found]
    return max(values) if values and all(map(_is_count, values)) else None


def _gauge(found: _Series, wanted: tuple[str, ...]) -> float:
    total = _sum(found)
    if total is None:
        raise Unusable(f"{wanted[0]} is {', '.join(str(value) for _, value in found)}")
    return total


def _by_label(found: _Series, label: str) -> dict[str, float]:
    if _sum(found) is None:
        return {}
    totals: dict[str, float] = defaultdict(float)
    for labels, value in found:
        totals[labels.get(label, "")] += value
    return dict(totals)


def _prompt_tokens(series: Mapping[str, _Series]) -> tuple[float | None, float | None]:
    """Prompt tokens computed, and taken from a cache: by source where the engine tells, else total less cached."""
    if by_source := _by_label(_pick(series, names.PROMPT_TOKENS_BY_SOURCE), "source"):
        return by_source.get("local_compute"), sum(by_source.get(source, 0.0) for source in _CACHED)
    total = _sum(_pick(series, names.PROMPT_TOKENS))
    cached = _sum(_pick(series, names.PROMPT_TOKENS_CACHED))
    if total is None or cached is None:
        return total, cached
    return max(0.0, total - cached), cached


def _media_items(series: Mapping[str, _Series]) -> float | None:
    """Items that the encoder took, else those asked of the processor cache.

    An engine without a processor cache shows 0 of the latter for ever (vLLM 0.32, renderers/base.py), and one without
    iteration details 0 of the former, so that 0 says nothing.
    """
    return _sum(_pick(series, names.ENCODER_ITEMS)) or _sum(_pick(series, names.MM_CACHE_QUERIES)) or None


def _histogram(found: _Series) -> Buckets | None:
    """Cumulative buckets, the ranks of an engine summed; None where they are none."""
    totals: dict[float, float] = {}
    ranks: dict[float, int] = {}
    for labels, value in found:
        try:
            edge = float(labels["le"])
        except (KeyError, ValueError):
            return None
        totals[edge] = totals.get(edge, 0.0) + value
        ranks[edge] = ranks.get(edge, 0) + 1
    if math.inf not in totals or any(math.isnan(edge) for edge in totals) or len(set(ranks.values())) > 1:
        return None
    buckets = tuple(sorted(totals.items()))
    is_cumulative = all(low <= high for (_, low), (_, high) in pairwise(buckets))
    # So are all counts in between.
    is_sound = is_cumulative and _is_count(buckets[0][1]) and _is_count(buckets[-1][1])
    return buckets if is_sound else None
