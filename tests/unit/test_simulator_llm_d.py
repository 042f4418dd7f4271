"""llm-d's V2 and its guide's formula on their sources' own examples; an oracle, and the rule without its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from gemma_operator.scaling.counters import EngineCounters, Missing, MissingReason, Scrape
from gemma_operator.scaling.headroom import headroom
from gemma_operator.scaling.memory import Learned, Memory
from gemma_operator.scaling.observation import Metrics, Observation
from gemma_operator.scaling.pool import Fleet, Member
from gemma_operator.simulation import llm_d
from gemma_operator.simulation.bound import Oracle, clairvoyant
from gemma_operator.simulation.fleet import Engines, World
from gemma_operator.simulation.llm_d import Replica
from gemma_operator.simulation.policies import Part, Product, Without
from gemma_operator.simulation.run import Outcome, Policy, play
from gemma_operator.workload.synthetic import constant, sine, synthetic

NOW = 1_700_000_000.0


def fleet(ready: int, desired: int | None = None) -> Fleet:
    members = tuple(Member(f"u{i}", NOW - 900, NOW - 600, NOW - 600) for i in range(ready))
    asked = ready if desired is None else desired
    return Fleet(asked, members, pending=asked - ready)


def scrape(at: float, answered: float, within: float, engines: int = 1, **counters: float) -> Scrape:
    edges = ((0.05, 0.0), (0.1, within), (0.3, within), (0.6, answered), (math.inf, answered))
    return Scrape(
        {f"u{i}": EngineCounters(f"u{i}", at, edges, running=1, **{"waiting": 0, **counters}) for i in range(engines)}
    )


@pytest.mark.parametrize(
    ("engine", "known", "capacity"),
    [
        # analyzer_test.go: tokens in use, KV cache, queue, mean prompt and answer; then the capacity it expects.
        (Replica(5000, 16000, 0, 100, 0), {}, 12800),
        (Replica(8000, 16000, 6, 100, 50), {}, 8000),
        (Replica(4000, 16000, 10, 100, 50), {}, 4000),
        (Replica(6000, 16000, 2, 100, 50), {"short": [8000.0]}, 8000),
        (Replica(6000, 16000, 2, 100, 600), {"short": [8000.0]}, 12800),
        (Replica(5000, 16000, 2, 500, 100), {}, 12800),
        (Replica(5000, 1_000_000, 0, 500, 100), {}, 140_800),
    ],
)
def test_v2_takes_the_tighter_of_memory_and_compute(
    engine: Replica, known: dict[str, list[float]], capacity: float
) -> None:
    policy = llm_d.SaturationV2(batched_tokens=8192, sequences=256)
    for bucket, sights in known.items():
        policy.history[bucket] = llm_d.deque(sights, maxlen=10)
    assert policy.capacity(engine) == capacity


@pytest.mark.parametrize(
    ("engines", "ready", "pending", "change"),
    [
        ([Replica(11_000, 16_000, 0, 100, 0)], 1, 0, 1),  # 11000 / 0.85 = 12941, over 12800
        ([Replica(10_000, 16_000, 0, 100, 0)], 1, 0, 0),  # between the thresholds
        ([Replica(11_000, 16_000, 0, 100, 0)], 1, 1, 0),  # what is pending counts as there
        ([Replica(12_000, 16_000, 200, 100, 0)], 1, 0, 3),  # a queue: 12000 is all it holds; (12000 + 20000) / 0.85
        ([Replica(1_000, 16_000, 0, 100, 0)] * 3, 3, 0, -2),  # 3000 / 0.70 = 4286 of 38400
        ([Replica(1_000, 16_000, 0, 100, 0)] * 2, 2, 1, -1),  # pending ones are no spare
    ],
)
def test_v2_plans_at_85_and_gives_up_under_70_per_cent(
    engines: list[Replica], ready: int, pending: int, change: int
) -> None:
    assert llm_d.SaturationV2().proposal(engines, ready, pending) == change


def test_v2_learns_lengths_from_counters_and_holds_without_samples() -> None:
    policy = llm_d.SaturationV2()
    assert policy.replicas(NOW, Scrape({}), fleet(3)) == 3
    assert policy.replicas(NOW, Missing(MissingReason.QUERY_FAILED, "down"), fleet(3)) == 3
    policy.replicas(NOW + 15, scrape(NOW + 15, 0, 0, prompt_tokens=0, generated_tokens=0), fleet(1))
    newest = scrape(NOW + 75, 100, 100, prompt_tokens=50_000, generated_tokens=2000, kv_usage=0.04)
    ended = {uid: replace(engine, finished={"stop": 100.0}) for uid, engine in newest.engines.items()}
    assert policy.replicas(NOW + 75, Scrape(ended), fleet(1)) == 2
    assert policy.lengths == (500.0, 20.0)


def test_kv_use_is_scraped_from_the_simulated_engine() -> None:
    engines = Engines(World(), synthetic(constant(20), 60, seed=1, output_tokens=400), 1)
    engines.advance(60)
    (sample,) = engines.scrape().engines.values()
    assert 0 < (sample.kv_usage or 0) < 0.1
    assert (sample.kv_usage or 0) * 1_000_000 == pytest.approx(sample.running * 700, rel=0.3)


@pytest.mark.parametrize(
    ("signal", "provisioned", "ready", "wanted"),
    [
        (1.1, 3, 3, 6),  # twice the threshold: twice the replicas
        (1.1, 6, 3, 6),  # half of them still start: the ask is covered
        (1.1, 6, 4, 8),
        (2.0, 3, 3, 11),  # the clamp
        (0.55, 5, 5, 5),
        (0.45, 5, 5, 5),  # the band
        (0.2, 6, 6, 3),
        (0.2, 6, 3, 3),  # no credit on the way down
        (0.39, 6, 6, 6),
        (0.0, 4, 4, 0),
    ],
)
def test_the_guides_formula(signal: float, provisioned: int, ready: int, wanted: int) -> None:
    assert llm_d.SloGuide().proposal(signal, provisioned, ready) == wanted


def test_the_guide_bursts_up_and_walks_down() -> None:
    """Up after 30 s to at most twice or 4 more in a minute; down by one in two minutes, after 180 s."""
    policy, path, now = llm_d.SloGuide(), [2], NOW
    bad = good = 0.0
    for tick in range(90):
        now += 15
        good, bad = (good, bad + 30) if 12 <= tick < 22 else (good + 300, bad)
        path.append(policy.replicas(now, scrape(now, good + bad, good, path[-1]), fleet(path[-1])))
    assert set(path[:15]) == {2}, "the least of 30 s is still the old one"
    assert all(path[i + 4] <= max(2 * path[i], path[i] + 4) for i in range(len(path) - 4))
    assert max(path) >= 12
    falls = [index for index in range(len(path) - 1) if path[index + 1] < path[index]]
    assert len(falls) > 3
    assert {path[i] - path[i + 1] for i in falls} == {1}
    assert all(later - earlier >= 8 for earlier, later in pairwise(falls)), "two minutes are eight ticks"


DAY = synthetic(sine(20, 60, 1500), 1500, seed=3, output_tokens=20).with_media(0.1, 3)


def played(make: Callable[[], Policy], arrivals: object = DAY, length: float = 1500.0) -> Outcome:
    return play(make(), arrivals, World(seed=1), length=length, initial=2, preroll=0.0).outcome  # type: ignore[arg-type]


def test_who_knows_the_next_cold_start_is_near_the_bound_and_not_under_it() -> None:
    oracle = played(lambda: Oracle(DAY, 1500.0, World(), most=4))
    bound = clairvoyant(DAY, 1500.0, World(), most=4)
    assert oracle.attainment > 0.95
    assert 0.98 < oracle.gpu_hours / bound.gpu_hours(oracle.attainment) < 1.6


def test_an_oracle_that_cannot_hold_the_slo_takes_all_there_is() -> None:
    oracle = Oracle(synthetic(constant(200), 60), 60.0, World(), most=2)
    assert set(oracle.needed.tolist()) == {2}


def test_each_part_can_be_left_out() -> None:
    seen = Observation(Metrics.FULL, waiting=50, growth=2.0, refused=1.0)
    assert Without(Part.QUEUE).look(seen) == replace(seen, waiting=0.0)
    assert Without(Part.ARRIVALS).look(seen) == replace(seen, growth=0.0, refused=0.0)
    for part in (Part.CORRECTION, Part.HEADROOM):
        policy = Without(part)
        policy.memory = Memory(Learned(correction=0.6, rises=((100, 50.0),), heights=((150, 50.0),)))
        assert policy.look(seen) == seen
        kept = policy.memory.learned
        assert (kept.correction == 1.0) is (part is Part.CORRECTION)
        assert (headroom(kept.rises, kept.heights, 1.0, kept.chance) == 0.0) is (part is Part.HEADROOM)


def test_without_headroom_less_is_kept() -> None:
    whole, without = played(Product), played(lambda: Without(Part.HEADROOM))
    assert without.gpu_hours < whole.gpu_hours
    assert without.attainment < whole.attainment
