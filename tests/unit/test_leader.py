"""Never two operators in one namespace, and always one where there can be: leaders in virtual time over one store of Leases."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator import lease as l
from gemma_operator.leader import Gate, Leader
from gemma_operator.lease import StoodDown
from gemma_operator.reconcile import Reconciler
from gemma_operator.settings import read_settings
from gemma_operator.workqueue import WorkQueue
from tests.support.leases import Client, Operator, Store, until
from tests.support.virtual_time import run
from tests.unit.test_reconcile import World


def test_the_first_of_two_replicas_acts_at_once_and_its_death_is_taken_over() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "sys/op", "a")
        assert await until(lambda: first.serves("x"), 5) < 2
        second = Operator(store, "sys/op", "b")
        await asyncio.sleep(60)
        assert not second.serves("x")
        first.kill()
        assert await until(lambda: second.serves("x"), 60) <= 20, "issue 10: a new leader acts within 20 s"

    run(story)


def test_a_replica_that_is_stopped_hands_over_at_once() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "sys/op", "a")
        await until(lambda: first.serves("x"), 5)
        second = Operator(store, "sys/op", "b")
        await asyncio.sleep(5)
        await first.stop()
        assert await until(lambda: second.serves("x"), 60) <= 2 * l.LOOK_SECONDS

    run(story)


def test_a_container_that_is_started_again_in_its_pod_goes_on_at_once() -> None:
    async def story() -> None:
        store = Store()
        before = Operator(store, "sys/op", "a", ("x",))
        await until(lambda: before.serves("x"), 30)
        before.kill()
        again = Operator(store, "sys/op", "a", ("x",))
        assert await until(lambda: again.serves("x"), 60) < 2

    run(story)


def test_one_that_is_cut_off_stops_before_another_starts_and_takes_part_again_later() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "sys/op", "a")
        await until(lambda: first.serves("x"), 5)
        second = Operator(store, "sys/op", "b")
        await asyncio.sleep(10)
        first.client.is_cut = True
        until_stopped = await until(lambda: not first.serves("x"), 60)
        assert not second.serves("x")
        assert until_stopped <= l.DEADLINE_SECONDS
        await until(lambda: second.serves("x"), 20)
        first.client.is_cut = False
        await asyncio.sleep(60)
        assert not first.serves("x")
        await second.stop()
        await until(lambda: first.serves("x"), 20)

    run(story)


def test_a_slow_api_server_takes_nobodys_part_away() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "sys/op", "a", ("x",))
        await until(lambda: first.serves("x"), 30)
        first.client.latency = 5.0
        second = Operator(store, "sys/op", "b", ("x",))
        second.client.latency = 5.0
        for _ in range(600):
            await asyncio.sleep(1)
            assert not second.serves("x")
        assert first.serves("x")

    run(story)


@pytest.mark.parametrize(
    "namespaces", [pytest.param((), id="both for the whole cluster"), pytest.param(("x",), id="one for its namespace")]
)
def test_requests_that_hang_and_arrive_in_the_end_do_not_make_two(namespaces: tuple[str, ...]) -> None:
    """The API server hangs for 10 to 30 s and then carries out what had been sent: renewals that somebody took for missed."""

    async def story(seed: int) -> None:
        luck = random.Random(seed)
        store = Store(luck=luck)
        wide = Operator(store, "sys/op", "a")
        await asyncio.sleep(luck.uniform(3, 13))
        other = Operator(store, "team/op", "a", namespaces)
        await asyncio.sleep(luck.uniform(25, 60))
        store.hangs_until = asyncio.get_running_loop().time() + luck.uniform(10, 30)
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert not (wide.serves("x") and other.serves("x"))
        assert wide.serves("x") or other.serves("x")

    for seed in range(60):
        run(lambda seed=seed: story(seed))  # type: ignore[misc]


def test_a_second_installation_for_the_whole_cluster_stands_aside_and_is_named() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "one/op", "a")
        await until(lambda: first.serves("x"), 30)
        second = Operator(store, "two/op", "a")
        await until(lambda: first.leader.rival("x") == "two/op", 30)
        await asyncio.sleep(120)
        assert first.serves("x")
        assert not second.serves("x")
        assert first.leader.rival("x") == "two/op", "still there"
        second.kill()
        await until(lambda: first.leader.rival("x") == "", 90)

    run(story)


@pytest.mark.parametrize("pod", ["a", "b"], ids=["its container is started again", "another Pod takes over"])
def test_the_note_of_an_installation_that_is_long_gone_is_not_believed_after_a_restart(pod: str) -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "one/op", "a")
        await until(lambda: first.serves("x"), 30)
        gone = Operator(store, "two/op", "a")
        await until(lambda: first.leader.rival("x") == "two/op", 30)
        gone.kill()
        await until(lambda: first.leader.rival("x") == "", 90)
        first.kill()
        again = Operator(store, "one/op", pod)
        for _ in range(240):
            await asyncio.sleep(0.5)
            assert again.leader.rival("x") == ""
        assert again.serves("x")
        Operator(store, "two/op", "a")
        await until(lambda: again.leader.rival("x") == "two/op", 30)

    run(story)


def test_when_the_first_installation_is_gone_the_second_acts() -> None:
    async def story() -> None:
        store = Store()
        first = Operator(store, "one/op", "a")
        await until(lambda: first.serves("x"), 30)
        second = Operator(store, "two/op", "a")
        await asyncio.sleep(20)
        await first.stop()
        await until(lambda: second.serves("x"), 30)

    run(story)


def test_the_whole_cluster_leaves_a_namespace_to_its_own_operator() -> None:
    async def story() -> None:
        store = Store()
        wide = Operator(store, "sys/op", "a")
        await until(lambda: wide.serves("x"), 30)
        own = Operator(store, "team/op", "a", ("x",))
        await until(lambda: own.serves("x"), 30)
        assert not wide.serves("x")
        assert wide.serves("y")
        await until(lambda: own.leader.rival("x") == "sys/op", 30)
        await own.stop()
        await until(lambda: wide.serves("x"), 60)

    run(story)


def test_two_installations_for_one_namespace_share_what_they_do_not_have_in_common() -> None:
    async def story() -> None:
        store = Store()
        one = Operator(store, "sys/one", "a", ("x", "y"))
        await until(lambda: one.serves("x") and one.serves("y"), 30)
        two = Operator(store, "sys/two", "a", ("y", "z"))
        await until(lambda: two.serves("z"), 30)
        assert not two.serves("y")
        await until(lambda: one.leader.rival("y") == "sys/two", 30)
        assert one.leader.rival("x") == ""

    run(story)


def test_an_operator_of_its_own_namespace_keeps_one_of_the_whole_cluster_out_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both need the Lease of one namespace."""

    async def story() -> None:
        store = Store()
        own = Operator(store, "sys/own", "a", ("sys",))
        await until(lambda: own.serves("sys"), 30)
        wide = Operator(store, "sys/wide", "a")
        await asyncio.sleep(60)
        assert not wide.serves("x")
        await own.stop()
        await until(lambda: wide.serves("x") and wide.serves("sys"), 30)

    run(story)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("sys/own acts for namespace sys, ")
    assert "acts nowhere; install it in another namespace" in line


