"""Addresses of a local cluster, all from 198.18.0.0/15: RFC 2544 keeps it for tests, so it is nobody's network."""

import socket

NETWORK = "198.18.0.0/15"
POD_CIDR = "198.18.0.0/16"
SERVICE_CIDR = "198.19.0.0/16"
GATEWAY = "198.18.0.1"  # the node itself, on the bridge that the Pods hang from
API_SERVICE = "198.19.0.1"  # the first Service address: `kubernetes.default.svc`
DNS_SERVICE = "198.19.0.10"
CLUSTER_DOMAIN = "cluster.local"


def free_ports(count: int) -> list[int]:
    """Loopback TCP ports that nobody listens on; held together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
