"""What a node needs from the machine itself: Linux, root, control groups and a few Debian packages."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import cgroup
from .console import ClusterError, say
from .process import SYSTEM_PATH, run

# A program or plugin of each package that the node uses; a machine that has the program from elsewhere is left alone
PROGRAMS = {
    "containerd": ("containerd", "ctr", "containerd-shim-runc-v2"),
    "runc": ("runc",),
    "iptables": ("iptables",),
    "conntrack": ("conntrack",),
    "ethtool": ("ethtool",),
    "socat": ("socat",),
    "nftables": ("nft",),
    "iproute2": ("ip",),
    "openssl": ("openssl",),
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")
ELSEWHERE = (
    "Two things work without it: 'up --mode control-plane' (an API server without Pods), and CONTEXT=NAME with the"
    " kubeconfig context of a cluster that runs already (kind, for one)."
)


def check_machine() -> None:
    """Raise everything that keeps a node from running here, in one message."""
    lacks = []
    if not sys.platform.startswith("linux"):
        raise ClusterError(f"a node runs on Linux only, this is {sys.platform}. {ELSEWHERE}")
    if os.geteuid() != 0:
        lacks.append("root (run it as root: containers, mounts and network devices need it)")
    if not cgroup.hierarchies():
        lacks.append(
            "writable control groups (nothing of type cgroup or cgroup2 is mounted read-write; in a container: run it"
            " privileged)"
        )
    if lacks:
        raise ClusterError(f"a node can't run here, it lacks {' and '.join(lacks)}. {ELSEWHERE}")


def find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def program(name: str) -> str:
    if not (path := find_program(name)):
        raise ClusterError(f"{name} is not on PATH: it was there when the cluster started; install it again")
    return path


def cni_folder() -> Path:
    """The first folder that holds every plugin; where none does, the one that the Debian package fills."""
    return next((folder for folder in CNI_FOLDERS if _has_plugins(folder)), CNI_FOLDERS[0])


def _has_plugins(folder: Path) -> bool:
    return all((folder / plugin).exists() for plugin in CNI_PLUGINS)


def missing() -> list[str]:
    lacking = _missing(PROGRAMS)
    return lacking if _has_plugins(cni_folder()) else [*lacking, "containernetworking-plugins"]


def ensure() -> None:
    """Install what a node lacks, after saying so."""
    _install(missing, ELSEWHERE)


def ensure_programs(wanted: Mapping[str, tuple[str, ...]]) -> None:
    """Install the packages, keys of `wanted`, whose programs are not all here."""
    _install(lambda: _missing(wanted), "")


def _missing(wanted: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [package for package, programs in wanted.items() if not all(map(find_program, programs))]


def _install(lacking: Callable[[], list[str]], otherwise: str) -> None:
    if not (wanted := lacking()):
        return
    if not shutil.which("apt-get"):
        said = f"install {' '.join(wanted)} (Debian's names; there is no apt-get here to do it). {otherwise}"
        raise ClusterError(said.strip())
    say(f"will install the Debian packages {' '.join(wanted)}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=env, shown="apt-get update")
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], env=env, shown="apt-get install")
    if still := lacking():
        raise ClusterError(
            f"{' '.join(still)}: installed, and yet their programs are not found; see 'dpkg -L {still[0]}'"
        )
    say(f"installed {' '.join(wanted)}")
