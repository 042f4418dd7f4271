"""A whole Kubernetes on this machine: the control plane, and one real node on which Pods run."""

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from . import bridge, cgroup, dns, images, kernel_settings, packages
from .console import ClusterError, say
from .control_plane import ControlPlane
from .network import GATEWAY
from .node_config import cni_config, containerd_base, containerd_config, kubelet_config, proxy_config
from .process import run

API_PORT = 6443  # on the bridge's address, which is ours alone
NAME = "node1"
GPU = "nvidia.com/gpu"


def proxy_tables() -> list[str]:
    """The families in which a kube-proxy keeps its nftables table."""
    tables = run(["nft", "list", "tables"]).splitlines()
    return [family for family in ("ip", "ip6") if f"table {family} kube-proxy" in tables]


class Node(ControlPlane):
    mode: ClassVar[str] = "node"

    def check_machine(self) -> None:
        packages.check_machine()
        packages.ensure()
        super().check_machine()

    def launch(self, programs: Mapping[str, Path]) -> str:
        bridge.create(self.state)
        if families := proxy_tables():
            commands = "; ".join(f"nft delete table {family} kube-proxy" for family in families)
            raise ClusterError(
                "nftables has a table 'kube-proxy' that this cluster did not make: another kube-proxy runs on this machine."
                f" End it, or, when it is gone for good: {commands}"
            )
        self._launch_containerd()
        server = self.launch_api(programs, GATEWAY, API_PORT)
        self.launch_controllers(programs, server)
        self.launch_scheduler(programs["kube-scheduler"], server)
        self._launch_kubelet(programs["kubelet"], server)
        self._launch_proxy(programs["kube-proxy"], server)
        dns.install(self._api(server))
        self._launch_dns(programs["coredns"], server)
        images.containerd_import(self.state, images.pause_archive(), packages.program("ctr"))
        self.wait_controllers(server)
        self.supervisor.wait("coredns", self._dns_is_ready)
        self.supervisor.wait("kubelet", lambda: self._is_ready(server), what=f"kubelet, and node {NAME},")
        return server

    def load(self, archive: Path) -> images.Archive:
        """Import an image archive; its Pods need imagePullPolicy IfNotPresent or Never."""
        with self.state.locked():
            return images.containerd_import(self.state, archive, packages.program("ctr"))

    def set_gpus(self, count: int) -> None:
        """Pretend GPUs: the scheduler counts them, nothing else is there. The kubelet copies capacity to allocatable."""
        resources = {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}
        self.api.patch(f"/api/v1/nodes/{NAME}/status", {"status": resources})
        say(f"node {NAME} has {count} pretended {GPU}")

    def _launch_containerd(self) -> None:
        socket = self.state.containerd_socket
        self.state.images.mkdir(parents=True, exist_ok=True)
        if any(self.state.images.iterdir()):
            self._forget_containers()
        conf = self.state.config / "cni"
        conf.mkdir()
        self.state.write_config("cni/10-bridge.conflist", cni_config(self.state.root, bridge.NAME))
        text = containerd_config(self.state.root, socket, packages.cni_folder(), conf)
        self._start_containerd(self.state.write_config("containerd.toml", text))

    def _forget_containers(self) -> None:
        """Containers of the last run, which no kubelet knows any more: deleted while no CRI plugin has read them."""
        text = containerd_base(self.state.root, self.state.containerd_socket, disabled='["io.containerd.grpc.v1.cri"]')
        self._start_containerd(self.state.write_config("containerd-cleanup.toml", text))
        for container in self._ctr("containers", "list", "--quiet").split():
            self._ctr("containers", "delete", container)
        self.supervisor.end("containerd", grace=5)

    def _start_containerd(self, config: Path) -> None:
        self.supervisor.start("containerd", [packages.program("containerd"), "--config", config])
        self.supervisor.wait("containerd", self._containerd_answers)

    def _containerd_answers(self) -> bool:
        try:
            self._ctr("--timeout", "1s", "version")
        except ClusterError:
            return False
        return True

    def _ctr(self, *args: str) -> str:
        return run([packages.program("ctr"), "--address", self.state.containerd_socket, "--namespace", "k8s.io", *args])

    def _launch_kubelet(self, program: Path, server: str) -> None:
        subject = f"/O=system:nodes/CN=system:node:{NAME}"
        serving = self.authority.issue("kubelet-serving", subject, [f"DNS:{NAME}", f"IP:{GATEWAY}"])
        value = kubelet_config(self.state.root, self.state.containerd_socket, cgroup.create(self.state)) | {
            "tlsCertFile": str(serving.cert),
            "tlsPrivateKeyFile": str(serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority.ca.cert)},
            },
            "authorization": {"mode": "Webhook"},
        }
        config = self.state.write_config("kubelet.json", value)
        client = self.client_config(server, "kubelet", subject)
        kernel_settings.save(self.state)
        self.supervisor.start("kubelet", [
            program, f"--config={config}", f"--kubeconfig={client}", f"--root-dir={self.state.root / 'kubelet'}",
            f"--hostname-override={NAME}", f"--node-ip={GATEWAY}",
        ])  # fmt: skip

    def _launch_proxy(self, program: Path, server: str) -> None:
        client = self.client_config(server, "kube-proxy", "/CN=system:kube-proxy")
        config = self.state.write_config("kube-proxy.json", proxy_config(client, NAME))
        self.state.proxy_mark.touch()
        self.supervisor.start("kube-proxy", [program, f"--config={config}"])

    def _launch_dns(self, program: Path, server: str) -> None:
        client = self.client_config(server, "coredns", f"/CN={dns.USER}")
        config = self.state.write_config("Corefile", dns.corefile(client))
        self.supervisor.start("coredns", [program, "-conf", config])

    @staticmethod
    def _dns_is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{GATEWAY}:{dns.READY_PORT}/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _is_ready(self, server: str) -> bool:
        try:
            conditions = self._api(server).get(f"/api/v1/nodes/{NAME}")["status"].get("conditions", [])
        except (ClusterError, OSError):
            return False
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
