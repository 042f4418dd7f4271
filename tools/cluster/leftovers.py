"""Ending a cluster, whether it is whole or what a crash left of it: only what carries its mark is touched.

Marks: pid files with start times, the state folder in a program's arguments or as a mount's place, our cgroup, the
alias of the bridge, and a file that says that the kube-proxy tables of nftables are ours.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from . import bridge, cgroup, kernel_settings
from .console import ClusterError, say
from .node_config import CNI_NETWORK
from .process import Handle, Supervisor, end
from .state import State

# Seconds of grace after SIGTERM, in the order of ending. An API server that has lost its etcd lingers for a minute, so
# these two are killed, last.
BEFORE_CONTAINERS = {"kube-proxy": 2.0, "coredns": 2.0, "kubelet": 5.0}
AFTER_CONTAINERS = {
    "kwok": 2.0,
    "kube-scheduler": 2.0,
    "kube-controller-manager": 2.0,
    "containerd": 5.0,
    "kube-apiserver": 0.0,
    "etcd": 0.0,
}
PROGRAMS = frozenset(BEFORE_CONTAINERS) | frozenset(AFTER_CONTAINERS) | {"containerd-shim-runc-v2"}
CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")


def clear(state: State, supervisor: Supervisor) -> None:
    """Leave no process, mount, namespace, link, table or file of the cluster, but for its imported images."""
    if not state.root.exists():
        return
    if any(handle.alive for handle in supervisor.handles().values()):
        say(f"ending {state.name!r}")
    _end(supervisor, BEFORE_CONTAINERS)
    on_linux = sys.platform.startswith("linux")
    if on_linux:
        cgroup.kill(state)
        _end_strays(state, {"containerd-shim-runc-v2"})
    _end(supervisor, AFTER_CONTAINERS)
    if on_linux:
        _end_strays(state, PROGRAMS)
        _unmount(state)
        cgroup.remove(state)
        if bridge.belongs_to(state):
            bridge.remove()
            _delete_cni_results()
        kernel_settings.restore(state)
        if state.proxy_mark.exists():
            _delete_proxy_tables()
        _delete_outside_files(state)
    _delete_files(state)


def _end(supervisor: Supervisor, parts: dict[str, float]) -> None:
    for name, grace in parts.items():
        supervisor.end(name, grace=grace)


def _end_strays(state: State, programs: frozenset[str] | set[str]) -> None:
    """What has no pid file: shims of our containerd, and a program whose parent died before it wrote one."""
    mark = f"{state.root}/"
    strays = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(argv[0]).name in programs and any(mark in argument for argument in argv[1:]):
            strays.append(Handle.of(int(folder.name)))
    end(strays, grace=0)


def mounts_under(folder: Path) -> list[Path]:
    """Mount points below a folder, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (_unescape(line.split(" ")[4]) for line in lines)
    return [Path(point) for point in reversed(list(points)) if point.startswith(f"{folder}/")]


def _unescape(text: str) -> str:
    """proc(5) writes space, tab, newline and backslash as octal."""
    for code, char in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", char)
    return text


def _unmount(state: State) -> None:
    for point in mounts_under(state.root):
        subprocess.run(["umount", "--lazy", str(point)], capture_output=True, check=False)
    if left := mounts_under(state.root):
        raise ClusterError(
            f"cannot unmount {', '.join(map(str, left))}: see what uses it (fuser -m), then run 'down' again"
        )


def _delete_proxy_tables() -> None:
    for family in ("ip", "ip6"):
        subprocess.run(["nft", "delete", "table", family, "kube-proxy"], capture_output=True, check=False)


def _delete_outside_files(state: State) -> None:
    """Files that the container runtime and the kubelet write at places that can't be chosen."""
    for address in (state.root / "containerd" / "state").glob("io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)  # of a shim that was killed
    for link in CONTAINER_LOGS.glob("*"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{state.root}/"):
            link.unlink()


def _delete_cni_results() -> None:
    for path in CNI_RESULTS.glob(f"{CNI_NETWORK}-*"):
        container = path.name.removeprefix(f"{CNI_NETWORK}-").rpartition("-")[0]
        for result in CNI_RESULTS.glob(f"*-{container}-*"):
            result.unlink()


def _delete_files(state: State) -> None:
    """All but the images, which take long to import again."""
    for path in state.root.iterdir():
        if path.name != "containerd":
            _delete(path)
    containerd = state.root / "containerd"
    if containerd.exists():
        for path in containerd.iterdir():
            if path.name not in ("root", "images.json"):
                _delete(path)
    else:
        state.root.rmdir()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def delete_images(state: State) -> None:
    """Once the cluster is cleared: what `clear` keeps."""
    if state.root.exists():
        shutil.rmtree(state.root)
