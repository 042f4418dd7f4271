"""The engine step model: the published figures within the residuals that its docstring states, and the budgets of a step."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.simulation.step_model import Costs, Emission, Engine, EngineConfig, FrontEnd, Media, Request, Step

VIDEO = Media(frames=6)
UNBATCHED = EngineConfig(batched_encoder=False)


def video(arrival: float = 0.0) -> Request:
    return Request(arrival, text_tokens=30, output_tokens=10, media=[VIDEO])


def text(arrival: float = 0.0) -> Request:
    return Request(arrival, text_tokens=500, output_tokens=10)


@dataclass
class Replay:
    """What clients saw: seconds to the first token, and between tokens."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return sorted(self.ttft)[int(0.95 * (len(self.ttft) - 1))]


def replay(qps: float, make: Callable[[float], Request], config: EngineConfig, seconds: float = 60.0) -> Replay:
    """A constant rate of requests through front end and engine, in simulated time."""
    engine, front_end, seen = Engine(config), FrontEnd(), Replay()
    arrivals: list[tuple[float, int, Request]] = []
    for number in range(int(qps * seconds)):
        request = make(number / qps)
        ready = front_end.ready_at(request.arrival, [item.frames for item in request.media])
        heapq.heappush(arrivals, (ready, number, request))
    now, left = 0.0, len(arrivals)
    while left:
        while arrivals and arrivals[0][0] <= now:
            ready, _, request = heapq.heappop(arrivals)
            engine.add(request, ready)
        step = engine.plan_step(now)
        if step is None:
            now = arrivals[0][0]
            continue
        now += step.duration
        for emission in engine.complete(step, now):
            left -= emission.finished
            if emission.first:
                seen.ttft.append(now - emission.request.arrival)
            else:
                seen.itl.append(emission.interval)
    return seen


def step_with_decodes(config: EngineConfig, decodes: int, prefills: list[Request]) -> Step:
    engine = Engine(config)
    for _ in range(decodes):
        engine.add(Request(0.0, text_tokens=5, output_tokens=10), 0.0)
    if decodes:
        planned(engine, complete=True)
    for request in prefills:
        engine.add(request, 0.0)
    return planned(engine)


def planned(engine: Engine, *, complete: bool = False) -> Step:
    step = engine.plan_step(0.0)
    assert step is not None
    if complete:
        engine.complete(step, 0.0)
    return step


def run_to_end(engine: Engine) -> list[Emission]:
    now, emissions = 0.0, []
    while step := engine.plan_step(now):
        now += step.duration
        emissions += engine.complete(step, now)
    return emissions


@pytest.mark.parametrize(
    ("decodes", "prefills", "config", "seed", "residual"),
    [
        (5, [], UNBATCHED, 0.005, 0.01),
        (4, [text()], UNBATCHED, 0.025, 0.01),
        (4, [video()], UNBATCHED, 0.225, 0.04),
        (4, [video(), video()], UNBATCHED, 0.550, 0.23),
        (4, [video() for _ in range(8)], UNBATCHED, 1.700, 0.01),
    ],
)
def test_published_step_times(
    decodes: int, prefills: list[Request], config: EngineConfig, seed: float, residual: float
) -> None:
    assert step_with_decodes(config, decodes, prefills).duration == pytest.approx(seed, rel=residual)


@pytest.mark.parametrize(
    ("make", "config", "seed", "residual"),
    [(text, UNBATCHED, 0.025, 0.01), (video, UNBATCHED, 0.225, 0.16), (video, EngineConfig(), 0.105, 0.01)],
)
def test_published_ttft_of_one_request(
    make: Callable[[float], Request], config: EngineConfig, seed: float, residual: float
) -> None:
    assert replay(1, make, config, seconds=5).p95 == pytest.approx(seed, rel=residual)


@pytest.mark.parametrize("qps", [5, 10, 15])
def test_batched_video_stays_near_120_ms_up_to_15_qps(qps: float) -> None:
    assert replay(qps, video, EngineConfig()).p95 == pytest.approx(0.120, rel=0.13)


def test_batched_video_stays_under_200_ms_at_20_qps() -> None:
    assert 0.120 < replay(20, video, EngineConfig()).p95 < 0.200


@pytest.mark.parametrize("qps", [1, 5, 10])
def test_median_itl_of_batched_video_is_5_ms_up_to_10_qps(qps: float) -> None:
    assert statistics.median(replay(qps, video, EngineConfig()).itl) == pytest.approx(0.005, rel=0.1)


