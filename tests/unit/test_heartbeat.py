"""An engine that holds requests and doesn't get on: found, named, and restarted when it is its turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.scaling.heartbeat import COOL_SECONDS, Beat, Hung, follow, may_restart
from gemma_operator.scaling.pool import Fleet
from tests.support.scaling import START, counters, fleet
from tests.support.scripted_prometheus import ScriptedPrometheus, scripted_prometheus
from tests.unit.test_scaler_reconcile import NAME, World

STEP = 15.0
LONG = 13 * STEP


def stands(*samples: dict[str, Any]) -> float:
    """Seconds that an engine has stood still after samples of 15 s each."""
    beats: dict[str, Beat] = {}
    for number, given_ in enumerate(samples):
        at = START + number * STEP
        sample = replace(counters("a", at, 100, running=3.0, kv_usage=0.25), **given_)
        beats = follow(beats, {"a": sample}, at)
    return beats["a"].seconds if "a" in beats else 0.0


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param({}, LONG, id="requests run, and nothing moves"),
        pytest.param({"running": 0.0, "waiting": 9.0}, LONG, id="requests wait, and none runs"),
        pytest.param({"waiting": 90.0}, LONG, id="that more come is no progress"),
        pytest.param({"running": 0.0}, 0, id="nothing to do"),
        pytest.param({"generated_tokens": 1001.0}, 0, id="a token"),
        pytest.param({"finished": {"stop": 100, "abort": 1}}, 0, id="a request ended"),
        pytest.param({"kv_usage": 0.26}, 0, id="a long prompt goes in"),
        pytest.param({"started_at": START}, 0, id="another process"),
        pytest.param({"answered": 1.0}, LONG, id="that another is refused is no progress"),
    ],
)
def test_an_engine_hangs_while_requests_are_in_it_and_nothing_moves(last: dict[str, Any], expected: float) -> None:
    assert stands(*[{}] * 13, last) == expected


@pytest.mark.parametrize(
    ("unanswered", "expected"),
    [
        pytest.param([0.0] * 14, 0, id="idle"),
        pytest.param([0.0, *[1.0] * 13], LONG, id="hangs in its first step"),
        pytest.param([1.0] * 13 + [0.0], 0, id="the client gave up, and none is left"),
        pytest.param([None] * 14, 0, id="without the plugin nobody knows"),
    ],
)
def test_requests_that_no_step_told_of_count(unanswered: list[float | None], expected: float) -> None:
    """vLLM's own gauges stand at what the last step left: none."""
    idle = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0, "answered": 7.0}
    assert stands(*[{**idle, "unanswered": now} for now in unanswered]) == expected


def test_an_idle_engine_that_answers_without_a_step_does_not_hang() -> None:
    """Requests that are refused, one after the other: there is always one, and each gets an answer."""
    idle = {"running": 0.0, "waiting": 0.0, "unanswered": 1.0}
    assert stands(*[{**idle, "answered": float(n)} for n in range(14)]) == 0


def test_an_engine_that_exports_little_is_judged_by_what_there_is() -> None:
    little = {"generated_tokens": None, "prompt_tokens": None, "kv_usage": None, "finished": {}}
    assert stands(*[little] * 14) == LONG


def test_what_is_not_seen_does_not_hang() -> None:
    sample = counters("a", START, 100, running=3.0)
    beats = follow({}, {"a": sample}, START)
    assert follow(beats, {"a": sample}, START + 30)["a"].seconds == 0  # the same scrape again
    assert follow(beats, {}, START + 30) != {}  # one reading failed
    assert follow(beats, {}, START + 60) == {}
    late = follow(beats, {"a": replace(sample, at=START + 900)}, START + 900)
    assert late["a"].seconds == 0


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_time_counts_from_the_last_move(moves: list[bool]) -> None:
    done = 0.0
    samples = []
    for moved in moves:
        done += moved
        samples.append({"generated_tokens": done})
    still = next((n for n, moved in enumerate(reversed(moves)) if moved), len(moves) - 1)
    assert stands(*samples) == still * STEP


OLD, NEW = Hung("u1", "chat-1", START), Hung("u2", "chat-2", START + 60)