def test_only_the_holder_writes_and_no_more_than_it_must() -> None:
    async def story() -> None:
        store = Store()
        operators = [Operator(store, "sys/op", "a"), Operator(store, "sys/op", "b")]
        await until(lambda: any(operator.serves("x") for operator in operators), 30)
        before = store.writes
        await asyncio.sleep(400)
        assert store.writes - before <= 400 / l.RENEW_SECONDS + 1

    run(story)


def test_without_the_right_to_leases_nothing_is_done_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        operator = Operator(Store(), "sys/op", "a", ("x",))
        operator.client.is_cut = True
        await asyncio.sleep(300)
        assert not operator.serves("x")

    run(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "the Lease gemmaserving.dev of x can't be had: 503 cut off"


def test_without_a_namespace_of_its_own_an_operator_acts_without_election() -> None:
    leader = Leader(Client(Store()), None, ())  # type: ignore[arg-type]
    assert leader.serves("x")
    assert leader.rival("x") == ""


STEPS = st.lists(
    st.tuples(
        st.floats(0.1, 25),
        st.sampled_from(["start", "kill", "stop", "cut", "heal", "slow", "quick"]),
        st.integers(0, 4),
    ),
    max_size=14,
)
KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("one/op", "a", ()),
    ("one/op", "b", ()),
    ("two/op", "a", ()),
    ("team/op", "a", ("x",)),
    ("team/op", "b", ("x",)),
)


