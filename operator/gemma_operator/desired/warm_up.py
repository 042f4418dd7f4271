"""A Job that fills the cache of a pool before its engines need it; the user applies it, the operator never does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_operator.api.serving import GemmaServing
from gemma_operator.desired import names
from gemma_operator.desired.pod import Engine
from gemma_operator.engine import plugin
from gemma_operator.engine.findings import Finding, RefusedSpec

# What belongs to a server that answers requests.
_OF_SERVERS = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports")
_KEEP_SECONDS = 3600


def warm_up(serving: GemmaServing, pool: str, engine: Engine, deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The pool's engine as a Job that starts the server, waits until it is ready, and ends.

    Its Pods have none of the pool's labels: no Service may send them requests. Raises RefusedSpec where the engine's image has
    no plugin, or nothing would stay of the cache.
    """
    for is_there, missing in ((engine.view.plugin, "engine.plugin"), (serving.spec.model.cache, "model.cache")):
        if not is_there:
            text = f"{engine.view.path}: a warm-up needs {missing}: {_WHY[missing]}"
            raise RefusedSpec((Finding("WarmUpImpossible", "refuse", text),))
    pod = dict(deployment["spec"]["template"]["spec"])
    server, *sidecars = pod.pop("containers")
    pod.pop("topologySpreadConstraints", None)
    once = {field: value for field, value in server.items() if field not in _OF_SERVERS}
    labels = {"app.kubernetes.io/name": "gemma-warm-up"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.child_name(serving.name, f"{pool}-warm-up"),
            "namespace": serving.namespace,
            "labels": labels,
        },
        "spec": {
            "backoffLimit": 1,
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    **pod,
                    "restartPolicy": "Never",
                    # A sidecar of the pool would keep the Job from ending.
                    "initContainers": [
                        *pod.get("initContainers", []),
                        *({**c, "restartPolicy": "Always"} for c in sidecars),
                    ],
                    "containers": [{**once, "command": plugin.WARM_UP}],
                },
            },
        },
    }


_WHY = {
    "engine.plugin": "the program that does it comes with it (docs/engine-image.md)",
    "model.cache": "an emptyDir is gone with its Pod",
}
