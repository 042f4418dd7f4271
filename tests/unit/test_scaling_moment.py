"""A pool's history: what is kept of a tick says the same as the tick did, and takes little."""

import math
import pickle
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.scaling.moment import Moment, gathered, ttft, within
from gemma_operator.scaling.verdict import Evidence, add

VLLM_EDGES = (*(n / 8 for n in range(1, 22)), math.inf)
MOST_BYTES = 450
"""Of a tick with vLLM's 22 edges, where no two numbers are equal: a fleet of 2,000 pools keeps 160,000 of them, 70 MB."""
HISTOGRAMS = st.lists(
    st.sampled_from([(0.1, 0.3, math.inf), (0.1, 0.5, math.inf), (0.3, math.inf)]).flatmap(
        lambda edges: st.lists(st.floats(0, 1e6), min_size=len(edges), max_size=len(edges)).map(
            lambda counts: tuple(zip(edges, sorted(counts), strict=True))
        )
    )
    | st.just(()),
    max_size=6,
)


def moment(at: float = 0.0, **more: object) -> Moment:
    return Moment.of(at=at, seconds=15.0, each=0.03, **more)  # type: ignore[arg-type]


@given(HISTOGRAMS)
def test_histograms_that_are_kept_sum_up_to_the_same(found: list[tuple[tuple[float, float], ...]]) -> None:
    assert ttft(tuple(moment(buckets=buckets) for buckets in found)) == add(found)


def test_histograms_that_are_kept_share_their_edges() -> None:
    first, second = (moment(buckets=tuple((edge, 7.0 * n) for edge in (0.1, 0.3, math.inf))) for n in (1, 2))
    assert first.edges is second.edges


def test_what_is_kept_is_what_was_measured() -> None:
    kept = moment(
        at=30.0, demand=3.0, work=2.0, level=2.5, needed=4.2, requests=90.0, media_share=0.1, engines=2,
        saturated=True, ttft=Evidence(100, 3, 5), itl=Evidence(7, 1, 2), buckets=((0.3, 4.0), (math.inf, 9.0)),
    )  # fmt: skip
    read = (
        kept.at, kept.seconds, kept.each, kept.demand, kept.work, kept.level, kept.needed, kept.requests, kept.media_share,
        kept.engines, kept.saturated, kept.samples, kept.misses, kept.load, kept.served,
    )  # fmt: skip
    assert read == (30.0, 15.0, 0.03, 3.0, 2.0, 2.5, 4.2, 90.0, 0.1, 2, True, 100, 3, 1.5, 1.0)
    assert gathered((kept, kept)) == Evidence(200, 6, 10)
    assert gathered((kept, kept), itl=True) == Evidence(14, 2, 4)
    assert ttft((kept,)) == ((0.3, 4.0), (math.inf, 9.0))
    kept.set_needed(7.0)
    assert kept.needed == 7.0


def test_a_copy_is_whole() -> None:
    kept = moment(5.0, buckets=((0.3, 4.0), (math.inf, 9.0)))
    copied = pickle.loads(pickle.dumps(kept))
    assert (copied, copied.edges) == (kept, kept.edges)


def test_history_is_cut_after_a_time() -> None:
    history = tuple(moment(at) for at in (15.0, 30.0, 45.0))
    assert [one.at for one in within(history, 15.0)] == [30.0, 45.0]
    assert within(history, 45.0) == ()


def test_a_tick_takes_little() -> None:
    tracemalloc.start()
    try:
        kept = [
            moment(n + 0.5, demand=n + 0.1, level=n + 0.2, buckets=tuple((edge, n + edge) for edge in VLLM_EDGES[:-1]))
            for n in range(1000)
        ]
        taken = tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()
    assert taken < MOST_BYTES
