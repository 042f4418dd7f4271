"""Where a cluster keeps its files: one folder per cluster in the user's cache, nothing elsewhere."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .console import ClusterError, say

SOCKET_PATH_LIMIT = 107  # bytes; sun_path of unix(7) less its final zero


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemma-serving"


@dataclass(frozen=True)
class State:
    """The folder of one cluster. `containerd/root` holds the imported images and outlives the cluster."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", self.name):
            raise ClusterError(
                f"cluster name {self.name!r} is not usable: 1 to 40 lower-case letters, digits and '-', for example 'local'"
            )

    @property
    def root(self) -> Path:
        return cache_home() / "clusters" / self.name

    @property
    def record(self) -> Path:
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def proxy_mark(self) -> Path:
        """Exists once this cluster's kube-proxy may have made its nftables tables, which can't carry a mark themselves."""
        return self.root / "made-proxy-tables"

    @property
    def images(self) -> Path:
        return self.root / "containerd" / "root"

    @property
    def containerd_socket(self) -> Path:
        path = self.root / "containerd" / "sock"
        if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            raise ClusterError(
                f"the socket path {path} is longer than {SOCKET_PATH_LIMIT} bytes: use a shorter XDG_CACHE_HOME"
            )
        return path

    def create(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.pki, self.config, self.root / "logs", self.root / "pids"):
            folder.mkdir(exist_ok=True, mode=0o700)

    def write_config(self, name: str, value: str | dict[str, Any]) -> Path:
        """A configuration file; a dict is written as JSON, which every YAML reader takes."""
        path = self.config / name
        path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
        return path

    def read_record(self) -> dict[str, Any] | None:
        """What `up` wrote when the cluster was ready; None where it never became so."""
        try:
            record: dict[str, Any] = json.loads(self.record.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return record

    @contextmanager
    def locked(self) -> Iterator[None]:
        with exclusive(self.root.parent / f"{self.name}.lock", f"cluster {self.name!r}"):
            yield


def all_states() -> list[State]:
    folder = cache_home() / "clusters"
    return [State(path.name) for path in sorted(folder.glob("*")) if path.is_dir()]


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it when this process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process is at work on {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
