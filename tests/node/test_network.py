"""The chart's network policies, enforced: the node's own network enforces none, so they become nftables rules by our reading.

That reading is what tests/chart holds. Here real packets meet it: a Pod that must not reach an engine can't.
"""

from __future__ import annotations

import subprocess
from itertools import product
from typing import Any

import pytest
import yaml

from tests.node.conftest import Helm, await_ready, serving
from tests.support.kube import Kube, eventually
from tests.support.policies import enforced, ruleset

LABELS = {"client": {"team": "inference"}, "neighbour": {"team": "other"}}
LOOK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=2).status)"


def resting(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS[name]},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "rest", "image": "gemma-serving/operator:dev", "command": ["sleep", "3600"]}],
        },
    }


def reach(kube: Kube, pod: str, url: str) -> str:
    """What a Pod hears there: a status, or the error. A policy drops packets; a Service without its rules yet refuses."""
    done = kube.run("exec", pod, "--", "python", "-c", LOOK, f"{url}/health", check=False)
    return (done.stdout or next(what for what in ("timed out", "refused", done.stderr) if what in done.stderr)).strip()


def address(kube: Kube) -> str:
    (pod,) = kube.list("pod", "gemmaserving.dev/serving=guarded")
    return f"http://{pod['status']['podIP']}:8000"


@pytest.fixture(scope="module")
def guarded(kube: Kube) -> Kube:
    kube.apply(serving("guarded", pools={"interactive": {}}), *(resting(name) for name in LABELS))
    await_ready(kube, "guarded")
    kube.run("wait", "--for=condition=Ready", *(f"pod/{name}" for name in LABELS), "--timeout=60s")
    return kube


def test_a_pod_that_must_not_reach_the_engine_cannot(guarded: Kube, installed: Kube, helm: Helm) -> None:
    rendered = helm(
        "template", "guarded", "charts/gemma-serving", "-n", guarded.namespace, "--set", "networkPolicy.enabled=true",
        "--set", "networkPolicy.from[0].podSelector.matchLabels.team=inference",
    )  # fmt: skip
    policies = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "NetworkPolicy"]
    pods = [*guarded.list("pod"), *installed.list("pod")]
    urls = [address(guarded), "http://guarded:8000"]
    for name, url in product(LABELS, urls):
        eventually(f"without a policy {name} reaches {url}", lambda at=(name, url): reach(guarded, *at) == "200", 30)
    with enforced(ruleset(policies, pods)):
        told = {(name, url): reach(guarded, name, url) for name, url in product(LABELS, urls)}
        assert told == {at: "200" if at[0] == "client" else "timed out" for at in product(LABELS, urls)}
        engine = 'up{job="gemma-engines",serving="guarded"}'
        eventually("the chart's Prometheus still scrapes it", lambda: scraped(installed, engine), 20)
    assert reach(guarded, "neighbour", urls[0]) == "200", "and after it all do"


def scraped(installed: Kube, query: str) -> bool:
    service = installed.get("service", "gemma-operator-prometheus")
    assert service
    url = f"http://{service['spec']['clusterIP']}:9090/api/v1/query"
    done = subprocess.run(
        ["curl", "-sG", url, "--data-urlencode", f"query={query}"], capture_output=True, text=True, check=False
    )
    return '"1"]' in done.stdout
