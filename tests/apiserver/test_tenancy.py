"""A hostile GemmaServing before the real API server, and our reading of Pod Security's `baseline` beside Kubernetes' own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma_operator.api.parse import parse
from gemma_operator.desired import Defaults, desired
from gemma_operator.desired.tenancy import GRANTS, beyond_baseline
from tests.support.kube import Kube, condition, eventually
from tests.support.operator import Operator
from tests.support.tenants import BEYOND_BASELINE, WITHIN_BASELINE, overlaid

BASELINE = "pod-security.kubernetes.io/enforce=baseline"
POOLS = BEYOND_BASELINE | WITHIN_BASELINE


def serving(pool: dict[str, Any], name: str = "demo") -> dict[str, Any]:
    return {
        "apiVersion": "gemmaserving.dev/v1alpha1",
        "kind": "GemmaServing",
        "metadata": {"name": name},
        "spec": {"model": {"id": "google/gemma-4-E4B-it"}, "pools": {"interactive": pool}},
    }


@pytest.mark.parametrize("name", POOLS)
def test_our_baseline_is_kubernetes_own(kube: Kube, name: str) -> None:
    kube.run("label", "namespace", kube.namespace, BASELINE)
    kube.run("create", "serviceaccount", "default", check=False)
    granted = Defaults("vllm:v0.32.0", tenants_may=GRANTS)
    child = next(c for c in desired(parse(serving(POOLS[name])), granted).children if c["kind"] == "Deployment")
    template = child["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "p"},
        "spec": template["spec"],
    }
    done = kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
    assert not done.returncode or "violates PodSecurity" in done.stderr, done.stderr
    assert bool([*beyond_baseline(template)]) == bool(done.returncode), done.stderr


HOSTILE = {
    "the node": ("Privileged", overlaid(hostNetwork=True, volumes=[{"name": "r", "hostPath": {"path": "/"}}])),
    "the operator's account": (
        "ServiceAccountToken",
        {"serviceAccountName": "gemma-operator", **overlaid(automountServiceAccountToken=True)},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_serving_gets_no_pod(kube: Kube, operator: Operator, name: str) -> None:
    """And what served before goes on."""
    grant, pool = HOSTILE[name]
    kube.apply(serving({}))
    before = eventually("the Deployment", lambda: kube.get("deployment", "demo-interactive"))
    kube.apply(serving(pool), serving(pool, "evil"))
    for one in ("demo", "evil"):
        valid = eventually(
            "it is refused",
            lambda one=one: (c := condition(kube.get("gsv", one), "Valid")).get("status") == "False" and c,
        )
        assert valid["reason"] == "InvalidSpec"
        assert f"has not granted {grant}" in valid["message"]
    assert kube.get("deployment", "evil-interactive") is None
    after = kube.get("deployment", "demo-interactive")
    assert after
    assert after["spec"] == before["spec"]
