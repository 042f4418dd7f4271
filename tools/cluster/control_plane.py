"""etcd, the API server and the controller manager: a whole Kubernetes API in a few seconds, many side by side."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from . import binaries, leftovers
from .api import Api
from .console import ClusterError, say
from .network import API_SERVICE, CLUSTER_DOMAIN, GATEWAY, SERVICE_CIDR, free_ports
from .pki import Authority, Certificate
from .process import Handle, Supervisor
from .state import State, all_states, cache_home

LOOPBACK = "127.0.0.1"
ADMIN = "admin"


def audit_policy() -> dict[str, Any]:
    """Every request by its metadata, less what the cluster's own parts read all the time."""
    reads = {"level": "None", "verbs": ["get", "list", "watch"]}
    parts = [
        "system:apiserver",
        "system:kube-controller-manager",
        "system:kube-scheduler",
        "system:kube-proxy",
        "system:coredns",
    ]
    leases = {"level": "None", "userGroups": ["system:nodes"], "resources": [{"group": "coordination.k8s.io"}]}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            reads | {"users": parts},
            reads | {"userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
            leases,
            {"level": "Metadata"},
        ],
    }


class ControlPlane:
    """Use as `with ControlPlane.start("name") as plane:`, or `start` in one process and `open(name).stop()` in another."""

    mode: ClassVar[str] = "control-plane"
    controller_flags: ClassVar[tuple[str, ...]] = ()
    """Of the controller manager, beside those that every cluster has."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.supervisor = Supervisor(state.root)
        self.authority = Authority(state.pki)
        self._started_here = False

    @classmethod
    def start(cls, name: str = "local", *, keep: bool = False) -> Self:
        """A ready cluster. One that runs under this name already is used as it is; a crashed one is cleared first.

        With `keep` it outlives this process; without, a later start of any cluster removes it once this process is gone.
        """
        sweep()
        cluster = cls(State(name))
        with cluster.state.locked():
            if cluster.running():
                say(f"{name!r} is running already ({cls.mode})")
                return cluster
            cluster.check_machine()
            programs = binaries.ensure(binaries.MODES[cls.mode])
            leftovers.clear(cluster.state, cluster.supervisor)
            cluster.state.create()
            cluster.authority.create()
            try:
                server = cluster.launch(programs)
            except BaseException:
                cluster._keep_logs()
                leftovers.clear(cluster.state, cluster.supervisor)
                raise
            owner = None if keep else asdict(Handle.of(os.getpid()))
            record = {"name": name, "mode": cls.mode, "server": server, "owner": owner}
            cluster.state.record.write_text(json.dumps(record, indent=1) + "\n")
            cluster._started_here = True
        say(f"{name!r} is up ({cls.mode}): export KUBECONFIG={cluster.kubeconfig}")
        return cluster

    @property
    def kubeconfig(self) -> Path:
        return self.state.kubeconfig

    @property
    def audit_log(self) -> Path:
        return self.state.audit_log

    @property
    def api(self) -> Api:
        record = self.state.read_record()
        if record is None:
            raise ClusterError(not_running(self.state.name))
        return self._api(record["server"])

    def running(self) -> bool:
        """True when every part is alive and the API server says it is ready."""
        record = self.state.read_record()
        if record is None or not all(handle.alive for handle in self.supervisor.handles().values()):
            return False
        if record["mode"] != self.mode:
            raise ClusterError(
                f"cluster {self.state.name!r} runs as {record['mode']}, not as {self.mode}: end it with"
                f" 'down --name {self.state.name}', or choose another --name"
            )
        api = self._api(record["server"])
        # One miss says nothing on a busy machine, and a cluster taken for dead would be ended
        for _ in range(5):
            if api.exists("/readyz"):
                return True
            time.sleep(1)
        return False

    def stop(self) -> None:
        with self.state.locked():
            leftovers.clear(self.state, self.supervisor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._started_here:
            self.stop()

    def check_machine(self) -> None:
        """Raise what keeps this mode from running here."""
        if not shutil.which("openssl"):
            raise ClusterError("openssl is not on PATH; the cluster's certificates are made with it: install openssl")

    def launch(self, programs: Mapping[str, Path]) -> str:
        port = free_ports(1)[0]
        # Nothing but this machine reaches a loopback address, so it can't be an Endpoint of the Service `kubernetes`
        server = self.launch_api(programs, LOOPBACK, port, ("--endpoint-reconciler-type=none",))
        self.launch_controllers(programs, server)
        self.wait_controllers(server)
        return server

    def launch_api(self, programs: Mapping[str, Path], address: str, port: int, flags: tuple[str, ...] = ()) -> str:
        """Start etcd and the API server and return its URL once it is ready."""
        client_port, peer_port = free_ports(2)
        store = self.authority.issue("etcd", "/CN=etcd", [f"IP:{LOOPBACK}"])
        peer = f"http://{LOOPBACK}:{peer_port}"
        client = f"https://{LOOPBACK}:{client_port}"
        self.supervisor.start("etcd", [
            programs["etcd"], f"--data-dir={self.state.root / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--cert-file={store.cert}", f"--key-file={store.key}",
            f"--trusted-ca-file={self.authority.ca.cert}", "--client-cert-auth",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        ])  # fmt: skip
        names = (
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
            "localhost",
        )
        addresses = [f"DNS:{name}" for name in names] + [
            f"IP:{ip}" for ip in dict.fromkeys((address, LOOPBACK, API_SERVICE))
        ]
        serving = self.authority.issue("kube-apiserver", "/CN=kube-apiserver", addresses)
        kubelet_client = self.authority.issue("kube-apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver")
        accounts = self.authority.service_accounts
        policy = self.state.write_config("audit-policy.json", audit_policy())
        self.supervisor.start("kube-apiserver", [
            programs["kube-apiserver"], f"--bind-address={address}", f"--secure-port={port}", f"--advertise-address={GATEWAY}",
            f"--etcd-servers={client}", f"--etcd-cafile={self.authority.ca.cert}",
            f"--etcd-certfile={store.cert}", f"--etcd-keyfile={store.key}",
            f"--tls-cert-file={serving.cert}", f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.ca.cert}", "--authorization-mode=Node,RBAC",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-key-file={accounts.cert}", f"--service-account-signing-key-file={accounts.key}",
            f"--kubelet-client-certificate={kubelet_client.cert}", f"--kubelet-client-key={kubelet_client.key}",
            f"--kubelet-certificate-authority={self.authority.ca.cert}", "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={SERVICE_CIDR}", "--allow-privileged=true",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}", *flags,
        ])  # fmt: skip
        server = f"https://{address}:{port}"
        admin = self.authority.issue(ADMIN, f"/O=system:masters/CN={ADMIN}")
        self.authority.kubeconfig(self.kubeconfig, server, ADMIN, admin)
        api = self._api(server)
        self.supervisor.wait("kube-apiserver", lambda: api.exists("/readyz"), what="etcd and kube-apiserver")
        return server

    def launch_controllers(self, programs: Mapping[str, Path], server: str) -> None:
        name = "kube-controller-manager"
        accounts = self.authority.service_accounts
        self.supervisor.start(name, [
            programs[name], f"--kubeconfig={self.client_config(server, name, f'/CN=system:{name}')}", "--secure-port=0",
            "--leader-elect=false", "--use-service-account-credentials=true",
            f"--service-account-private-key-file={accounts.key}", f"--root-ca-file={self.authority.ca.cert}",
            "--kube-api-qps=300", "--kube-api-burst=500", *self.controller_flags,
        ])  # fmt: skip

    def launch_scheduler(self, program: Path, server: str) -> None:
        name = "kube-scheduler"
        config = self.client_config(server, name, f"/CN=system:{name}")
        self.supervisor.start(name, [
            program, f"--kubeconfig={config}", "--secure-port=0", "--leader-elect=false",
            "--kube-api-qps=300", "--kube-api-burst=500",
        ])  # fmt: skip

    def wait_controllers(self, server: str) -> None:
        """A Pod can only be created once its namespace has the default service account."""
        api = self._api(server)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.supervisor.wait("kube-controller-manager", lambda: api.exists(account))

    def client_config(self, server: str, user: str, subject: str) -> Path:
        certificate = self.authority.issue(user, subject)
        return self.authority.kubeconfig(self.state.config / f"{user}.kubeconfig", server, user, certificate)

    def _api(self, server: str) -> Api:
        admin = Certificate(self.state.pki / f"{ADMIN}.crt", self.state.pki / f"{ADMIN}.key")
        return Api(server, self.authority.ca.cert, admin)

    def _keep_logs(self) -> None:
        if not any((self.state.root / "logs").iterdir()):
            return
        kept = cache_home() / "failed-logs" / self.state.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.state.root / "logs", kept)
        say(f"the logs of the failed start are kept in {kept}")


def not_running(name: str) -> str:
    return f"cluster {name!r} is not running: start it with 'python3 -m tools.cluster up --name {name}'"


def sweep() -> None:
    """Remove the clusters whose owner died without doing so, as a killed test run does."""
    for state in all_states():
        record = state.read_record()
        if record and record["owner"] and not Handle(**record["owner"]).alive:
            with state.locked():
                say(f"{state.name!r} was left by a process that has ended: removing it")
                leftovers.clear(state, Supervisor(state.root))
