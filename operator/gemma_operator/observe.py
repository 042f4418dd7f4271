"""What the live children of a GemmaServing say, pool by pool. Pure: it is given the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gemma_operator.desired.names import POOL
from gemma_operator.engine.failures import diagnose, telling_line, unfit
from gemma_operator.engine.progress import Marks
from gemma_operator.pods import EnginePod, engine_pods
from gemma_operator.rollout import REVISION
from gemma_operator.startup import Startup, startup

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
    """One pool as it is: engines asked for, Ready, of the newest and of older revisions; its living Pods; what hinders them."""

    exists: bool = False
    desired: int = 0
    ready: int = 0
    updated: int = 0
    outdated: int = 0
    settled: bool = False
    engines: tuple[EnginePod, ...] = ()
    problem: Problem | None = None
    startup: Startup | None = None
    """How far the newest engine is in its start."""
    revision: int | None = None
    """Number of the Deployment's revision; None before its controller has looked at it."""
    replacing: bool = False
    """A rollout stops an old engine before it starts a new one."""

    @property
    def rolling_out(self) -> bool:
        """True while engines of an older revision are there, or the newest spec has not been looked at."""
        return not self.settled or self.outdated > 0

    @property
    def is_whole(self) -> bool:
        """True where every engine asked for is Ready and of the newest revision."""
        return not self.rolling_out and self.ready >= self.desired == self.updated


def observe(
    deployments: Iterable[Object],
    pods: Iterable[Object],
    marks: Mapping[str, Marks] = MappingProxyType({}),
    last_words: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, PoolState]:
    """Pool name -> its state. By Pod name, `marks`: what its log says of its start; `last_words`: the end of the log of an engine
    that died, or whose probe doesn't pass."""
    by_pool = pods_by_pool(pods)
    states = {}
    for deployment in deployments:
        pool = deployment["metadata"].get("labels", {}).get(POOL, "")
        states[pool] = _pool_state(deployment, by_pool.get(pool, []), marks, last_words)
    return states


def died_untold(pod: Object) -> bool:
    """True where its engine died and what the kubelet keeps doesn't say why.

    That is the last 2 KiB of the log (FallbackToLogsOnError). Where vLLM's core dies, the traceback of its API server alone is
    longer (seen with 0.32), and the cause stands above. Where it dies after the start, its API server ends with code 0 (0.32),
    for which the kubelet keeps nothing.
    """
    for container in pod.get("status", {}).get("containerStatuses", []):
        ended = _ended(container)
        if container.get("name") == "engine" and _died(container) and ended.get("reason") != "OOMKilled":
            return diagnose(ended.get("message", "")) is None
    return False


def is_unfit(pod: Object) -> bool:
    """True where its engine runs, isn't Ready, and is judged by the plugin's probe, which tells the log why."""
    containers = [c for c in pod.get("spec", {}).get("containers", []) if c.get("name") == "engine"]
    commands = [c.get("readinessProbe", {}).get("exec", {}).get("command", []) for c in containers]
    runs = any(
        c.get("name") == "engine" and "running" in c.get("state", {}) and not c.get("ready")
        for c in pod.get("status", {}).get("containerStatuses", [])
    )
    return runs and any("gemma_engine.probe" in command for command in commands)


def pods_by_pool(pods: Iterable[Object]) -> dict[str, list[Object]]:
    """Living Pods of each pool, newest first."""
    by_pool: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), reverse=True):
        # A Pod that failed as a whole (evicted, refused by its node) is replaced by another.
        if not pod["metadata"].get("deletionTimestamp") and pod.get("status", {}).get("phase") != "Failed":
            by_pool.setdefault(pod["metadata"].get("labels", {}).get(POOL, ""), []).append(pod)
    return by_pool


def was_restarted(pod: Object) -> bool:
    """True where the engine that died has a successor, which runs or is waited for."""
    containers = pod.get("status", {}).get("containerStatuses", [])
    return not any(c.get("name") == "engine" and c.get("state", {}).get("terminated") for c in containers)


def _pool_state(
    deployment: Object, pods: list[Object], marks: Mapping[str, Marks], last_words: Mapping[str, str]
) -> PoolState:
    status = deployment.get("status", {})
    revision = deployment["metadata"].get("annotations", {}).get(REVISION)
    return PoolState(
        exists=True,
        desired=deployment["spec"].get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        outdated=status.get("replicas", 0) - status.get("updatedReplicas", 0),
        settled=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
        engines=engine_pods(pods),
        # A Pod says more than its Deployment, which only knows that time is up.
        problem=_worst(
            [*(_pod_problem(pod, last_words) for pod in pods if not _is_ready(pod)), _deployment_problem(status)]
        ),
        startup=startup(pods[0], marks.get(pods[0]["metadata"]["name"], ())) if pods else None,
        revision=int(revision) if revision else None,
        replacing=deployment["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge") == 0,
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


def _pod_problem(pod: Object, last_words: Mapping[str, str]) -> Problem | None:
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if problem := _container_problem(name, container, last_words.get(name, "")):
            return problem
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Problem("Unschedulable", _short(f"Pod {name}: {condition.get('message', '')}"), terminal=False)
    return None


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a container ended: just now, or before its present start."""
    state, last = container.get("state", {}), container.get("lastState", {})
    return state.get("terminated") or last.get("terminated") or {}


def _died(container: Mapping[str, Any]) -> bool:
    """True where a container ended that should not have; an engine that did so twice, with whatever code."""
    ended = _ended(container)
    loops = container.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    twice = container.get("name") == "engine" and container.get("restartCount", 0) > 1
    return bool(ended) and (ended.get("exitCode") != 0 or loops or twice)


def _container_problem(pod: str, container: Mapping[str, Any], last_words: str) -> Problem | None:
    waiting = container.get("state", {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULL:
        return Problem(
            "ImagePullFailed",
            _short(f"Pod {pod} can't pull image {container.get('image')}: {message or reason}"),
            terminal=True,
        )
    if reason in _CONFIG:
        # The kubelet says which Secret or ConfigMap, and which key.
        missing = "not found" in message or "couldn't find key" in message
        return Problem(
            "ReferenceMissing" if missing else "PodConfigError",
            _short(f"Pod {pod} can't start its container: {message or reason}"),
            terminal=True,
        )
    ended, words = _ended(container), last_words if container.get("name") == "engine" else ""
    # One crash may mend itself by the restart; only a crash that comes again needs a person.
    again = reason == "CrashLoopBackOff" or container.get("restartCount", 0) > 1
    if (why := unfit(words)) and not (ended and diagnose(words)):
        return Problem("EngineUnfit", _short(f"Pod {pod} gets no requests: {why}"), terminal=again)
    if not _died(container):
        return None
    if ended.get("reason") == "OOMKilled":
        said = (
            f"Pod {pod}: {container.get('name', 'a container')} was killed for using more than its memory "
            "limit; raise resources.limits.memory"
        )
        return Problem("OutOfMemory", said, terminal=again)
    words = words or ended.get("message", "")
    code = f"Pod {pod}: {container.get('name', 'a container')} exits with code {ended.get('exitCode')}"
    if known := diagnose(words):
        said = f"{code}: {known.advice}. It said: {telling_line(words)}"
        return Problem(known.reason, _short(said), terminal=again or not known.passing)
    return Problem("EngineCrashed", _short(f"{code}: {telling_line(words)}"), terminal=again)


def _worst(problems: Iterable[Problem | None]) -> Problem | None:
    found = [problem for problem in problems if problem]
    return next((problem for problem in found if problem.terminal), found[0] if found else None)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 1]}…"
