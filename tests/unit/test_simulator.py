"""The compiled simulator: the same engine as the step model, the same run every time, and a world that behaves."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from gemma_operator.scaling.counters import Scrape
from gemma_operator.simulation import engine_kernel as kernel
from gemma_operator.simulation.engine_model import INTERACTIVE, PROTOTYPE, EngineModel, from_step_model, media_of
from gemma_operator.simulation.faults import Fault, FaultKind, Faults
from gemma_operator.simulation.fleet import Engines, World
from gemma_operator.simulation.policies import Product, Static
from gemma_operator.simulation.run import play
from gemma_operator.simulation.step_model import Engine, EngineConfig, FrontEnd, Request
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import constant, step, synthetic


def by_step_model(arrivals: Arrivals, config: EngineConfig) -> list[float]:
    """TTFT of every request on one engine, by the readable model."""
    engine, front_end = Engine(config), FrontEnd()
    coming: list[tuple[float, int, Request]] = []
    for number in range(len(arrivals)):
        item = media_of(int(arrivals.frames[number]))
        request = Request(
            float(arrivals.at[number]),
            int(arrivals.prompt_tokens[number]),
            int(arrivals.output_tokens[number]),
            [item] if item else [],
        )
        ready = front_end.ready_at(request.arrival, [item.frames] if item else [])
        heapq.heappush(coming, (ready, number, request))
    requests, now = sorted(coming, key=lambda entry: entry[1]), 0.0
    while True:
        while coming and coming[0][0] <= now:
            ready, _, request = heapq.heappop(coming)
            engine.add(request, ready)
        plan = engine.plan_step(now)
        if plan is None:
            if not coming:
                return [request.first_token_at - request.arrival for _, _, request in requests]
            now = coming[0][0]
            continue
        now += plan.duration
        engine.complete(plan, now)


def by_kernel(arrivals: Arrivals, model: EngineModel) -> list[float]:
    engines = Engines(World(engine=model), arrivals, 1)
    engines.advance(arrivals.seconds + 600)
    return list(engines.requests.ttft)


@pytest.mark.parametrize("rate", [5, 20, 45])
@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(4096, 64),
        EngineConfig(2496, 64, batched_encoder=False),
        EngineConfig(512, 8, largest_item_tokens=512, kv_cache_tokens=4000),
    ],
    ids=["interactive", "unbatched", "small"],
)
def test_the_compiled_engine_gives_the_step_models_times(rate: float, config: EngineConfig) -> None:
    rng = np.random.default_rng(1)
    arrivals = synthetic(constant(rate), 20, cv=1.5, seed=2)
    count = len(arrivals)
    mixed = Arrivals.of(
        arrivals.at, rng.integers(1, 1500, count), rng.integers(1, 60, count), rng.choice([0, 0, 1, 6], count)
    )
    assert by_kernel(mixed, from_step_model(config)) == pytest.approx(by_step_model(mixed, config), abs=1e-9)


def p95(rate: float, frames: int, *, batched: bool) -> float:
    """Seconds, at a constant rate of one kind of request, as in the published sweep."""
    model = from_step_model(EngineConfig(batched_encoder=batched))
    arrivals = Arrivals.of(np.arange(0, 60, 1 / rate), 30 if frames else 500, 10, frames)
    return float(np.quantile(by_kernel(arrivals, model), 0.95))


@pytest.mark.parametrize(
    ("rate", "frames", "batched", "published", "residual"),
    [
        (1, 0, True, 0.025, 0.01), (1, 6, False, 0.225, 0.15), (1, 6, True, 0.105, 0.01),
        (15, 6, True, 0.120, -0.08), (20, 6, True, 0.200, -0.02),
    ],
)  # fmt: skip
def test_the_published_sweep_within_its_residuals(
    rate: float, frames: int, batched: bool, published: float, residual: float
) -> None:
    """Seed 000; the residuals are `step_model`'s."""
    assert p95(rate, frames, batched=batched) == pytest.approx(published * (1 + residual), rel=0.03)


def test_before_the_fix_five_videos_a_second_are_too_many() -> None:
    assert p95(5, 6, batched=False) > 2


def test_the_same_run_twice_is_the_same_to_the_last_bit() -> None:
    arrivals = synthetic(step(20, 70, 600), 1800, seed=4).with_media(0.1, 4)

    def digest(seed: int) -> str:
        return play(Product(), arrivals, World(seed=seed), length=1800, initial=2, preroll=0).outcome.digest

    assert digest(1) == digest(1) != digest(2)


def test_every_policy_meets_the_same_cold_starts() -> None:
    arrivals = synthetic(constant(5), 60)
    worlds = [Engines(World(seed=5), arrivals, 1) for _ in range(2)]
    worlds[0].resize(4)
    for count in (2, 3, 4):
        worlds[1].resize(count)
    assert [pod.ready_at for pod in worlds[0].pods] == [pod.ready_at for pod in worlds[1].pods]
    assert all(226 <= pod.takes <= 2 * 428 for pod in worlds[0].pods)


