"""The bridge that Pods hang from, marked as ours by its alias."""

import json
import subprocess
from pathlib import Path
from typing import Any

from .console import ClusterError, say
from .network import GATEWAY, POD_CIDR, SERVICE_CIDR
from .process import run
from .state import State

NAME = "gemma0"
NETFILTER = Path("/proc/sys/net/bridge")


def ip(*args: str) -> str:
    return run(["ip", *args])


def mark(state: State) -> str:
    return f"gemma-serving:{state.root}"[:255]  # IFALIASZ less its final zero


def create(state: State) -> None:
    owner = alias()
    if owner is not None:
        raise ClusterError(
            f"a network device {NAME} exists and is not of cluster {state.name!r} (its mark: {owner or 'none'}): one node"
            f" can run on a machine; end the other one, or remove the device by 'ip link delete {NAME}' if nobody needs it"
        )
    for network in (POD_CIDR, SERVICE_CIDR):
        if route := ip("route", "show", "root", network).strip():
            raise ClusterError(
                f"the network {network} is in use on this machine ({route}): the node needs it for itself"
            )
    if not NETFILTER.exists():
        subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False)
    if not NETFILTER.exists():
        raise ClusterError(
            "the kernel module br_netfilter is missing, Services can't work without it: load it by modprobe"
        )
    # A Service's answer must pass connection tracking even when both Pods are on the bridge: nf_call_iptables, set
    # here for this one bridge. Forwarding, too, is switched on for this device alone.
    ip("link", "add", NAME, "type", "bridge", "nf_call_iptables", "1")
    ip("link", "set", NAME, "alias", mark(state))
    ip("address", "add", f"{GATEWAY}/{POD_CIDR.partition('/')[2]}", "dev", NAME)
    ip("link", "set", NAME, "up")
    Path(f"/proc/sys/net/ipv4/conf/{NAME}/forwarding").write_text("1")
    if "-P FORWARD DROP" in run(["iptables", "-S", "FORWARD"]):
        say(
            "warning: the firewall drops what is forwarded (Docker sets it so), and with it what Pods send to Services:"
            f" 'iptables -I FORWARD -i {NAME} -j ACCEPT' lets it pass; or use kind, with CONTEXT=kind-kind"
        )


def belongs_to(state: State) -> bool:
    return alias() == mark(state)


def remove() -> None:
    """The bridge with the Pods' links on it."""
    for link in json.loads(ip("-j", "link", "show", "master", NAME)):
        # A link whose other end went with its namespace may be gone before we come to it
        subprocess.run(["ip", "link", "delete", link["ifname"]], capture_output=True, check=False)
    ip("link", "delete", NAME)


def alias() -> str | None:
    """The mark on the bridge, "" when it has none, None when there is no such device."""
    done = subprocess.run(["ip", "-j", "link", "show", "dev", NAME], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    device: dict[str, Any] = json.loads(done.stdout)[0]
    return str(device.get("ifalias", ""))
