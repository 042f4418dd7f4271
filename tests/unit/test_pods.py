"""What the autoscaler sees of a Pod."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.pods import EnginePod, engine_pods

BORN, READY = "2026-01-01T00:00:00Z", "2026-01-01T00:05:30Z"
EPOCH = 1767225600.0


def pod(conditions: list[dict[str, Any]], ip: str | None = "10.1.2.3", annotations: Any = None) -> EnginePod:
    own = {"prometheus.io/port": "8000", "prometheus.io/path": "/metrics"} if annotations is None else annotations
    meta = {"uid": "u1", "name": "chat-1", "creationTimestamp": BORN, "annotations": own}
    [found] = engine_pods([{"metadata": meta, "status": {"conditions": conditions, "podIP": ip}}])
    return found


def test_a_ready_pod_says_since_when_and_where_it_is_read() -> None:
    found = pod([{"type": "Ready", "status": "True", "lastTransitionTime": READY}])
    assert found == EnginePod("u1", "chat-1", EPOCH, EPOCH + 330, False, "http://10.1.2.3:8000/metrics")


def test_a_pod_without_a_node_is_told_apart_from_one_that_starts() -> None:
    none = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    starting = {"type": "Ready", "status": "False", "lastTransitionTime": READY}
    assert (pod([none], ip=None).unschedulable, pod([starting]).unschedulable) == (True, False)
    assert pod([none]).ready_at is pod([starting]).ready_at is None


@pytest.mark.parametrize(
    ("ip", "annotations", "url"),
    [
        ("fd00::7", {"prometheus.io/port": "9"}, "http://[fd00::7]:9/metrics"),
        ("10.0.0.1", {"prometheus.io/port": "9", "prometheus.io/path": "/m"}, "http://10.0.0.1:9/m"),
        (None, {"prometheus.io/port": "9"}, None),
        ("10.0.0.1", {}, None),
    ],
)
def test_addresses(ip: str | None, annotations: dict[str, str], url: str | None) -> None:
    assert pod([], ip, annotations).metrics_url == url


def test_an_empty_pod_is_no_crash() -> None:
    assert engine_pods([{"metadata": {"uid": "u", "name": "n"}}])[0] == EnginePod("u", "n", 0, None, False, None)