@pytest.mark.parametrize("qps", [1, 10, 20])
def test_text_stays_near_25_ms(qps: float) -> None:
    assert replay(qps, text, EngineConfig()).p95 == pytest.approx(0.025, rel=0.2)


def test_unbatched_video_collapses_at_5_qps() -> None:
    assert replay(4, video, UNBATCHED).p95 < 0.3
    collapsed = replay(5, video, UNBATCHED)
    assert collapsed.p95 > 2.0
    assert statistics.median(collapsed.itl) == pytest.approx(2.0, rel=0.25)


def test_media_cost_counts_frames_not_requests() -> None:
    costs = Costs()
    one = Request(0.0, 30, 10, media=[Media(frames=12)])
    two = [Request(0.0, 30, 10, media=[Media(frames=6)]) for _ in range(2)]
    passes = [step_with_decodes(UNBATCHED, 0, prefills).encoder_passes for prefills in ([one], two)]
    assert passes == [12, 12]
    assert costs.encoder(12, 12, batched=False) == pytest.approx(2 * costs.encoder(6, 6, batched=False))
    assert costs.encoder(12, 12, batched=True) < 2 * costs.encoder(6, 6, batched=True)


def test_image_is_one_pass_of_four_frames_work() -> None:
    image = Media(frames=1, soft_tokens=280, overhead=2)
    assert (image.tokens, image.units) == (282, 4.0)


def test_long_prompt_is_prefilled_in_chunks_of_the_token_budget() -> None:
    engine = Engine(EngineConfig(max_num_batched_tokens=2048))
    engine.add(Request(0.0, text_tokens=5000, output_tokens=1), 0.0)
    chunks = []
    while step := engine.plan_step(0.0):
        chunks.append(step.prompt_tokens)
        engine.complete(step, 0.0)
    assert chunks == [2048, 2048, 904]


def test_decodes_go_before_prefills() -> None:
    config = EngineConfig(max_num_batched_tokens=100, max_num_seqs=10)
    step = step_with_decodes(config, 4, [text()])
    assert len(step.decodes) == 4
    assert step.prompt_tokens == 96


def test_encoder_budget_bounds_the_videos_of_a_step() -> None:
    engine = Engine(EngineConfig(max_num_batched_tokens=2496))
    for _ in range(8):
        engine.add(Request(0.0, text_tokens=1, output_tokens=1, media=[VIDEO]), 0.0)
    encoded = []
    while step := engine.plan_step(0.0):
        encoded.append(step.encoder_passes)
        engine.complete(step, 0.0)
    assert sum(encoded) == 8 * VIDEO.frames
    assert max(encoded) * VIDEO.tokens / VIDEO.frames <= 2496


def test_media_that_does_not_fit_the_encoder_budget_waits_with_its_prompt() -> None:
    """The chunk ends before the first item that can't be encoded any more in this step."""
    config = EngineConfig(max_num_batched_tokens=1000, largest_item_tokens=0)
    request = Request(0.0, text_tokens=10, output_tokens=1, media=[VIDEO, VIDEO, VIDEO])
    engine = Engine(config)
    engine.add(request, 0.0)
    step = planned(engine, complete=True)
    assert (step.prompt_tokens, step.encoder_passes) == (2 * VIDEO.tokens, 2 * VIDEO.frames)
    assert planned(engine).prompt_tokens == VIDEO.tokens + 10


def test_item_larger_than_the_token_budget_is_still_encoded() -> None:
    long_video = Media(frames=32)
    engine = Engine(EngineConfig(max_num_batched_tokens=1024, largest_item_tokens=long_video.tokens))
    engine.add(Request(0.0, text_tokens=4, output_tokens=2, media=[long_video]), 0.0)
    emissions = run_to_end(engine)
    assert [emission.finished for emission in emissions] == [False, True]


def test_no_more_sequences_than_allowed() -> None:
    engine = Engine(EngineConfig(max_num_seqs=3))
    for _ in range(5):
        engine.add(text(), 0.0)
    planned(engine)
    assert (len(engine.running), engine.waiting) == (3, 2)


def test_kv_cache_admits_what_it_can_hold() -> None:
    engine = Engine(EngineConfig(kv_cache_tokens=1100))
    for _ in range(3):
        engine.add(text(), 0.0)
    planned(engine, complete=True)
    assert len(engine.running) == 2
    assert 0.9 < engine.kv_usage <= 1.0
    assert sum(emission.finished for emission in run_to_end(engine)) == 3


