"""What a kubelet would do to engine Pods, where there is no node."""

from __future__ import annotations

import json

from tests.support.kube import Kube, eventually


def make_ready(kube: Kube, count: int, pool: str = "") -> None:
    """Make all Pods of a pool, or of all pools, Ready once there are `count` that aren't going."""
    selector = f"gemmaserving.dev/pool={pool}" if pool else ""

    def there() -> list[str]:
        found = kube.list("pods", selector)
        names = [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return names if len(names) >= count else []

    kinds = ("PodScheduled", "Ready", "ContainersReady")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"} for kind in kinds]
    for name in eventually(f"{count} Pods", there):
        body = json.dumps({"status": {"conditions": conditions}})
        kube.run("patch", "pod", name, "--subresource=status", "--type=merge", "-p", body)
