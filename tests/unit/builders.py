"""GemmaServings, and live objects as an API server would show them, for the unit tests."""

from __future__ import annotations

import copy
from typing import Any

from gemma_operator.api.parse import parse
from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import Defaults, desired
from gemma_operator.desired.names import POOL, selector
from gemma_operator.plan import stamp
from gemma_operator.rollout import settle

MODEL = {"model": {"id": "google/gemma-4-E4B-it"}}
DEFAULTS = Defaults(engine_image="vllm/vllm-openai:v0.32.0")
OPERATOR, SCALER = "gemma-operator", "gemma-operator-scaler"


def body(spec: Any = None, name: str = "chat", generation: int = 1, **more: Any) -> dict[str, Any]:
    """A GemmaServing as the API server shows it; `spec` is laid over a minimal one."""
    meta = {"namespace": "ns", "name": name, "uid": f"uid-of-{name}", "generation": generation}
    full = {**MODEL, **spec} if isinstance(spec, dict) else MODEL if spec is None else spec
    return {"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": meta, "spec": full, **more}


def serving(pools: Any = None, name: str = "chat", generation: int = 1, **spec: Any) -> GemmaServing:
    """A parsed GemmaServing with the pools given."""
    return parse(body({**spec, **({"pools": pools} if pools is not None else {})}, name, generation))


def wanted(of: GemmaServing, defaults: Defaults = DEFAULTS) -> tuple[dict[str, Any], ...]:
    """Its children as they should be."""
    return desired(of, defaults).children


def argv(of: GemmaServing, pool: str, defaults: Defaults = DEFAULTS) -> list[str]:
    """The engine's arguments as they stand in the Deployment."""
    child = next(c for c in wanted(of, defaults) if c["kind"] == "Deployment" and c["metadata"]["labels"][POOL] == pool)
    args: list[str] = child["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def value_after(args: list[str], flag: str) -> str:
    """The value that follows a flag."""
    return args[args.index(flag) + 1]


def live(
    of: GemmaServing, child: dict[str, Any], replicas: int = 1, owners: tuple[str, ...] = (OPERATOR, SCALER)
) -> dict[str, Any]:
    """A child of `of` as it stands in the cluster after it was applied; `owners` are the managers of spec.replicas."""
    applied = settle(of, child, None)[0] if child["kind"] == "Deployment" else child
    found = copy.deepcopy(stamp(applied))
    found["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1}
    if found["kind"] == "Deployment":
        found["spec"] |= {"replicas": replicas, "minReadySeconds": 0}
        found["spec"]["template"]["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
        found["metadata"]["managedFields"] = [
            {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}} for manager in owners
        ]
    elif found["kind"] == "Service":
        found["spec"] |= {"clusterIP": "198.18.0.9", "sessionAffinity": "None"}
    return found


def deployment(pool: str = "interactive", desired: int = 1, **status: Any) -> dict[str, Any]:
    """A live Deployment, settled and wholly Ready unless `status` says else."""
    counts = {"replicas": desired, "updatedReplicas": desired, "readyReplicas": desired, "observedGeneration": 1}
    return {
        "kind": "Deployment",
        "metadata": {"name": f"chat-{pool}", "labels": selector("chat", pool), "generation": 1},
        "spec": {"replicas": desired},
        "status": {**counts, **status},
    }


def pod(name: str = "p1", pool: str = "interactive", ready: bool = False, **more: Any) -> dict[str, Any]:
    """A live Pod; `container` is its one container's status, `conditions` and `phase` are its own."""
    container, meta = more.pop("container", None), more.pop("metadata", {})
    conditions = [{"type": "Ready", "status": str(ready)}, *more.pop("conditions", [])]
    status = {"conditions": conditions, **more} | ({"containerStatuses": [container]} if container else {})
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": selector("chat", pool), **meta},
        "status": status,
    }


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """Status of a container that waits."""
    return {"name": "engine", "image": "vllm:v1", "state": {"waiting": {"reason": reason, "message": message}}, **more}