@pytest.mark.parametrize(("priority", "first"), [(True, "urgent"), (False, "early")])
def test_lower_priority_number_runs_first_under_priority_scheduling(priority: bool, first: str) -> None:
    engine = Engine(EngineConfig(max_num_seqs=1, priority=priority))
    requests = {"early": Request(0.0, 10, 1, priority=5), "urgent": Request(0.0, 10, 1, priority=-1)}
    for request in requests.values():
        engine.add(request, 0.0)
    planned(engine)
    assert engine.running == [requests[first]]


def test_aborted_requests_emit_nothing() -> None:
    engine = Engine(EngineConfig(max_num_seqs=1))
    running, waiting = text(), text()
    engine.add(running, 0.0)
    engine.add(waiting, 0.0)
    step = planned(engine)
    engine.abort(running)
    engine.abort(waiting)
    assert engine.complete(step, 1.0) == []
    assert engine.plan_step(1.0) is None
    assert engine.kv_usage == 0


def test_cached_prompt_is_not_computed_again() -> None:
    engine = Engine(EngineConfig())
    engine.add(Request(0.0, text_tokens=500, output_tokens=1, cached_tokens=480), 0.0)
    assert planned(engine).prompt_tokens == 20
    engine.add(Request(0.0, text_tokens=500, output_tokens=1, cached_tokens=500), 0.0)
    assert planned(engine).prefills[-1][1] == 1


def test_drafts_shorten_the_answer_by_the_accepted_share() -> None:
    costs = Costs(draft_acceptance=0.5)
    engine = Engine(EngineConfig(draft_tokens=[(1, 10, 2)]), costs)
    engine.add(Request(0.0, text_tokens=10, output_tokens=1001), 0.0)
    decodes = [emission for emission in run_to_end(engine) if not emission.first]
    assert sum(emission.tokens for emission in decodes) == 1000
    # Expected: 1 + 0.5 + 0.5 squared tokens per step.
    assert len(decodes) == pytest.approx(1000 / 1.75, rel=0.02)


def test_drafts_depend_on_the_batch() -> None:
    config = EngineConfig(draft_tokens=[(1, 1, 4), (2, 9, 1)])
    assert [config.drafts(batch) for batch in (1, 2, 9, 10)] == [4, 1, 1, 0]


def test_scaled_costs_scale_time_only() -> None:
    slow = Costs().scaled(2)
    assert slow.encoder(6, 6, batched=True) == pytest.approx(2 * Costs().encoder(6, 6, batched=True))
    assert slow.draft_acceptance == Costs().draft_acceptance


def test_front_end_processes_one_after_the_other_per_api_server() -> None:
    costs = Costs(tokenize=0.0, media_decode=0.003, media_process=0.004)
    one = FrontEnd(costs)
    assert one.ready_at(0.0, [6]) == pytest.approx(0.042)
    assert one.ready_at(0.0, [6]) == pytest.approx(0.066)
    assert one.ready_at(0.0, []) == 0.0
    two = FrontEnd(costs, servers=2)
    assert [two.ready_at(0.0, [6]) for _ in range(2)] == pytest.approx([0.042, 0.042])
    assert FrontEnd(costs).ready_at(0.0, [6], known_frames=6) == pytest.approx(0.018)


REQUESTS = st.lists(
    st.builds(
        Request,
        arrival=st.just(0.0),
        text_tokens=st.integers(1, 3000),
        output_tokens=st.integers(1, 40),
        media=st.lists(st.builds(Media, frames=st.integers(1, 32)), max_size=4),
        cached_tokens=st.integers(0, 2000),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, budget=st.integers(64, 4096), seqs=st.integers(1, 32), drafts=st.integers(0, 4))
def test_every_request_ends_with_its_tokens_inside_the_budgets(
    requests: list[Request], budget: int, seqs: int, drafts: int
) -> None:
    config = EngineConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, draft_tokens=[(1, 64, drafts)])
    engine = Engine(config)
    for request in requests:
        engine.add(request, 0.0)
    emitted = dict.fromkeys(requests, 0)
    encoded = 0
    while step := engine.plan_step(0.0):
        assert step.prompt_tokens + len(step.decodes) * (1 + step.drafts) <= budget
        assert len(engine.running) <= seqs
        assert step.duration > 0
        encoded += step.encoder_passes
        for emission in engine.complete(step, 0.0):
            emitted[emission.request] += emission.tokens
    assert all(emitted[request] == request.output_tokens for request in requests)
    assert encoded == sum(item.frames for request in requests for item in request.media)
    assert not engine.running
    assert engine.waiting == 0
