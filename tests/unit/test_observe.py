"""What live Deployments and Pods say: sizes, rollouts, and why engines don't come up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.observe import PoolState, Problem, died_untold, observe
from tests.unit.builders import deployment, pod, waiting
from tests.unit.test_failures import CORE, GATED, KEPT_BYTES, KV_SHORT, UNREACHABLE

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
        pytest.param(waiting("CreateContainerConfigError", 'secret "hub" not found'), "ReferenceMissing",
                     'Pod p1 can\'t start its container: secret "hub" not found', id="G7 no Secret"),
        pytest.param(waiting("CreateContainerConfigError", "couldn't find key token in Secret ns/hub"), "ReferenceMissing",
                     "couldn't find key token in Secret ns/hub", id="G7 no key"),
        (waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), "PodConfigError", "will run as root"),
        (waiting("RunContainerError", "failed to create containerd task"), "PodConfigError", "failed to create containerd task"),
        pytest.param(waiting("CrashLoopBackOff", "back-off 10s", lastState=ended(2, USAGE)), "ArgumentRefused",
                     "exits with code 2: this vLLM doesn't take these arguments: correct extraArgs, or engine.version where the image is another "
                     "version than its tag says. It said: api_server.py: error: unrecognized arguments: --no-such-flag", id="A8"),
        (waiting("CrashLoopBackOff", lastState=ended(1, "ValueError: no")), "EngineCrashed", "exits with code 1: ValueError: no"),
        (waiting("CrashLoopBackOff", lastState=ended(1)), "EngineCrashed", "code 1: it printed nothing"),
        (waiting("CrashLoopBackOff", lastState=ended(0)), "EngineCrashed", "code 0"),
        (waiting("CrashLoopBackOff", lastState=ended(137, reason="OOMKilled")), "OutOfMemory", "more than its memory limit"),
        ({"name": "engine", "restartCount": 2, "state": {"running": {}}, "lastState": ended(2, USAGE)}, "ArgumentRefused", "unrecognized"),
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
        "EngineCrashed", "Pod p1: engine exits with code 1: ValueError: no", terminal=False
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


@pytest.mark.parametrize(
    ("said", "terminal"),
    [(GATED, True), (KV_SHORT, True), (UNREACHABLE, False)],
    ids=["G7 a licence", "A11 too little memory", "a network that may come back"],
)
def test_what_no_restart_can_mend_waits_for_a_person_at_once(said: str, terminal: bool) -> None:
    found = problem({"name": "engine", "restartCount": 0, "state": ended(1, said)})
    assert found
    assert found.terminal is terminal
    again = problem(waiting("CrashLoopBackOff", lastState=ended(1, said)))
    assert again
    assert again.terminal


def test_a_dead_core_is_diagnosed_from_the_log_where_the_termination_message_is_too_short() -> None:
    dead = pod(container=waiting("CrashLoopBackOff", lastState=ended(1, CORE[-KEPT_BYTES:])))
    assert died_untold(dead)
    blind = observe([deployment(readyReplicas=0)], [dead])["interactive"].problem
    assert blind
    assert blind.reason == "EngineCrashed"
    told = observe([deployment(readyReplicas=0)], [dead], last_words={"p1": CORE})["interactive"].problem
    assert told
    assert told.reason == "KvCacheTooSmall"
    assert "less than requested memory for kv" in told.message


def test_a_core_that_dies_after_the_start_is_told_though_its_server_ends_with_code_0() -> None:
    """As vLLM 0.32 does; the kubelet keeps no words of such an end, and the log is read."""
    dead = pod(container={"name": "engine", "restartCount": 3, "state": {"running": {}}, "lastState": ended(0)})
    found = observe([deployment(readyReplicas=0)], [dead], last_words={"p1": CORE})["interactive"].problem
    assert found
    assert found.reason == "KvCacheTooSmall"
    assert "exits with code 0" in found.message
    init = pod(container={"name": "fetch", "restartCount": 3, "state": ended(0)})
    assert observe([deployment(readyReplicas=0)], [init])["interactive"].problem is None


@pytest.mark.parametrize(
    ("container", "untold"),
    [
        ({"name": "engine", "state": ended(1, "ValueError: no")}, True),
        ({"name": "engine", "state": ended(1)}, True),
        ({"name": "engine", "state": {"running": {}}, "lastState": ended(1, "no")}, True),
        ({"name": "engine", "state": ended(1, GATED)}, False),
        ({"name": "engine", "state": ended(137, reason="OOMKilled")}, False),
        ({"name": "engine", "state": ended(0)}, False),
        ({"name": "engine", "restartCount": 2, "state": {"running": {}}, "lastState": ended(0)}, True),
        ({"name": "engine", "state": {"running": {}}}, False),
        ({"name": "proxy", "state": ended(1, "no")}, False),
        (None, False),
    ],
    ids=[
        "unknown words", "no words", "before this start", "known words", "killed", "ended well", "ended well, again", "runs",
        "a sidecar", "no container",
    ],
)  # fmt: skip
def test_a_log_is_read_only_where_it_may_say_more(container: dict[str, Any] | None, untold: bool) -> None:
    assert died_untold(pod(container=container)) is untold


def test_the_words_of_an_engine_are_not_taken_for_those_of_a_sidecar() -> None:
    crashed = pod(container={"name": "proxy", "state": ended(1, "proxy: no route")})
    found = observe([deployment(readyReplicas=0)], [crashed], last_words={"p1": CORE})["interactive"].problem
    assert found
    assert found.message == "Pod p1: proxy exits with code 1: proxy: no route"


def test_an_init_container_that_hangs_is_told_when_its_time_is_up() -> None:
    """G10: a download that stands still says nothing of itself; the Deployment's deadline does."""
    hanging: dict[str, Any] = {"initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}]}
    assert state(pod(**hanging), readyReplicas=0).problem is None
    late = state(pod(**hanging), conditions=LATE, readyReplicas=0).problem
    assert late == Problem("ProgressDeadlineExceeded", "timed out", terminal=True)


def test_a_failing_init_container_is_told_by_its_name() -> None:
    crashed = {"name": "fetch", "state": ended(1, "no bucket")}
    found = state(pod(initContainerStatuses=[crashed]), readyReplicas=0).problem
    assert found
    assert found.message == "Pod p1: fetch exits with code 1: no bucket"


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
    assert [engine.uid for engine in found.engines if engine.ready_at is not None] == ["uid-p1"]
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
    assert [engine.uid for engine in states["batch"].engines if engine.ready_at is not None] == ["uid-b1"]


@given(st.text(max_size=2000))
def test_messages_stay_short_and_on_one_line(text: str) -> None:
    found = problem(waiting("CrashLoopBackOff", lastState=ended(1, text)))
    assert found
    assert len(found.message) <= 400
    assert len(found.message.splitlines()) == 1