@given(steps=STEPS)
@settings(max_examples=60)
def test_never_two_and_in_the_end_one(steps: list[tuple[float, str, int]]) -> None:
    async def story() -> None:
        store = Store()
        alive: dict[int, Operator] = {}

        def check() -> None:
            for namespace in ("x", "y"):
                acting = [number for number, operator in alive.items() if operator.serves(namespace)]
                assert len(acting) <= 1, (namespace, acting)

        for pause, action, number in steps:
            if action == "start" and number not in alive:
                alive[number] = Operator(store, *KINDS[number])
            elif action in ("kill", "stop") and number in alive:
                operator = alive.pop(number)
                if action == "stop" and not operator.client.is_cut:
                    await operator.stop()
                else:
                    operator.kill()
            elif number in alive:
                client = alive[number].client
                client.is_cut = {"cut": True, "heal": False}.get(action, client.is_cut)
                client.latency = {"slow": 4.0, "quick": 0.01}.get(action, client.latency)
            for _ in range(int(pause / 0.5) + 1):
                await asyncio.sleep(0.5)
                check()
        for operator in alive.values():
            operator.client.is_cut, operator.client.latency = False, 0.01
        for _ in range(200):
            await asyncio.sleep(0.5)
            check()
        if alive:
            assert any(operator.serves("x") for operator in alive.values())
        if set(alive) & {0, 1, 2}:
            assert any(operator.serves("y") for operator in alive.values())

    run(story)


async def test_keys_wait_at_the_gate_until_we_act() -> None:
    served: list[tuple[str, str]] = []
    forgotten: list[tuple[str, str]] = []

    class Part:
        acts = False

        def serves(self, _: str) -> bool:
            return self.acts

    async def reconcile(key: tuple[str, str]) -> float | None:
        served.append(key)
        if key[1] == "interrupted":
            raise StoodDown
        return 300

    part = Part()
    gate = Gate(part, reconcile, forgotten.append)  # type: ignore[arg-type]
    assert await gate.reconcile(("x", "a")) is None
    assert (served, forgotten) == ([], [("x", "a")])
    part.acts = True
    queue = WorkQueue(gate.reconcile)
    await gate.wake(queue)
    assert queue.depth == 1
    assert await gate.reconcile(("x", "a")) == 300
    assert await gate.reconcile(("x", "interrupted")) is None
    assert forgotten[-1] == ("x", "interrupted")


@pytest.mark.parametrize("pools", [{"interactive": {}}, {"interactive": {"replicas": {"min": 2, "max": 1}}}])
async def test_who_stands_aside_is_told_whatever_the_spec(pools: dict[str, Any]) -> None:
    world = World(pools)
    world.operator = Reconciler(world.cluster, world.scaler, read_settings({}), lambda _: "other/op")  # type: ignore[arg-type]
    await world.reconcile()
    assert world.condition("SoleOperator") == "False AnotherOperator"
    (said,) = [c["message"] for c in world.status["conditions"] if c["type"] == "SoleOperator"]
    assert said.startswith("The operator other/op watches this namespace too, and stands aside while this one acts:")
