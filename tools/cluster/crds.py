"""CustomResourceDefinitions of others, from their pinned Go modules: nothing of them is kept in this tree."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .console import ClusterError


@dataclass(frozen=True)
class Module:
    """A Go module that holds CRDs; `hash` is that of its content, as in a go.sum."""

    path: str
    version: str
    hash: str
    folder: str

    @cache  # noqa: B019 - two objects per process
    def fetched(self) -> Path:
        """The folder with its CRDs, in Go's module cache. Raises ClusterError."""
        go = shutil.which("go")
        if not go:
            raise ClusterError(f"Go is needed to fetch {self.path} and is not on PATH: install Go 1.26 or newer")
        command = [go, "mod", "download", "-json", f"{self.path}@{self.version}"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        said = json.loads(done.stdout or "{}")
        if done.returncode or said.get("Sum") != self.hash:
            reason = (
                said.get("Error") or done.stderr.strip()[-500:] or f"its hash is {said.get('Sum')}, not {self.hash}"
            )
            raise ClusterError(f"{self.path} {self.version} can't be used: {reason}")
        return Path(said["Dir"], self.folder)

    def crd(self, name: str) -> Path:
        """The file of one CRD, such as gateway.networking.k8s.io_httproutes."""
        return self.fetched() / f"{name}.yaml"


GATEWAY_API = Module(
    "sigs.k8s.io/gateway-api", "v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=", "config/crd/standard"
)
INFERENCE_EXTENSION = Module(
    "sigs.k8s.io/gateway-api-inference-extension",
    "v1.6.0",
    "h1:cjtwMJYcTnLXBYE5ffR1/hHhn7U1aIFfe2RITYmOXVA=",
    "config/crd/bases",
)
PROMETHEUS_OPERATOR = Module(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
)
KEDA = Module(
    "github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=", "config/crd/bases"
)
FLUX_SOURCE = Module(
    "github.com/fluxcd/source-controller",
    "v1.7.0",
    "h1:/fBgS4CSmT5Jj/fjQDF92y+pC3gst1GJjgNSzY8Ff9I=",
    "config/crd/bases",
)
FLUX_KUSTOMIZE = Module(
    "github.com/fluxcd/kustomize-controller",
    "v1.6.0",
    "h1:13S+wqCQ44njSg59DNgm1qMqVkK6+0eoZs+jv4+EWCs=",
    "config/crd/bases",
)
FLUX_HELM = Module(
    "github.com/fluxcd/helm-controller", "v1.4.0", "h1:rkm8rmB6Na7eNc4pJOnvtXEaJ19iKluRtayHKjBxcUM=", "config/crd/bases"
)