def test_what_has_no_gpu_costs_none_and_starts_when_one_is_free() -> None:
    engines = Engines(World(room=2), synthetic(constant(1), 60), 1)
    engines.advance(15)
    engines.resize(3)
    assert engines.fleet().unschedulable == 1
    assert engines.gpu_seconds(15, 30) == 2 * 15
    engines.resize(2)
    assert engines.fleet().unschedulable == 0


def test_the_engine_with_least_to_do_goes_and_finishes_what_it_has() -> None:
    arrivals = Arrivals.of([1.0, 1.0, 1.0, 1.0], 500, [4000, 3000, 2000, 10])
    engines = Engines(World(), arrivals, 2)
    engines.advance(15)
    engines.resize(1)
    engines.advance(30)
    assert len(engines.pods) == 1
    engines.advance(600)
    assert np.isfinite(engines.requests.ttft).all()


def test_counters_are_what_happened_at_the_last_scrape() -> None:
    arrivals = synthetic(constant(20), 60, seed=3).with_media(0.5, 3)
    engines = Engines(World(), arrivals, 2)
    engines.advance(75)
    samples = list(engines.scrape().engines.values())
    assert len(samples) == 2
    assert all(60 < sample.at % 1_000_000_000 - 700_000_000 <= 75 for sample in samples)
    assert sum(sample.ttft[-1][1] for sample in samples) == len(arrivals)
    assert sum(sample.media_items or 0 for sample in samples) == np.count_nonzero(arrivals.frames)
    assert sum(sample.generated_tokens or 0 for sample in samples) > 0


def test_admission_limits_refuse_and_refusals_are_misses() -> None:
    arrivals = synthetic(constant(60), 120, seed=3, output_tokens=10)
    limited = from_step_model(EngineConfig(4096, 64), queued_tokens=6000)
    free = play(Static(1), arrivals, World(engine=INTERACTIVE), length=120, preroll=0).outcome
    valve = play(Static(1), arrivals, World(engine=limited), length=120, preroll=0).outcome
    assert free.attainment < 0.2 < valve.attainment < 0.9


def test_a_limit_on_queued_tokens_refuses_as_vllm_does() -> None:
    """Once it is reached, whoever comes; a prompt counts whole until its first token, however much of it is computed."""
    at, prompts = [0.0, 0.01, 0.02, 0.2, 5.0], [6000, 1000, 1, 1, 1]
    arrivals = Arrivals.of(at, prompts, 2)
    model = from_step_model(EngineConfig(1000, 64), queued_tokens=7000)
    ttft = by_kernel(arrivals, model)
    assert ttft[0] > 0.2, "most of it is computed, and it is not yet answered, when the fourth comes"
    assert [math.isinf(waited) for waited in ttft] == [False, False, True, True, False]


def test_a_skewed_router_is_worse_than_the_shortest_queue() -> None:
    arrivals = synthetic(constant(100), 120, seed=5, output_tokens=10).with_media(0.3, 5)

    def attained(router: int) -> float:
        return play(Static(5), arrivals, World(router=router), length=120, initial=5, preroll=0).outcome.attainment

    assert attained(kernel.SHORTEST) > attained(kernel.SKEWED) + 0.1
    assert attained(kernel.IN_TURN) > attained(kernel.SKEWED) + 0.1


def test_no_engine_no_answer() -> None:
    arrivals = synthetic(constant(5), 60)
    outcome = play(Static(0), arrivals, World(), length=60, initial=0, preroll=0).outcome
    assert outcome.attainment == 0
    assert outcome.p95 == math.inf
    assert outcome.gpu_hours == 0


@pytest.mark.parametrize(("rate", "published"), [(4, 0.083), (14, 0.120), (18, 0.166), (24, 0.302)])
def test_the_prototype_of_the_bound_is_there_to_compare_with(rate: float, published: float) -> None:
    """research/autoscaling.md section 6: p95 with a tenth of videos; 100 output tokens, which it doesn't name, fit."""
    arrivals = synthetic(constant(rate), 180, seed=6, output_tokens=100).with_media(0.1, 6)
    outcome = play(Static(1), arrivals, World(engine=PROTOTYPE), length=180, preroll=0).outcome
    assert outcome.p95 == pytest.approx(published, rel=0.06)


def test_policies_see_the_fault_not_the_truth() -> None:
    class Watching:
        seen: list[int]

        def __init__(self) -> None:
            self.seen = []

        def replicas(self, now: float, reading: object, fleet: object) -> int:
            assert isinstance(reading, Scrape)
            self.seen.append(len(reading.engines))
            return 2

    policy = Watching()
    arrivals = synthetic(constant(5), 120)
    play(
        policy,
        arrivals,
        World(),
        length=120,
        initial=2,
        preroll=0,
        faults=Faults([Fault(FaultKind.EMPTY, 0, math.inf)]),
    )
    assert set(policy.seen) == {0}
