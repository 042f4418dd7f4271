"""NetworkPolicies evaluated, and as rules of nftables for a node whose network enforces none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TABLE = "inet gemma-test-policies"


@dataclass(frozen=True)
class End:
    """A Pod as policies see it; without labels, an address outside of the cluster."""

    namespace: str
    labels: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)


def selects(selector: dict[str, Any], of: dict[str, str]) -> bool:
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ as far as the charts use it."""
    assert all(e["operator"] == "In" for e in selector.get("matchExpressions", []))
    return all(of.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        of.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", [])
    )


def is_peer(peer: dict[str, Any], end: End, home: str) -> bool:
    if "ipBlock" in peer:
        return not end.labels
    space = {"kubernetes.io/metadata.name": end.namespace}
    in_space = selects(peer["namespaceSelector"], space) if "namespaceSelector" in peer else end.namespace == home
    return bool(end.labels) and in_space and selects(peer.get("podSelector", {}), end.labels)


def passes(policies: list[dict[str, Any]], source: End, target: End, port: int) -> bool:
    """True where no policy of either end stops a connection (https://kubernetes.io/docs/concepts/services-networking/network-policies/)."""
    for end, other, direction, key in ((source, target, "Egress", "to"), (target, source, "Ingress", "from")):
        mine = [
            p
            for p in policies
            if p["metadata"]["namespace"] == end.namespace
            and direction in p["spec"]["policyTypes"]
            and selects(p["spec"]["podSelector"], end.labels)
        ]
        rules = [(p, rule) for p in mine for rule in p["spec"].get(direction.lower(), [])]
        if mine and not any(_lets(rule, other, target, port, p, key) for p, rule in rules):
            return False
    return True


def _lets(rule: dict[str, Any], other: End, target: End, port: int, policy: dict[str, Any], key: str) -> bool:
    ports = [target.ports.get(p["port"], p["port"]) for p in rule.get("ports", [])]
    peers = rule.get(key)
    home = policy["metadata"]["namespace"]
    return (not ports or port in ports) and (not peers or any(is_peer(peer, other, home) for peer in peers))


def end_of(pod: Mapping[str, Any]) -> End:
    """A live Pod as policies see it."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports", ()))
    named = {port["name"]: port["containerPort"] for port in ports if "name" in port}
    return End(pod["metadata"]["namespace"], pod["metadata"].get("labels", {}), named)


def ruleset(policies: list[dict[str, Any]], pods: Iterable[Mapping[str, Any]]) -> str:
    """What passes between Pods: each named port of each Pod, from each Pod; whatever else goes to a guarded Pod is dropped.

    The node itself (the kubelet's probes) goes another way, as with any network.
    """
    live = [(pod["status"]["podIP"], end_of(pod)) for pod in pods if pod["status"].get("podIP")]
    rules = ["ct state established,related accept"]
    for address, target in live:
        for source, origin in live:
            ports = [port for port in target.ports.values() if passes(policies, origin, target, port)]
            rules += [f"ip saddr {source} ip daddr {address} tcp dport {port} accept" for port in ports]
        guarded = any(
            p["metadata"]["namespace"] == target.namespace and selects(p["spec"]["podSelector"], target.labels)
            for p in policies
            if "Ingress" in p["spec"]["policyTypes"]
        )
        rules += [f"ip daddr {address} drop"] if guarded else []
    body = "\n".join(f"    {rule}" for rule in rules)
    return f"table {TABLE} {{\n  chain forward {{\n    type filter hook forward priority filter\n{body}\n  }}\n}}\n"


@contextmanager
def enforced(rules: str) -> Iterator[None]:
    """The rules in this machine's nftables; they are gone afterwards."""
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", *TABLE.split()], check=True)
