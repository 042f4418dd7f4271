"""The three programs of Argo CD that sync: redis, repo-server and application controller, against a cluster by its kubeconfig.

No argocd-server, no TLS and no repository Secret: git repositories are `file://` folders of this machine.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.cluster import binaries, packages
from tools.cluster.console import ClusterError
from tools.cluster.network import free_ports
from tools.cluster.process import Supervisor, run

NAMESPACE = "argocd"
CONTROLLER = "argocd-application-controller"
REPO_SERVER = "argocd-repo-server"
REDIS = "redis-server"
PROGRAMS = {"redis-server": ("redis-server",), "git": ("git",), "util-linux": ("setpriv",)}
CRDS = ("application-crd.yaml", "appproject-crd.yaml")


class ArgoCD:
    """Use as `with ArgoCD(kubeconfig, folder) as argo:`; `folder` takes its logs and checkouts, and must be new."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self._folder = folder
        self._supervisor = Supervisor(folder)
        # The controller's metrics have no address flag: they listen on every address. A network namespace of its own
        # would hide them, but there the API server of a node cluster, on the bridge, is out of reach.
        self._redis, self._repo, self._repo_metrics, self._metrics = free_ports(4)

    def __enter__(self) -> Self:
        packages.ensure_programs(PROGRAMS)
        tools = binaries.ensure(("argocd", "helm", "kubectl"))
        self._kubectl = tools["kubectl"]
        for name in ("pids", "logs", "bin", "checkouts"):
            (self._folder / name).mkdir(parents=True)
        self._lay_out(tools)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for name in (CONTROLLER, REPO_SERVER, REDIS):
            self._supervisor.end(name, grace=10)

    def log(self, name: str) -> str:
        return self._supervisor.log(name).read_text(errors="replace")

    def configure(self, data: Mapping[str, str]) -> None:
        """Set keys of argocd-cm, with a new controller: some keys are read at its start only."""
        self._supervisor.end(CONTROLLER, grace=10)
        self._run("patch", "configmap", "argocd-cm", "--type=merge", "-p", json.dumps({"data": data}))
        self._start_controller()

    def _launch(self) -> None:
        self._start(
            REDIS, ["redis-server", "--port", self._redis, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        )
        checkouts = self._folder / "checkouts"
        self._start(
            REPO_SERVER,
            [REPO_SERVER, "--address", "127.0.0.1", "--port", self._repo, "--metrics-address", "127.0.0.1",
             "--metrics-port", self._repo_metrics, "--redis", f"127.0.0.1:{self._redis}", "--disable-tls", "--client-ca-path=",
             "--logformat", "text"],
            ARGOCD_GPG_ENABLED="false", TMPDIR=str(checkouts), ARGOCD_ASK_PASS_SOCK=str(checkouts / "askpass.sock"),
            ARGOCD_PLUGINSOCKFILEPATH=str(checkouts), ARGOCD_PAUSE_GEN_AFTER_FAILED_ATTEMPTS="0",
        )  # fmt: skip
        self._install()
        self._supervisor.wait(REPO_SERVER, lambda: _answers(self._repo_metrics, "/healthz?full=true"))
        self._start_controller()

    def _start_controller(self) -> None:
        self._start(
            CONTROLLER,
            [CONTROLLER, "--kubeconfig", self.kubeconfig, "-n", NAMESPACE, "--redis", f"127.0.0.1:{self._redis}",
             "--repo-server", f"127.0.0.1:{self._repo}", "--repo-server-plaintext", "--metrics-port", self._metrics,
             "--persist-resource-health", "--self-heal-backoff-timeout-seconds=0", "--self-heal-timeout-seconds=1",
             "--app-resync-jitter=0", "--logformat", "text"],
            # Then an Application's usual https://kubernetes.default.svc is the cluster of this kubeconfig
            ARGOCD_FAKE_IN_CLUSTER="true", KUBECONFIG=str(self.kubeconfig),
        )  # fmt: skip
        self._supervisor.wait(CONTROLLER, lambda: _answers(self._metrics, "/healthz"))

    def _start(self, name: str, argv: list[Any], **environment: str) -> None:
        """Started so that the kernel ends it with this process, however that ends."""
        setpriv = packages.program("setpriv")
        self._supervisor.start(name, [setpriv, "--pdeathsig", "TERM", *argv], {"PATH": self._path(), **environment})

    def _lay_out(self, tools: Mapping[str, Path]) -> None:
        """The programs as Argo CD looks for them on PATH; one program is all of its own, by the name it is called."""
        links = dict.fromkeys((REPO_SERVER, CONTROLLER), tools["argocd"]) | {"helm": tools["helm"]}
        for name, program in links.items():
            (self._folder / "bin" / name).symlink_to(program)
        # repo-server runs it at every checkout, even with signatures off
        wrapper = self._folder / "bin/git-verify-wrapper.sh"
        wrapper.write_text("#!/bin/sh\nexit 0\n")
        wrapper.chmod(0o755)

    def _path(self) -> str:
        return f"{self._folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"

    def _install(self) -> None:
        """What has to exist before the controller starts, and before any Application."""
        self._run("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for name in CRDS:
            self._run("apply", "--server-side", "-f", str(_module() / "manifests/crds" / name))
        # kubectl's own wait fails on a CRD so new that it has no conditions yet
        self._supervisor.wait(REPO_SERVER, self._serves_applications, what="Argo CD's CRDs")
        self._run("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": [*_settings(), _project()]})

    def _serves_applications(self) -> bool:
        try:
            self._run("get", "applications.argoproj.io,appprojects.argoproj.io")
        except ClusterError:
            return False
        return True

    def _run(self, *args: str, stdin: Mapping[str, Any] | None = None) -> None:
        command = [str(self._kubectl), "--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE, *args]
        text = json.dumps(stdin) if stdin else None
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(
                f"the cluster of {self.kubeconfig} did not take 'kubectl {' '.join(args)}': {done.stderr.strip()}"
            )


def health(obj: Path, settings: Path) -> str:
    """What Argo CD's own Lua makes of a resource in a file, with an argocd-cm in another; needs no cluster."""
    program = binaries.ensure_one("argocd")
    return run(
        [program, "admin", "settings", "resource-overrides", "health", obj, "--argocd-cm-path", settings],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
    )


def _settings() -> list[dict[str, Any]]:
    """Without the Secret's key, later changes of argocd-cm are dropped silently."""

    def named(kind: str, name: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/part-of": "argocd", "app.kubernetes.io/name": name}
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}}

    secret = {"stringData": {"server.secretkey": "unused-without-argocd-server"}}
    return [named("ConfigMap", "argocd-cm"), named("Secret", "argocd-secret") | secret]


def _project() -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AppProject",
        "metadata": {"name": "default", "namespace": NAMESPACE},
        "spec": {
            "sourceRepos": ["*"],
            "destinations": [{"namespace": "*", "server": "*"}],
            "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
        },
    }


def _module() -> Path:
    """Argo CD's module folder, with the manifests that belong to the compiled program."""
    tool = binaries.TOOLS["argocd"]
    found = run(["go", "mod", "download", "-json", tool.module], cwd=tool.source, env=binaries.build_environment(tool))
    return Path(json.loads(found)["Dir"])


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
