"""Names of Services: CoreDNS as a process of the node, behind the Service `kube-dns` that Pods know."""

from pathlib import Path
from typing import Any

from .api import Api
from .network import CLUSTER_DOMAIN, DNS_SERVICE, GATEWAY

PORT = 1053  # on the bridge's address; 53 may be another resolver's
READY_PORT = 8181
USER = "system:coredns"


def corefile(kubeconfig: Path) -> str:
    """Nothing is forwarded: a name outside the cluster doesn't exist, and its asker hears so at once."""
    return f"""{CLUSTER_DOMAIN}:{PORT} in-addr.arpa:{PORT} {{
    bind {GATEWAY}
    errors
    ready {GATEWAY}:{READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig "{kubeconfig}"
        ttl 5
    }}
}}
.:{PORT} {{
    bind {GATEWAY}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def install(api: Api) -> None:
    """Let CoreDNS read what it serves, and put the Service before it."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": USER}}
    verbs = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": verbs},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
    ]
    path = "/apis/rbac.authorization.k8s.io/v1"
    api.apply(f"{path}/clusterroles/{USER}", rbac | {"kind": "ClusterRole", "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io"}
    binding = {
        "kind": "ClusterRoleBinding",
        "roleRef": reference | {"kind": "ClusterRole", "name": USER},
        "subjects": [reference | {"kind": "User", "name": USER}],
    }
    api.apply(f"{path}/clusterrolebindings/{USER}", rbac | binding)
    for value, place in ((_service(), "/api/v1"), (_endpoints(), "/apis/discovery.k8s.io/v1")):
        kind = {"Service": "services", "EndpointSlice": "endpointslices"}[value["kind"]]
        api.apply(f"{place}/namespaces/kube-system/{kind}/{value['metadata']['name']}", value)


def _ports(**more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "protocol": protocol} | more for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))]


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_SERVICE, "ports": _ports(port=53, targetPort=PORT)},
    }


def _endpoints() -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-node",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [GATEWAY], "conditions": {"ready": True}}],
        "ports": _ports(port=PORT),
    }
