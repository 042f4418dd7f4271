"""What the live children of a GemmaServing say, pool by pool. Pure: it is given the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gemma_operator.desired.names import POOL

Object = Mapping[str, Any]

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_MESSAGE_LENGTH = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """Why engines of a pool don't come up. `terminal`: a person has to act."""

    reason: str
    message: str
    terminal: bool


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool as it is: engines asked for, Ready, of the newest and of older revisions; UIDs of Ready Pods; what hinders the rest."""

    exists: bool = False
    desired: int = 0
    ready: int = 0
    updated: int = 0
    outdated: int = 0
    settled: bool = False
    ready_uids: frozenset[str] = frozenset()
    problem: Problem | None = None

    @property
    def rolling_out(self) -> bool:
        """True while engines of an older revision are there, or the newest spec has not been looked at."""
        return not self.settled or self.outdated > 0


def observe(deployments: Iterable[Object], pods: Iterable[Object]) -> dict[str, PoolState]:
    """Pool name -> its state."""
    by_pool: dict[str, list[Object]] = {}
    for pod in pods:
        # A Pod that failed as a whole (evicted, refused by its node) is replaced by another.
        if not pod["metadata"].get("deletionTimestamp") and pod.get("status", {}).get("phase") != "Failed":
            by_pool.setdefault(pod["metadata"].get("labels", {}).get(POOL, ""), []).append(pod)
    states = {}
    for deployment in deployments:
        pool = deployment["metadata"].get("labels", {}).get(POOL, "")
        states[pool] = _pool_state(deployment, by_pool.get(pool, []))
    return states


def _pool_state(deployment: Object, pods: list[Object]) -> PoolState:
    status = deployment.get("status", {})
    return PoolState(
        exists=True,
        desired=deployment["spec"].get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        outdated=status.get("replicas", 0) - status.get("updatedReplicas", 0),
        settled=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
        ready_uids=frozenset(pod["metadata"]["uid"] for pod in pods if _is_ready(pod)),
        # A Pod says more than its Deployment, which only knows that time is up.
        problem=_worst([*(_pod_problem(pod) for pod in pods if not _is_ready(pod)), _deployment_problem(status)]),
    )


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _deployment_problem(status: Mapping[str, Any]) -> Problem | None:
    for condition in status.get("conditions", []):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return Problem("PodsRefused", _short(condition.get("message", "")), terminal=True)
        if condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return Problem("ProgressDeadlineExceeded", _short(condition.get("message", "")), terminal=True)
    return None


def _pod_problem(pod: Object) -> Problem | None:
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if problem := _container_problem(name, container):
            return problem
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Problem("Unschedulable", _short(f"Pod {name}: {condition.get('message', '')}"), terminal=False)
    return None


def _container_problem(pod: str, container: Mapping[str, Any]) -> Problem | None:
    waiting = container.get("state", {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULL:
        return Problem(
            "ImagePullFailed",
            _short(f"Pod {pod} can't pull image {container.get('image')}: {message or reason}"),
            terminal=True,
        )
    if reason in _CONFIG:
        return Problem(
            "PodConfigError", _short(f"Pod {pod} can't start its container: {message or reason}"), terminal=True
        )
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    if not ended or (ended.get("exitCode") == 0 and reason != "CrashLoopBackOff"):
        return None
    # One crash may mend itself by the restart; only a crash that comes again needs a person.
    again = reason == "CrashLoopBackOff" or container.get("restartCount", 0) > 1
    if ended.get("reason") == "OOMKilled":
        return Problem(
            "OutOfMemory", f"Pod {pod}: the engine was killed for using more than its memory limit", terminal=again
        )
    said = _last_lines(ended.get("message", ""))
    return Problem(
        "EngineCrashed",
        _short(f"Pod {pod}: the engine exits with code {ended.get('exitCode')}: {said}"),
        terminal=again,
    )


def _worst(problems: Iterable[Problem | None]) -> Problem | None:
    found = [problem for problem in problems if problem]
    return next((problem for problem in found if problem.terminal), found[0] if found else None)


def _last_lines(text: str) -> str:
    """The line that says why, which a Python program prints last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-2:]) if lines else "it printed nothing"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 1]}…"
