"""A cluster that somebody else runs, chosen by the name of its kubeconfig context: nothing of it is started or ended."""

import os
import shutil
from pathlib import Path

from .binaries import ensure_one
from .console import ClusterError, say
from .images import read_archive
from .process import run

KIND_PREFIX = "kind-"


def check(context: str) -> None:
    """Raise when the context doesn't exist or its API server doesn't answer."""
    kubectl = ensure_one("kubectl")
    try:
        run([kubectl, "--context", context, "get", "--raw", "/version", "--request-timeout=10s"])
    except ClusterError as error:
        raise ClusterError(
            f"the context {context!r} of {kubeconfig()} doesn't answer: {error}\n"
            "see 'kubectl config get-contexts'; without CONTEXT a cluster is started on this machine"
        ) from error
    say(f"the context {context!r} answers; it is used as it is")


def kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def load(context: str, archives: list[Path]) -> None:
    """kind takes archives; for any other cluster there is no way but a registry."""
    if not context.startswith(KIND_PREFIX):
        raise ClusterError(
            f"don't know how to load an image into the cluster of context {context!r} (only 'kind-…' contexts): push it to a"
            " registry that the cluster pulls from"
        )
    kind = shutil.which("kind")
    if not kind:
        raise ClusterError(f"the context {context!r} is a kind cluster and 'kind' is not on PATH: install it")
    for archive in archives:
        names, cluster = ", ".join(read_archive(archive).names), context.removeprefix(KIND_PREFIX)
        run([kind, "load", "image-archive", archive, "--name", cluster], shown=f"loading {names} into {context}")
        say(f"{names} loaded into {context}")
