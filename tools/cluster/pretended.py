"""A control plane with a scheduler, and nodes that are only pretended (kwok): thousands of Pods become Ready, none runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from .control_plane import ControlPlane
from .node import GPU

NODES = 8
NOW = "{{ Now | Quote }}"
# Of what a node has, one of a large fleet has more than any Pod asks for.
ROOM = {"cpu": "100k", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "100k", GPU: "100k"}


class PretendedNodes(ControlPlane):
    mode: ClassVar[str] = "pretended-nodes"

    def launch(self, programs: Mapping[str, Path]) -> str:
        server = super().launch(programs)
        self.launch_scheduler(programs["kube-scheduler"], server)
        stages = self.state.root / "config" / "kwok.yaml"
        stages.write_text("\n---\n".join(map(json.dumps, (configuration(), node_ready(), pod_ready(), pod_gone()))))
        self.supervisor.start("kwok", [
            programs["kwok"], f"--kubeconfig={self.kubeconfig}", f"--config={stages}", "--manage-all-nodes",
            "--cidr=10.128.0.0/9", "--node-lease-duration-seconds=40",
        ])  # fmt: skip
        api = self._api(server)
        for number in range(NODES):
            name = f"pretended-{number}"
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            api.apply(f"/api/v1/nodes/{name}", node)
            api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": ROOM, "allocatable": ROOM}})
        self.supervisor.wait(
            "kwok", lambda: _ready(api.get("/api/v1/nodes")["items"]) == NODES, what="kwok, and its nodes,"
        )
        return server


def _ready(nodes: list[dict[str, Any]]) -> int:
    conditions = [one for node in nodes for one in node.get("status", {}).get("conditions", [])]
    return sum(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def configuration() -> dict[str, Any]:
    """How much kwok does at a time."""
    options = {"podPlayStageParallelism": 16, "nodePlayStageParallelism": 4, "nodeLeaseParallelism": 4}
    return {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}


def node_ready() -> dict[str, Any]:
    """A node that is not Ready becomes so; its heart beats in its Lease."""
    ready = f'conditions: [{{type: Ready, status: "True", reason: Pretended, lastTransitionTime: {NOW}, lastHeartbeatTime: {NOW}}}]'
    is_new = {
        "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
        "operator": "NotIn",
        "values": ["True"],
    }
    return _stage("node-ready", "Node", [is_new], {"statusTemplate": ready})


def pod_ready(seconds: float = 2) -> dict[str, Any]:
    """A Pod that has a node is Ready some seconds later."""
    conditions = "\n".join(
        f'- {{type: {kind}, status: "True", lastTransitionTime: {NOW}}}'
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    )
    template = f"""
conditions:
{conditions}
containerStatuses:
{{{{ range .spec.containers }}}}
- name: {{{{ .name | Quote }}}}
  image: {{{{ .image | Quote }}}}
  ready: true
  started: true
  restartCount: 0
  state: {{running: {{startedAt: {NOW}}}}}
{{{{ end }}}}
podIP: {{{{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}}}
phase: Running
startTime: {NOW}
"""
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    pending = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    stage = _stage("pod-ready", "Pod", [alive, pending], {"statusTemplate": template})
    stage["spec"]["delay"] = {"durationMilliseconds": int(seconds * 1000)}
    return stage


def pod_gone() -> dict[str, Any]:
    """A Pod that is to be deleted is gone at once: nothing runs that would have to end."""
    return _stage("pod-gone", "Pod", [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}], {"delete": True})


def _stage(name: str, kind: str, when: list[dict[str, Any]], then: dict[str, Any]) -> dict[str, Any]:
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": when}, "next": then}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}