@pytest.mark.parametrize(
    ("hung", "fleets", "since", "turn"),
    [
        pytest.param([NEW, OLD], [fleet(2), fleet(1)], COOL_SECONDS, OLD, id="the longest first"),
        pytest.param([NEW, OLD], [fleet(2)], COOL_SECONDS - 1, None, id="too soon after the last"),
        pytest.param([], [fleet(2)], COOL_SECONDS, None, id="none hangs"),
        pytest.param([OLD], [fleet(2), fleet(0, 1)], COOL_SECONDS, None, id="an engine of another pool starts"),
        pytest.param([OLD], [Fleet(2, fleet(1).members)], COOL_SECONDS, None, id="a Pod is not even made"),
        pytest.param([OLD], [fleet(1, 2, unschedulable=1)], COOL_SECONDS, OLD, id="another has no node: that may last"),
    ],
)
def test_one_engine_at_a_time(hung: list[Hung], fleets: list[Fleet], since: float, turn: Hung | None) -> None:
    assert may_restart(hung, fleets, START, START + since) == turn


@pytest.fixture
def prometheus() -> Iterator[ScriptedPrometheus]:
    with scripted_prometheus() as server:
        yield server


class Hanging(World):
    """Engines of a pool of three; those in `still` count nothing more."""

    def __init__(self, prometheus: ScriptedPrometheus, **heartbeat: Any) -> None:
        super().__init__(prometheus, minimum=3, maximum=3)
        self.still: set[str] = set()
        self.held: dict[str, float] = {}
        """What such an engine says of the requests in it."""
        self.cluster.objects["GemmaServing", "ns", "chat"]["spec"]["heartbeat"] = heartbeat
        prometheus.distort = self._stop

    def _stop(self, engines: list[Any]) -> list[Any]:
        return [replace(e, good=70, prompt_tokens=700, **self.held) if e.pod_uid in self.still else e for e in engines]

    def replace_evicted(self) -> list[str]:
        """Names of the Pods that went; others with new UIDs come, which work."""
        gone = [name for verb, _, name in self.cluster.writes if verb == "evict"]
        self.still -= set(gone)
        return gone

    @property
    def pods(self) -> list[str]:
        return sorted(name for kind, _, name in self.cluster.objects if kind == "Pod")

    @property
    def message(self) -> str:
        conditions = self.cluster.objects["GemmaServing", "ns", "chat"]["status"]["conditions"]
        return str(next(c["message"] for c in conditions if c["type"] == "EnginesProgressing"))


async def started(prometheus: ScriptedPrometheus, **heartbeat: Any) -> Hanging:
    world = Hanging(prometheus, **heartbeat)
    await world.start(3)
    await world.tick(6)
    assert world.condition("EnginesProgressing") == "True AsExpected"
    return world


async def test_a_hung_engine_is_named_and_left_alone(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus)
    world.still = {f"{NAME}-1"}
    await world.tick(10)
    assert world.condition("EnginesProgressing") == "True AsExpected"
    await world.tick(6)
    assert world.condition("EnginesProgressing") == "False EngineHung"
    assert f"Pod {NAME}-1 of pool interactive since 20" in world.message
    assert f"{NAME}-0" not in world.message
    told = [event for event in world.cluster.events if "EnginesProgressing is False" in event[2]]
    before = len(world.cluster.writes)
    await world.tick(20)
    assert len(told) == 1
    assert {verb for verb, _, _ in world.cluster.writes[before:]} <= {"status"}
    assert world.pods == [f"{NAME}-{n}" for n in range(3)]
    world.still = set()
    await world.tick(2)
    assert world.condition("EnginesProgressing") == "True AsExpected"


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"running": 0, "unanswered": 2}, "False EngineHung"),
        ({"running": 0, "unanswered": 0}, "True AsExpected"),
        ({"running": 0}, "True AsExpected"),
    ],
    ids=["a request came after the last step", "none came", "without the plugin nobody knows"],
)
async def test_an_idle_engine_that_hangs_in_its_first_step_is_named(
    prometheus: ScriptedPrometheus, held: dict[str, float], told: str
) -> None:
    world = await started(prometheus)
    world.still, world.held = {f"{NAME}-1"}, held
    await world.tick(16)
    assert world.condition("EnginesProgressing") == told
    assert (f"Pod {NAME}-1 of pool interactive since" in world.message) is (told == "False EngineHung")


