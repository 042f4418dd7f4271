"""Configuration files of a node's programs. Every path in them is below the cluster's state folder."""

from pathlib import Path
from typing import Any

from .images import PAUSE
from .network import CLUSTER_DOMAIN, DNS_SERVICE, GATEWAY, POD_CIDR

CNI_NETWORK = "gemma-serving"


def cni_config(root: Path, bridge: str) -> dict[str, Any]:
    """A bridge with addresses from a file; the bridge has its own already, so the plugin need not be its gateway."""
    ipam = {
        "type": "host-local",
        "dataDir": str(root / "cni"),
        "ranges": [[{"subnet": POD_CIDR, "gateway": GATEWAY}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    # hairpinMode: a Pod may be its own Service's endpoint
    plugin = {"type": "bridge", "bridge": bridge, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": CNI_NETWORK, "plugins": [plugin]}


def containerd_config(root: Path, socket: Path, cni_bin: Path, cni_conf: Path) -> str:
    """containerd 1.6 and newer. restrict_oom_score_adj: without CAP_SYS_RESOURCE a lower score can't be written, and runc dies."""
    return f"""{containerd_base(root, socket)}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{cni_conf}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{root}/containerd/runc"
"""


def containerd_base(root: Path, socket: Path, disabled: str = "[]") -> str:
    folder = root / "containerd"
    return f"""version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = {disabled}
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""


def kubelet_config(root: Path, socket: Path, cgroup_root: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": "",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(root / "pod-logs"),
        "volumePluginDir": str(root / "volume-plugins"),
        "maxPods": 250,
        "serializeImagePulls": False,
        # Nobody can pull an image again here: none is removed for want of space, and Pods go only when it is nearly out
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
    }


def proxy_config(kubeconfig: Path, node: str) -> dict[str, Any]:
    """No sysctl of the machine's connection tracking is changed: 0 leaves each as it is."""
    unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_CIDR,
        "conntrack": unchanged,
        "healthzBindAddress": f"{GATEWAY}:10256",
        "metricsBindAddress": f"{GATEWAY}:10249",
        "hostnameOverride": node,
    }
