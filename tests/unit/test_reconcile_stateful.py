"""The reconcile loop against a model: any order of specs, drift, failed writes, crashes and lost events ends at the same objects.

`GEMMA_FUZZ_SECONDS=3600` goes on with new courses for so long (docs/reliability.md); else some are tried, the same each time.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from kubernetes.client.exceptions import ApiException

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.cluster import Refused
from gemma_operator.desired import CHILD_KINDS, desired
from gemma_operator.desired.names import MANAGED_BY
from gemma_operator.metrics.engines import EngineSource
from gemma_operator.plan import in_place
from gemma_operator.reconcile import Leftovers, Reconciler
from gemma_operator.scaler import Scaler
from gemma_operator.settings import read_settings
from tests.unit.builders import body
from tests.unit.fake_cluster import FakeCluster

KEY = ("ns", "chat")
SECONDS = float(os.environ.get("GEMMA_FUZZ_SECONDS", "0"))
QUICK = (Phase.generate,)
LEAST = 2
"""Least engines of every pool here: a size below it was never asked for."""

replicas = st.tuples(st.integers(LEAST, 4), st.integers(0, 3)).map(lambda n: {"min": n[0], "max": n[0] + n[1]})
pool = st.fixed_dictionaries(
    {"replicas": replicas},
    optional={"maxNumSeqs": st.integers(1, 3), "class": st.sampled_from(["interactive", "batch"])},
)
pools = st.dictionaries(st.sampled_from(["interactive", "batch", "third"]), pool, min_size=1, max_size=3)
specs = st.fixed_dictionaries(
    {"pools": pools},
    optional={
        "rollout": st.fixed_dictionaries({}, optional={"paused": st.booleans(), "strategy": st.sampled_from(["Auto", "Replace"])}),
        "gpuBudget": st.integers(6, 30),
        "engine": st.sampled_from([{"version": "0.32.0"}, {"version": "9.9"}, {"image": "vllm/vllm-openai:v0.31.0"}]),
    },
)  # fmt: skip
ERRORS = (
    ApiException(status=409),
    ApiException(status=429),
    ApiException(status=500),
    ConnectionError("cut"),
    Refused("no"),
)


class Faulty(FakeCluster):
    """Fails as the course says: each entry of `failing` is (calls until then, error, whether it was done all the same)."""

    def __init__(self, *objects: Any) -> None:
        super().__init__(*objects)
        self.failing: list[tuple[int, Exception, bool]] = []

    async def _through(self, call: Any) -> Any:
        if not self.failing:
            return await call
        left, error, is_done = self.failing[0]
        if left:
            self.failing[0] = (left - 1, error, is_done)
            return await call
        self.failing.pop(0)
        if is_done:
            await call
        else:
            call.close()
        raise error

    async def get(self, *arguments: Any) -> Any:
        return await self._through(super().get(*arguments))

    async def list(self, *arguments: Any) -> Any:
        return await self._through(super().list(*arguments))

    async def apply(self, *arguments: Any, **options: Any) -> Any:
        return await self._through(super().apply(*arguments, **options))

    async def scale(self, *arguments: Any) -> Any:
        return await self._through(super().scale(*arguments))

    async def delete(self, *arguments: Any) -> Any:
        return await self._through(super().delete(*arguments))

    async def put_status(self, *arguments: Any) -> Any:
        return await self._through(super().put_status(*arguments))


class Course(RuleBasedStateMachine):
    """What users, the API server and chance may do, and what must have come of it once things are quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.lives = 0

    @initialize(spec=specs)
    def begin(self, spec: dict[str, Any]) -> None:
        self.cluster = Faulty()
        self.create(spec)
        self.crash()

    @rule()
    def crash(self) -> None:
        """The operator starts anew, and knows nothing."""
        scaler = Scaler(EngineSource(), read_settings({}))
        self.operator = Reconciler(self.cluster, scaler, read_settings({}))  # type: ignore[arg-type]

    @property
    def serving(self) -> Any:
        return self.cluster.objects.get(("GemmaServing", *KEY))

    @precondition(lambda self: self.serving is None)
    @rule(spec=specs)
    def create(self, spec: dict[str, Any]) -> None:
        """A serving, perhaps of the name of one that was deleted a moment ago."""
        self.lives += 1
        new = body(spec)
        new["metadata"]["uid"] = f"uid-{self.lives}"
        self.cluster.objects["GemmaServing", *KEY] = new

    @precondition(lambda self: self.serving is not None)
    @rule(spec=specs)
    def change(self, spec: dict[str, Any]) -> None:
        self.serving["spec"] = body(spec)["spec"]
        self.serving["metadata"]["generation"] += 1

    @precondition(lambda self: self.serving is not None)
    @rule()
    def remove(self) -> None:
        del self.cluster.objects["GemmaServing", *KEY]

    @rule(calls=st.integers(0, 12), error=st.sampled_from(ERRORS), is_done=st.booleans())
    def fail_soon(self, calls: int, error: Exception, is_done: bool) -> None:
        self.cluster.failing.append((calls, error, is_done))

    @rule(data=st.data())
    def drift(self, data: st.DataObject) -> None:
        """Somebody deletes a child, edits it, or scales it by hand."""
        children = sorted(key for key in self.cluster.objects if key[0] in CHILD_KINDS)
        if not children:
            return
        key = data.draw(st.sampled_from(children))
        how = data.draw(st.sampled_from(["delete", "edit", "scale"]))
        if how == "delete":
            del self.cluster.objects[key]
        elif how == "edit":
            self.cluster.objects[key]["spec"]["selector"] = {"matchLabels": {"somebody": "else"}}
        elif key[0] == "Deployment":
            self.cluster.objects[key]["spec"]["replicas"] = data.draw(st.integers(LEAST, 9))

    @rule()
    def up(self) -> None:
        """The controllers of Kubernetes: Pods as many as asked for, all Ready."""
        for key in [key for key in self.cluster.objects if key[0] == "Pod"]:
            del self.cluster.objects[key]
        self.cluster.all_up()

    @rule()
    def collect(self) -> None:
        """Garbage collection: children of a serving that is gone go too."""
        alive = {self.serving["metadata"]["uid"]} if self.serving else set()
        for key, found in list(self.cluster.objects.items()):
            owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences", [])}
            if owners and not owners & alive:
                del self.cluster.objects[key]

    @rule()
    def look(self) -> None:
        """A reconcile, as the queue runs it: what fails is tried again some time."""
        try:
            self.loop.run_until_complete(self.operator.reconcile(KEY))
        except Exception as error:
            if not isinstance(error, (*map(type, ERRORS), *EXPECTED)):
                raise

    @rule()
    def quiet(self) -> None:
        """No more faults: soon nothing is written, and all is as the spec says."""
        self.cluster.failing.clear()
        for _ in range(8):
            self.collect()
            self.up()
            self.cluster.writes.clear()
            self.loop.run_until_complete(self.operator.reconcile(KEY))
            if not self.cluster.writes:
                break
        assert self.cluster.writes == [], "it goes on writing"
        self.is_as_wanted()

    def is_as_wanted(self) -> None:
        children = {key: found for key, found in self.cluster.objects.items() if key[0] in CHILD_KINDS}
        if self.serving is None:
            assert children == {}, "left behind"
            return
        assert self.serving["status"]["observedGeneration"] == self.serving["metadata"]["generation"], (
            "a spec was missed"
        )
        conditions = {one["type"]: one["status"] for one in self.serving["status"]["conditions"]}
        if conditions["Valid"] == "False":
            return
        serving = parse(copy.deepcopy(self.serving))
        made = desired(serving, read_settings({}).defaults)
        want = {(child["kind"], "ns", child["metadata"]["name"]): child for child in (*made.children, *made.ways)}
        assert children.keys() == want.keys(), "one too many, or too few"
        for key, child in want.items():
            found = children[key]
            assert found["metadata"]["labels"][MANAGED_BY] == "gemma-operator"
            if key[0] != "Deployment":
                assert in_place(child["spec"], found["spec"])
                continue
            bounds = serving.spec.pools[child["metadata"]["labels"]["gemmaserving.dev/pool"]].replicas
            assert bounds.min <= found["spec"]["replicas"] <= bounds.ceiling
            if not serving.spec.rollout.paused:
                assert in_place(child["spec"]["template"], found["spec"]["template"])

    def teardown(self) -> None:
        if hasattr(self, "operator"):
            self.quiet()
            assert min(self.cluster.sizes, default=LEAST) >= LEAST, "a size that nobody asked for"
        self.loop.close()


EXPECTED = (InvalidServing, Leftovers)


def test_any_course_ends_as_the_spec_says() -> None:
    quick = settings(max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck), phases=QUICK)
    if not SECONDS:
        run_state_machine_as_test(Course, settings=quick)
        return
    end, rounds = time.monotonic() + SECONDS, 0
    long = settings(quick, max_examples=200, stateful_step_count=50, derandomize=False, database=None)
    while time.monotonic() < end:
        run_state_machine_as_test(Course, settings=long)
        rounds += 1
    print(f"\n{200 * rounds} courses of up to 50 steps")
