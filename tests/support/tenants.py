"""Pools that ask for more, or no more, than Kubernetes' Pod Security profile `baseline` allows."""

from __future__ import annotations

from typing import Any


def overlaid(**pod: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": pod}}


def container(**fields: Any) -> dict[str, Any]:
    return overlaid(containers=[{"name": "engine", **fields}])


BEYOND_BASELINE: dict[str, dict[str, Any]] = {
    "the node's network": overlaid(hostNetwork=True),
    "the node's processes": overlaid(hostPID=True),
    "the node's IPC": overlaid(hostIPC=True),
    "a path of the node": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    "a path by the template": overlaid(volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
    "a port of the node": container(ports=[{"containerPort": 8001, "hostPort": 22}]),
    "a privileged engine": {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}},
    "a privileged sidecar": {"sidecars": [{"name": "s", "image": "i:1", "securityContext": {"privileged": True}}]},
    "a privileged init container": {
        "initContainers": [{"name": "s", "image": "i:1", "securityContext": {"privileged": True}}]
    },
    "a capability": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
    "all capabilities": {"securityContext": {"capabilities": {"add": ["ALL"]}}},
    "no seccomp": {"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "no seccomp in the container": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "no AppArmor": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    "another SELinux type": {"podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    "another SELinux user": {"securityContext": {"seLinuxOptions": {"user": "system_u"}}},
    "a sysctl": {"podSecurityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "a probe of another host": {"livenessProbe": {"httpGet": {"path": "/", "port": 80, "host": "169.254.169.254"}}},
}
WITHIN_BASELINE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "root": {"podSecurityContext": {"runAsUser": 0, "runAsNonRoot": False}},
    "a capability of the profile": {"securityContext": {"capabilities": {"add": ["CHOWN", "NET_BIND_SERVICE"]}}},
    "escalation": {"securityContext": {"allowPrivilegeEscalation": True}},
    "an SELinux type of the profile": {
        "podSecurityContext": {"seLinuxOptions": {"type": "container_t", "level": "s0"}}
    },
    "a safe sysctl": {"podSecurityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}},
    "the runtime's seccomp": {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
    "a Secret, a claim and a folder": {
        "volumes": [
            {"name": "a", "secret": {"secretName": "s"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "c", "emptyDir": {}},
        ]
    },
    "an NFS volume": {"volumes": [{"name": "a", "nfs": {"server": "nfs", "path": "/"}}]},
    "a port": container(ports=[{"containerPort": 8001}]),
    "a probe of its own": {"livenessProbe": {"tcpSocket": {"port": 8000}}},
}