async def test_all_hang_and_are_restarted_one_after_the_other(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.still = {f"{NAME}-{n}" for n in range(3)}
    seen = []
    for _ in range(int(3 * COOL_SECONDS / STEP)):
        await world.tick()
        seen.append(len(world.replace_evicted()))
    assert seen[-1] == 3
    turns = [seen.index(number) * STEP for number in (1, 2, 3)]
    assert min(turns[1] - turns[0], turns[2] - turns[1]) >= COOL_SECONDS
    assert world.condition("EnginesProgressing") == "True AsExpected"
    assert [reason for _, reason, _ in world.cluster.events].count("EngineRestarted") == 3


async def test_the_wait_between_restarts_outlives_the_operator(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.still = {f"{NAME}-{n}" for n in range(2)}
    turns: list[float] = []
    follow_engines = world.follow

    def follow() -> None:
        """The operator goes right after the reconcile that evicted."""
        follow_engines()
        if len(world.replace_evicted()) > len(turns):
            turns.append(world.now)
            world.restart()

    world.follow = follow  # type: ignore[method-assign]
    await world.tick(int(2 * COOL_SECONDS / STEP))
    first, second = turns
    assert second - first >= COOL_SECONDS


async def test_the_wait_is_kept_where_another_operator_restarted_one(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.pool["lastRestart"] = datetime.fromtimestamp(world.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.still = {f"{NAME}-0"}
    await world.tick(int(COOL_SECONDS / STEP) - 1)
    assert world.condition("EnginesProgressing") == "False EngineHung"
    assert world.replace_evicted() == []
    await world.tick(2)
    assert world.replace_evicted() == [f"{NAME}-0"]


async def test_a_disruption_budget_that_says_no_is_asked_again(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.still = {f"{NAME}-2"}
    world.cluster.refuse["Eviction"] = "Cannot evict pod as it would violate the pod's disruption budget."
    await world.tick(10)
    assert world.condition("EnginesProgressing") == "False EngineHung"
    assert world.message.endswith("once it may: Cannot evict pod as it would violate the pod's disruption budget.")
    before = len(world.cluster.writes)
    await world.tick(2)
    assert world.cluster.writes[before:] == [], "it is said once"
    assert world.replace_evicted() == []
    world.cluster.refuse.clear()
    await world.tick(2)
    assert world.replace_evicted() == [f"{NAME}-2"]
    await world.tick(4)
    assert world.condition("EnginesProgressing") == "True AsExpected"


async def test_it_goes_though_the_api_server_refuses_the_newest_spec(prometheus: ScriptedPrometheus) -> None:
    """The last good state serves on, and has an engine that hangs."""
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.cluster.objects["GemmaServing", "ns", "chat"]["spec"]["engine"] = {"image": "vllm/vllm-openai:v0.31.0"}
    world.cluster.refuse["Deployment"] = "denied by a policy"
    world.still = {f"{NAME}-2"}
    await world.tick(10)
    assert world.condition("Stalled") == "True RefusedByApiServer"
    assert world.replace_evicted() == [f"{NAME}-2"]


async def test_an_engine_that_went_by_itself_is_not_told_as_evicted_and_costs_no_turn(
    prometheus: ScriptedPrometheus,
) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.still = {f"{NAME}-0"}
    evict, asked = world.cluster.evict, list[str]()

    async def gone_first(namespace: str, pod: str, uid: str) -> bool:
        asked.append(pod)
        return len(asked) > 1 and await evict(namespace, pod, uid)

    world.cluster.evict = gone_first  # type: ignore[method-assign]
    await world.tick(10)
    assert len(asked) == 2
    assert world.replace_evicted() == [f"{NAME}-0"]
    assert [reason for _, reason, _ in world.cluster.events].count("EngineRestarted") == 1


async def test_a_blind_operator_restarts_nothing(prometheus: ScriptedPrometheus) -> None:
    world = await started(prometheus, afterSeconds=60, restart=True)
    world.still = {f"{NAME}-0"}
    await world.tick(2)
    prometheus.engines, engines = [], prometheus.engines
    world.follow = lambda: None  # type: ignore[method-assign]
    await world.tick(20)
    assert world.condition("EnginesProgressing") == "Unknown MetricsMissing"
    assert world.replace_evicted() == []
    prometheus.engines = engines
