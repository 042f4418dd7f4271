"""What a GemmaServing may ask for beside serving. Whoever writes one acts through the operator's right to make Deployments,
so the administrator says how far that goes: by grants, checked on the finished Pod template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from gemma_operator.api.pool import Pool
from gemma_operator.engine.findings import Finding
from gemma_operator.engine.view import PoolView

Grant = Literal["Code", "Placement", "Priority", "Queries", "Privileged", "ServiceAccountToken"]
GRANTS: tuple[Grant, ...] = get_args(Grant)
USUAL: tuple[Grant, ...] = ("Code", "Placement", "Priority", "Queries")
"""What anyone who may make Deployments has in a namespace with Pod Security's profile `baseline`, save a token."""

_CODE = (
    "extra_args", "env", "env_from", "volumes", "volume_mounts", "init_containers", "sidecars", "pod_template",
    "startup_probe", "readiness_probe", "liveness_probe", "pod_annotations",
)  # fmt: skip
_PLACEMENT = ("nodeName", "nodeSelector", "tolerations", "affinity", "runtimeClassName", "schedulerName")
# The profile `baseline` of Kubernetes' Pod Security Standards, 1.36.
_CAPABILITIES = frozenset((
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYS_CHROOT",
))  # fmt: skip
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = frozenset((
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
))  # fmt: skip
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def not_granted(
    view: PoolView, template: Mapping[str, Any], grants: tuple[Grant, ...], own_priorities: tuple[str, ...]
) -> Iterator[Finding]:
    """What a pool asks for and nobody has granted; `own_priorities` are the installation's own classes."""
    asked = {"Code": _code(view), "Queries": _queries(view.pool), **_of_template(template, own_priorities)}
    for grant, named in _without(asked, grants):
        text = f"{view.path}: {named}: the administrator has not granted {grant} (tenants.may of the operator's chart)"
        yield Finding("NotGranted", "refuse", text)


def no_longer_granted(
    pool: str, kept: Mapping[str, Any], grants: tuple[Grant, ...], own_priorities: tuple[str, ...]
) -> Iterator[Finding]:
    """What `rollout.paused` would keep of an older spec, as far as its Pod template tells."""
    for grant, named in _without(_of_template(kept, own_priorities), grants):
        text = (
            f"spec.pools.{pool}: rollout.paused keeps engines with {named}: the administrator has not granted {grant} "
            "(tenants.may of the operator's chart); set rollout.paused to false to replace them"
        )
        yield Finding("NotGranted", "refuse", text)


def _without(asked: Mapping[Grant, Iterator[str]], grants: tuple[Grant, ...]) -> Iterator[tuple[Grant, str]]:
    for grant in GRANTS:
        if grant in asked and grant not in grants and (named := ", ".join(asked[grant])):
            yield grant, named


def _of_template(template: Mapping[str, Any], own_priorities: tuple[str, ...]) -> dict[Grant, Iterator[str]]:
    """What a finished Pod template needs grants for."""
    return {
        "Placement": (name for name in _PLACEMENT if template["spec"].get(name)),
        "Priority": _priority(template["spec"], own_priorities),
        "Privileged": beyond_baseline(template),
        "ServiceAccountToken": _tokens(template["spec"]),
    }


def beyond_baseline(template: Mapping[str, Any]) -> Iterator[str]:
    """Fields of a Pod template that Pod Security's profile `baseline` forbids."""
    pod = template["spec"]
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    yield from (f"volume {volume['name']}: hostPath" for volume in pod.get("volumes", ()) if "hostPath" in volume)
    for name, value in template.get("metadata", {}).get("annotations", {}).items():
        if name.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"annotation {name}"
    yield from _context(pod.get("securityContext", {}))
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield from (f"container {container['name']}: {field}" for field in _container(container))


def _container(container: Mapping[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    yield from _context(context)
    if context.get("privileged"):
        yield "privileged"
    if added := set(context.get("capabilities", {}).get("add", ())) - _CAPABILITIES:
        yield f"capabilities {', '.join(sorted(added))}"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
    hooks = container.get("lifecycle", {})
    asked = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
    for handler in (*asked, *(hooks.get(kind, {}) for kind in ("postStart", "preStop"))):
        if any(handler.get(way, {}).get("host") for way in ("httpGet", "tcpSocket")):
            yield "host of a probe or hook"


def _context(context: Mapping[str, Any]) -> Iterator[str]:
    """Of a Pod or of a container."""
    for profile in ("seccompProfile", "appArmorProfile"):
        if context.get(profile, {}).get("type") == "Unconfined":
            yield f"{profile} Unconfined"
    linux = context.get("seLinuxOptions", {})
    if linux.get("type", "") not in _SELINUX_TYPES or linux.get("user") or linux.get("role"):
        yield "seLinuxOptions"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"
    yield from (f"sysctl {one['name']}" for one in context.get("sysctls", ()) if one["name"] not in _SYSCTLS)


def _code(view: PoolView) -> Iterator[str]:
    """Ways to run something else than the installation's engine as the API's own fields start it, or to have it tell a Secret.

    Annotations are among them, as injectors of sidecars take images and volumes from there; and a Secret as a whole, as its keys
    may be any variables (LD_PRELOAD with a model's volume).
    """
    engine, source = view.spec.engine, view.spec.model.source
    yield from (f"spec.engine.{name}" for name in ("image", "command") if getattr(engine, name))
    if source and source.object_store and source.object_store.secret_name:
        yield "spec.model.source.objectStore.secretName"
    if source and source.hub and view.spec.model.token_secret_ref:
        yield "spec.model.tokenSecretRef, which source.hub.endpoint is told"
    aliases = {name: Pool.model_fields[name].alias or name for name in _CODE}
    yield from (aliases[name] for name in _CODE if getattr(view.pool, name))


def _priority(pod: Mapping[str, Any], own: tuple[str, ...]) -> Iterator[str]:
    name = pod.get("priorityClassName", "")
    if name and name not in own:
        yield f"priorityClassName {name}"
    if pod.get("preemptionPolicy") or pod.get("priority") is not None:
        yield "priority"


def _queries(pool: Pool) -> Iterator[str]:
    for name, query in (("backlogQuery", pool.scaling.backlog_query), ("offeredQuery", pool.scaling.offered_query)):
        if query:
            yield f"scaling.{name}"


def _tokens(pod: Mapping[str, Any]) -> Iterator[str]:
    """A way to call the Kubernetes API as an account of the namespace."""
    if pod.get("automountServiceAccountToken", True):
        yield "automountServiceAccountToken"
    for volume in pod.get("volumes", ()):
        for way in ("serviceAccountToken", "podCertificate"):
            if any(way in source for source in volume.get("projected", {}).get("sources", ())):
                yield f"volume {volume['name']}: {way}"
