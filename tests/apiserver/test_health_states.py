"""The states of a GemmaServing that a GitOps tool meets, made by the operator on a real API server and kept in tests/golden/health.

`python -m pytest tests/apiserver/test_health_states.py --update-golden` renews them; tests/unit/test_health.py judges them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.apiserver.conftest import await_children
from tests.apiserver.test_lifecycle import serving
from tests.apiserver.test_rollout import POOLS, make_ready, operator, pods, said
from tests.support.kube import Kube, condition, eventually

JUDGED = ("Ready", "Reconciling", "Stalled", "Valid")
VARIES = re.compile(r"\d+ (?=of \d)|\d+ on an older one|(?<=Pod demo-)\S+")
Golden = Callable[[str, str], None]


def test_every_state_of_health_is_as_recorded(
    kube: Kube, operator_kubeconfig: Path, tmp_path: Path, golden: Golden
) -> None:
    def keep(state: str) -> None:
        eventually("Kubernetes has begun what was changed", lambda: "has not begun" not in seen(kube))
        golden(f"health/{state}.yaml", seen(kube))

    kube.apply(serving(pools=POOLS))
    keep("new")
    with operator(operator_kubeconfig, tmp_path):
        await_children(kube, "demo-interactive", "demo-batch")
        eventually("it is told", lambda: said(kube, "Reconciling") == ("True", "PoolsStarting"))
        keep("starting")
        make_ready(kube, 3)
        eventually("it serves", lambda: said(kube, "Reconciling") == ("False", "UpToDate"))
        keep("ready")
        kube.run("scale", "deployment/demo-interactive", "--replicas=4")
        eventually("it is larger for a moment", lambda: len(pods(kube, "interactive")) == 4)
        keep("scaling")
    change(kube, '{"pools":{"interactive":{"maxNumSeqs":8}}}')
    keep("not-seen-yet")
    with operator(operator_kubeconfig, tmp_path):
        eventually(
            "a rollout", lambda: "on the new revision" in condition(kube.get("gsv", "demo"), "Reconciling")["message"]
        )
        keep("rolling-out")
        change(kube, '{"rollout":{"paused":true}}')
        eventually("it is paused", lambda: said(kube, "Reconciling") == ("False", "Paused"))
        keep("paused")
        change(kube, '{"rollout":null,"engine":{"image":"registry.example/vllm:nightly"}}')
        eventually("it is refused", lambda: said(kube, "Stalled") == ("True", "UnknownEngineVersion"))
        keep("refused")
        change(kube, '{"engine":{"image":"registry.example/vllm:v0.32.0"}}')
        eventually("an engine of it", lambda: fail_pulls(kube, "registry.example/vllm:v0.32.0"))
        eventually("it is stalled", lambda: said(kube, "Stalled") == ("True", "ImagePullFailed"))
        keep("stalled")


def change(kube: Kube, spec: str) -> None:
    kube.run("patch", "gsv", "demo", "--type=merge", "-p", f'{{"spec":{spec}}}')


def fail_pulls(kube: Kube, image: str) -> bool:
    """As a kubelet says it of Pods with this image; False where there is none."""
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
    container = {"name": "engine", "image": image, "imageID": "", "ready": False, "restartCount": 0}
    status = {"status": {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}}
    found = [pod["metadata"]["name"] for pod in kube.list("pods") if pod["spec"]["containers"][0]["image"] == image]
    for name in found:
        kube.run("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    return bool(found)


def seen(kube: Kube) -> str:
    """The serving less what differs from run to run: times, counts, names of Pods, and what the autoscaler has seen by then."""
    body = kube.get("gsv", "demo")
    assert body
    conditions = [
        {**c, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": VARIES.sub("…", c["message"])}
        for c in body["status"].get("conditions", [])
        if c["type"] in JUDGED
    ]
    status = {"observedGeneration": body["status"]["observedGeneration"], "conditions": conditions}
    return yaml.safe_dump(
        {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "metadata": {"name": "demo", "namespace": "models", "generation": body["metadata"]["generation"]},
            "spec": body["spec"],
            "status": {key: value for key, value in status.items() if value},
        },
        width=1000,
        allow_unicode=True,
    )
