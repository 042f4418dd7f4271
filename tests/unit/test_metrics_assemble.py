"""From the samples of one scrape to an engine's counters: names of every version, spellings, ranks, and values that can't be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.metrics import names
from gemma_operator.metrics.assemble import Sample, Unusable, engine_counters
from gemma_operator.metrics.engines import parse
from gemma_operator.scaling.counters import EngineCounters

EXPOSITION = (Path(__file__).parent / "data" / "vllm-0.32-metrics.txt").read_text()
BUCKET, RUNNING, WAITING = names.TTFT[0], names.RUNNING[0], names.WAITING[0]
ITL, OLD_ITL, KV, OLD_KV = *names.ITL[:2], *names.KV_USAGE[:2]


def scrape(*counts: float, edges: tuple[str, ...] = ("0.25", "0.3", "+Inf"), engine: str = "0") -> list[Sample]:
    """The required samples of one rank."""
    buckets = [(BUCKET, {"le": edge, "engine": engine}, count) for edge, count in zip(edges, counts, strict=True)]
    return [*buckets, (RUNNING, {"engine": engine}, 2.0), (WAITING, {"engine": engine}, 1.0)]


def counters(*samples: Sample) -> EngineCounters:
    return engine_counters("u1", 100.0, [*scrape(7, 9, 10), *samples])


def test_what_vllm_exports_is_read() -> None:
    """Recorded from vLLM 0.32 with an edge at the SLO."""
    found = parse("u1", 100.0, EXPOSITION)
    assert (found.pod_uid, found.at, found.running, found.waiting, found.kv_usage) == ("u1", 100.0, 0, 0, 0)
    assert dict(found.ttft)[0.3] == 3
    assert found.ttft[-1] == (math.inf, 21)
    assert found.itl is not None
    assert found.itl[-1] == (math.inf, 189)
    assert found.finished == {"stop": 0, "length": 21, "abort": 0, "error": 0, "repetition": 0}
    assert (found.rejected, found.prompt_tokens, found.cached_tokens, found.generated_tokens) == (0, 8714, 0, 210)
    assert (found.media_items, found.media_units, found.started_at) == (None, None, 1795985828.75)


def test_what_is_not_exported_is_unknown_and_not_zero() -> None:
    found = counters()
    assert found.ttft == ((0.25, 7), (0.3, 9), (math.inf, 10))
    assert found.finished == {}
    fields = ("itl", "rejected", "prompt_tokens", "cached_tokens", "generated_tokens", "media_items", "media_units")
    assert all(getattr(found, name) is None for name in (*fields, "kv_usage", "started_at"))


@pytest.mark.parametrize("missing", [BUCKET, RUNNING, WAITING])
def test_an_engine_without_a_required_metric_is_unusable_and_the_metric_is_named(missing: str) -> None:
    with pytest.raises(Unusable, match=f"{missing} is missing"):
        engine_counters("u1", 1.0, [sample for sample in scrape(1, 2, 3) if sample[0] != missing])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_a_value_that_can_not_be_is_never_a_number(value: float) -> None:
    for at in range(3):
        with pytest.raises(Unusable, match="no histogram"):
            engine_counters("u1", 1.0, scrape(*(value if at == n else 5.0 for n in range(3))))
    for gauge in (RUNNING, WAITING):
        samples = [(name, labels, value if name == gauge else old) for name, labels, old in scrape(1, 2, 3)]
        with pytest.raises(Unusable, match=gauge):
            engine_counters("u1", 1.0, samples)
    found = counters(
        (ITL, {"le": "+Inf"}, value),
        (names.GENERATION_TOKENS[0], {}, value),
        (names.REJECTED[0], {"reason": "a"}, value),
        (names.FINISHED[0], {"finished_reason": "stop"}, 5.0),
        (names.FINISHED[0], {"finished_reason": "abort"}, value),
        (KV, {}, value),
        (names.STARTED[0], {}, value),
    )
    assert (found.itl, found.generated_tokens, found.rejected, found.kv_usage, found.started_at) == (None,) * 5
    assert found.finished == {}


@pytest.mark.parametrize(
    ("counts", "edges"),
    [((3, 2, 4), ("0.25", "0.3", "+Inf")), ((1, 2), ("0.25", "0.3")), ((1, 2), ("wide", "+Inf")), ((1, 2), ("NaN", "+Inf"))],
    ids=["falls", "open", "no number", "NaN edge"],
)  # fmt: skip
def test_what_is_no_histogram(counts: tuple[float, ...], edges: tuple[str, ...]) -> None:
    with pytest.raises(Unusable, match="no histogram"):
        engine_counters("u1", 1.0, scrape(*counts, edges=edges))


def test_edges_are_numbers_however_they_are_spelled() -> None:
    found = engine_counters("u1", 1.0, scrape(1, 2, 3, 4, edges=("3e-1", "0.50", "1", "+Inf")))
    assert [edge for edge, _ in found.ttft] == [0.3, 0.5, 1, math.inf]


def test_data_parallel_ranks_add_up() -> None:
    ranks = [*scrape(1, 2, 3), *scrape(4, 5, 6, engine="1"), (KV, {"engine": "0"}, 0.2), (KV, {"engine": "1"}, 0.7)]
    found = engine_counters("u1", 1.0, ranks)
    assert found.ttft == ((0.25, 5), (0.3, 7), (math.inf, 9))
    assert (found.waiting, found.running, found.kv_usage) == (2, 4, 0.7)


@pytest.mark.parametrize("lost", range(5))
def test_a_rank_that_lacks_something_makes_the_whole_engine_unusable(lost: int) -> None:
    """Half of an engine would be taken for a reset, or for an idle one."""
    second = scrape(4, 5, 6, engine="1")
    del second[lost]
    with pytest.raises(Unusable):
        engine_counters("u1", 1.0, [*scrape(1, 2, 3), *second])


def test_names_of_older_versions() -> None:
    found = counters((OLD_ITL, {"le": "+Inf"}, 4.0), (OLD_KV, {}, 0.5))
    assert (found.itl, found.kv_usage) == (((math.inf, 4),), 0.5)


def test_of_an_old_and_a_new_name_the_new_one_is_read_once() -> None:
    found = counters((OLD_ITL, {"le": "+Inf"}, 4.0), (ITL, {"le": "+Inf"}, 5.0), (OLD_KV, {}, 0.5), (KV, {}, 0.1))
    assert (found.itl, found.kv_usage) == (((math.inf, 5),), 0.1)


def test_names_without_a_colon_are_the_same_metrics() -> None:
    samples = [*scrape(1, 2, 3), (OLD_KV, {}, 0.5), (names.FINISHED[0], {"finished_reason": "stop"}, 3.0)]
    escaped = [(name.replace(":", "_"), labels, value) for name, labels, value in samples]
    assert engine_counters("u1", 1.0, escaped) == engine_counters("u1", 1.0, samples)


def test_rejections_of_all_reasons_add_up() -> None:
    rejected = names.REJECTED[0]
    assert counters((rejected, {"reason": "a"}, 2.0), (rejected, {"reason": "b"}, 3.0)).rejected == 5


@pytest.mark.parametrize(
    ("exported", "computed", "cached"),
    [
        ({"by_source": {"local_compute": 90, "local_cache_hit": 7, "external_kv_transfer": 3}, "total": 1}, 90, 10),
        ({"total": 100, "cached": 10}, 90, 10),
        ({"total": 100, "cached": 110}, 0, 110),
        ({"total": 100}, 100, None),
        ({"cached": 10}, None, 10),
        ({}, None, None),
    ],
)
def test_prompt_tokens_computed_and_cached(exported: dict, computed: float | None, cached: float | None) -> None:
    samples: list[Sample] = []
    for source, value in exported.get("by_source", {}).items():
        samples.append((names.PROMPT_TOKENS_BY_SOURCE[0], {"source": source}, value))
    for key, name in (("total", names.PROMPT_TOKENS[0]), ("cached", names.PROMPT_TOKENS_CACHED[0])):
        samples += [(name, {}, exported[key])] if key in exported else []
    found = counters(*samples)
    assert (found.prompt_tokens, found.cached_tokens) == (computed, cached)


@pytest.mark.parametrize(
    ("encoder", "cache", "items"), [(4, 9, 4), (0, 9, 9), (0, 0, None), (None, 9, 9), (None, 0, None)]
)
def test_media_items_and_the_cache_that_never_counts(encoder: float | None, cache: float, items: float | None) -> None:
    """With --mm-processor-cache-gb 0 vLLM's cache queries stay at 0 for ever, without iteration details the plugin's items: that proves nothing."""
    samples: list[Sample] = [(names.MM_CACHE_QUERIES[0], {}, cache)]
    samples += [] if encoder is None else [(names.ENCODER_ITEMS[0], {}, encoder)]
    assert counters(*samples).media_items == items


def test_media_units_are_frames_of_seventy_embeddings() -> None:
    assert counters((names.ENCODER_EMBEDDINGS[0], {}, 700.0)).media_units == 10


@pytest.mark.parametrize(("exported", "known"), [(2.0, 2.0), (0.0, 0.0), (float("nan"), None), (-1.0, None)])
def test_unanswered_requests_of_the_plugin(exported: float, known: float | None) -> None:
    found = counters((names.UNANSWERED[0], {}, exported), (names.ANSWERED[0], {}, exported))
    assert (found.unanswered, found.answered) == (known, known)


def test_without_the_plugin_nothing_is_known_of_unanswered_requests() -> None:
    assert (counters().unanswered, counters().answered) == (None, None)


@given(st.lists(st.floats(), min_size=3, max_size=3), st.floats(), st.floats())
def test_whatever_comes_is_sound_or_unusable(counts: list[float], running: float, kv: float) -> None:
    samples = [(name, labels, running if name == RUNNING else value) for name, labels, value in scrape(*counts)]
    try:
        found = engine_counters("u1", 1.0, [*samples, (KV, {}, kv)])
    except Unusable:
        return
    assert [count for _, count in found.ttft] == sorted(count for _, count in found.ttft)
    assert all(0 <= count < math.inf for _, count in found.ttft)
    assert 0 <= found.running < math.inf
    assert found.kv_usage is None or 0 <= found.kv_usage < math.inf
