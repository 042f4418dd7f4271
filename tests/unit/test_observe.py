"""What live Deployments and Pods say: sizes, rollouts, and why engines don't come up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.observe import PoolState, Problem, observe
from tests.unit.builders import deployment, pod, waiting

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}
USAGE = "usage: api_server.py [-h] [--headless]\n\napi_server.py: error: unrecognized arguments: --no-such-flag\n"


def state(*pods: dict[str, Any], **status: Any) -> PoolState:
    return observe([deployment(**status)], pods)["interactive"]


def problem(container: dict[str, Any]) -> Problem | None:
    return state(pod(container=container), readyReplicas=0).problem


def ended(exit_code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("container", "reason", "said"),
    [
        (waiting("ErrImagePull", 'failed to pull "vllm:v1": not found'), "ImagePullFailed", "Pod p1 can't pull image vllm:v1: failed to pull"),
        (waiting("ImagePullBackOff"), "ImagePullFailed", "Pod p1 can't pull image vllm:v1: ImagePullBackOff"),
        (waiting("InvalidImageName"), "ImagePullFailed", "InvalidImageName"),
        (waiting("ErrImageNeverPull"), "ImagePullFailed", "ErrImageNeverPull"),
        (waiting("CreateContainerConfigError", 'secret "hub" not found'), "PodConfigError", 'secret "hub" not found'),
        (waiting("CrashLoopBackOff", "back-off 10s", lastState=ended(2, USAGE)), "EngineCrashed",
         "exits with code 2: usage: api_server.py [-h] [--headless] | api_server.py: error: unrecognized arguments: --no-such-flag"),
        (waiting("CrashLoopBackOff", lastState=ended(1)), "EngineCrashed", "code 1: it printed nothing"),
        (waiting("CrashLoopBackOff", lastState=ended(0)), "EngineCrashed", "code 0"),
        (waiting("CrashLoopBackOff", lastState=ended(137, reason="OOMKilled")), "OutOfMemory", "more than its memory limit"),
        ({"name": "engine", "restartCount": 2, "state": {"running": {}}, "lastState": ended(2, USAGE)}, "EngineCrashed", "unrecognized"),
    ],
)  # fmt: skip
def test_a_failing_engine_says_what_a_person_has_to_mend(container: dict[str, Any], reason: str, said: str) -> None:
    found = problem(container)
    assert found
    assert found.reason == reason
    assert said in found.message
    assert found.terminal
    assert "\n" not in found.message


@pytest.mark.parametrize(
    "container",
    [
        {"name": "engine", "restartCount": 0, "state": ended(1, "ValueError: no")},
        {"name": "engine", "restartCount": 1, "state": {"running": {}}, "lastState": ended(1, "ValueError: no")},
    ],
    ids=["just now", "before this start"],
)
def test_a_first_crash_is_told_but_may_mend_itself(container: dict[str, Any]) -> None:
    assert problem(container) == Problem(
        "EngineCrashed", "Pod p1: the engine exits with code 1: ValueError: no", terminal=False
    )


@pytest.mark.parametrize(
    "container",
    [
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        {"name": "engine", "state": {"running": {}}},
        {"name": "init", "state": ended(0, reason="Completed")},
        {"name": "engine"},
    ],
)
def test_an_engine_that_is_on_its_way_is_no_problem(container: dict[str, Any]) -> None:
    assert problem(container) is None


def test_an_engine_without_a_node_waits_for_one_and_is_not_given_up() -> None:
    found = state(pod(conditions=[UNSCHEDULABLE]), readyReplicas=0).problem
    assert found == Problem("Unschedulable", f"Pod p1: {UNSCHEDULABLE['message']}", terminal=False)


def test_what_a_person_must_mend_comes_before_what_may_mend_itself() -> None:
    found = state(pod("p1", conditions=[UNSCHEDULABLE]), pod("p2", container=waiting("ErrImagePull"))).problem
    assert found
    assert found.reason == "ImagePullFailed"


def refused(message: str) -> list[dict[str, Any]]:
    return [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]


LATE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]


def test_pods_that_the_api_server_refuses_are_told() -> None:
    found = state(conditions=refused("exceeded quota: gpus"), readyReplicas=0).problem
    assert found == Problem("PodsRefused", "exceeded quota: gpus", terminal=True)


def test_a_pod_says_more_than_the_deployment_that_gave_up_on_it() -> None:
    found = state(pod(container=waiting("ErrImagePull")), conditions=LATE, readyReplicas=0).problem
    assert found
    assert found.reason == "ImagePullFailed"
    alone = state(conditions=LATE, readyReplicas=0).problem
    assert alone
    assert alone.reason == "ProgressDeadlineExceeded"


@pytest.mark.parametrize(
    "gone",
    [
        pod("p2", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, container=waiting("ErrImagePull")),
        pod("p2", phase="Failed", container={"name": "engine", "state": ended(137)}),
        pod("p2", ready=True, container={"name": "engine", "lastState": ended(2)}),
        pod("p2", pool="batch", container=waiting("ErrImagePull")),
    ],
    ids=["terminating", "evicted", "ready again", "of another pool"],
)
def test_pods_that_do_not_hinder_the_pool_are_no_problem(gone: dict[str, Any]) -> None:
    assert state(pod(ready=True), gone).problem is None


def test_only_ready_pods_that_stay_are_counted_by_uid() -> None:
    leaving = pod("p3", ready=True, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    found = state(pod("p1", ready=True), pod("p2"), leaving, desired=2, readyReplicas=1)
    assert found.ready_uids == {"uid-p1"}
    assert (found.desired, found.ready) == (2, 1)


@pytest.mark.parametrize(
    ("desired", "status", "rolling"),
    [
        (1, {}, False),
        (1, {"observedGeneration": 0}, True),
        (1, {"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1}, True),
        (1, {"replicas": 1, "updatedReplicas": 0, "readyReplicas": 1}, True),
        (3, {"replicas": 4, "updatedReplicas": 3, "readyReplicas": 3}, True),
        (5, {"replicas": 5, "updatedReplicas": 5, "readyReplicas": 1}, False),
        (5, {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}, False),
        (1, {"replicas": 5, "updatedReplicas": 5, "readyReplicas": 5}, False),
        (0, {"replicas": 0, "updatedReplicas": 0, "readyReplicas": 0}, False),
    ],
    ids=["settled", "not looked at yet", "one of one replaced", "none replaced yet", "the last old one leaves",
         "scaled up", "scaled up a moment ago", "scaled down", "none"],
)  # fmt: skip
def test_a_rollout_is_told_from_a_change_of_size(desired: int, status: dict[str, Any], rolling: bool) -> None:
    assert state(desired=desired, **status).rolling_out is rolling


def test_a_deployment_just_made_has_no_status_yet() -> None:
    found = {**deployment(), "status": {}}
    found["spec"] = {}
    assert observe([found], [])["interactive"] == PoolState(exists=True, desired=1)


def test_pools_are_told_apart() -> None:
    states = observe([deployment("interactive", 2), deployment("batch", 1)], [pod("b1", "batch", ready=True)])
    assert {name: found.desired for name, found in states.items()} == {"interactive": 2, "batch": 1}
    assert states["batch"].ready_uids == {"uid-b1"}


@given(st.text(max_size=2000))
def test_messages_stay_short_and_on_one_line(text: str) -> None:
    found = problem(waiting("CrashLoopBackOff", lastState=ended(1, text)))
    assert found
    assert len(found.message) <= 400
    assert len(found.message.splitlines()) == 1
