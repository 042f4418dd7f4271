"""The programs of a cluster: found on the machine, or compiled once from pinned Go modules and cached by content."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .console import ClusterError, Progress, duration, say
from .state import cache_home, exclusive

HERE = Path(__file__).parent
MEMORY_PER_BUILD = 4 << 30  # bytes; the Go linker holds about 2 GiB for the API server, the compiler the same again
REFERENCE_CORES = 2  # the cold durations below were measured with that many


@dataclass(frozen=True)
class Tool:
    """`seconds` is a cold build on 2 cores, in the order of the table (shared packages count once)."""

    name: str
    folder: str
    package: str
    module: str
    seconds: int
    minimum: tuple[int, int]
    version_args: tuple[str, ...] = ("--version",)
    stamps: tuple[str, ...] = ()
    tags: str = ""
    toolchain: str = ""
    """Go toolchain that the module asks for where the installed one may be older; Go fetches it as it does modules."""

    @property
    def source(self) -> Path:
        return HERE / self.folder

    @property
    def version(self) -> str:
        """The pinned version, as go.mod has it."""
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", (self.source / "go.mod").read_text(), re.M
        )
        if not found:
            raise ClusterError(
                f"{self.source / 'go.mod'} does not require {self.module}: run 'go get {self.module}' there"
            )
        return found[1]

    @property
    def ldflags(self) -> str:
        """Without its version a Kubernetes server calls itself v0.0.0-master+$Format…, which breaks clients that parse it."""
        major, minor, _ = self.version.removeprefix("v").split(".", 2)
        values = {"version": self.version, "number": self.version.removeprefix("v"), "major": major, "minor": minor}
        return " ".join(["-s -w", *(f"-X {stamp.format_map(values)}" for stamp in self.stamps)])

    @property
    def built_name(self) -> str:
        """What `go build` calls it: the last part of the package path that is no major version."""
        return next(part for part in reversed(self.package.split("/")) if not re.fullmatch(r"v\d+", part))

    @cached_property
    def cached(self) -> Path:
        content = hashlib.sha256()
        ours = sorted(self.source.glob("*.go")) if self.package.startswith("gemmaserving.dev/") else []
        for path in (self.source / "go.mod", self.source / "go.sum", *ours):
            content.update(path.read_bytes())
        asked = [self.toolchain] if self.toolchain else []
        content.update("\0".join([*asked, go_version(), self.package, self.ldflags, self.tags]).encode())
        return cache_home() / "bin" / f"{self.name}-{content.hexdigest()[:16]}" / self.name


KUBERNETES_STAMPS = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
)

HELM3 = "helm.sh/helm/v3"
# Without a cluster Helm 3 renders for the Kubernetes that its own client is of, which its Makefile stamps too: 1.20 otherwise
HELM3_STAMPS = (
    f"{HELM3}/internal/version.version={{version}}",
    *(f"{HELM3}/pkg/{part}.k8sVersionM{end}" for part in ("chartutil", "lint/rules") for end in ("ajor=1", "inor=37")),
)


def _kubernetes(name: str, seconds: int, version_args: tuple[str, ...] = ("--version",)) -> Tool:
    return Tool(
        name, "modules/kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", seconds, (1, 33), version_args,
        KUBERNETES_STAMPS,
    )  # fmt: skip


def _prometheus(name: str, seconds: int) -> Tool:
    """Release 3.16.0 with Kubernetes discovery only: the others are most of its size, and Debian's package lacks this one."""
    return Tool(
        name, "modules/prometheus", f"github.com/prometheus/prometheus/cmd/{name}", "github.com/prometheus/prometheus", seconds,
        (3, 0), ("--version",), ("github.com/prometheus/common/version.Version=3.16.0",), "remove_all_sd,enable_kubernetes_sd",
    )  # fmt: skip


TOOLS = {
    tool.name: tool
    for tool in (
        _kubernetes("kube-apiserver", 233),
        _kubernetes("kube-controller-manager", 71),
        _kubernetes("kube-scheduler", 6),
        _kubernetes("kubelet", 16),
        _kubernetes("kube-proxy", 15),
        _kubernetes("kubectl", 19, ("version", "--client")),
        Tool("helm", "modules/helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", 150, (3, 14),
             ("version", "--short"), ("helm.sh/helm/v4/internal/version.version={version}",)),
        Tool("helm3", "modules/helm3", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", 150, (3, 14),
             ("version", "--short"), HELM3_STAMPS),
        Tool("flux-ssa", "modules/flux", "gemmaserving.dev/tools/flux", "github.com/fluxcd/pkg/ssa", 60, (0, 1)),
        Tool("coredns", "modules/coredns", "github.com/coredns/coredns", "github.com/coredns/coredns", 109, (1, 11),
             ("-version",)),
        _prometheus("prometheus", 137),
        _prometheus("promtool", 17),
        Tool("argocd", "modules/argocd", "github.com/argoproj/argo-cd/v3/cmd", "github.com/argoproj/argo-cd/v3", 300,
             (3, 1), ("version", "--client", "--short"), ("github.com/argoproj/argo-cd/v3/common.version={number}",),
             toolchain="go1.27.3"),
        Tool("kwok", "modules/kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", 60, (0, 8)),
        Tool("etcd", "modules/etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", 20, (3, 5)),
    )
}  # fmt: skip
# The garbage collector and the Deployment controller live in the controller manager: API server tests need them
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
NODE = (*CONTROL_PLANE, "kube-scheduler", "kubelet", "kube-proxy", "coredns")
PRETENDED = (*CONTROL_PLANE, "kube-scheduler", "kwok")
MODES = {"control-plane": CONTROL_PLANE, "node": NODE, "pretended-nodes": PRETENDED}
ANY_VERSION = frozenset({"kubectl"})


def ensure(names: Iterable[str]) -> dict[str, Path]:
    """A path for every program; those that this machine doesn't have are compiled now."""
    wanted = list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in TOOLS]:
        raise ClusterError(f"no such program: {', '.join(unknown)}; there are: {', '.join(TOOLS)}")
    found = {name: path for name in wanted if (path := find(name))}
    for name, path in found.items():
        if not path.is_relative_to(cache_home()):
            say(f"{name} is there already: {path}")
    missing = [TOOLS[name] for name in TOOLS if name in wanted and name not in found]
    if missing:
        with exclusive(cache_home() / "bin" / "build.lock", "compiling the cluster's programs"):
            _build([tool for tool in missing if not tool.cached.exists()])
    return found | {tool.name: tool.cached for tool in missing}


def ensure_one(name: str) -> Path:
    return ensure([name])[name]


@cache
def find(name: str) -> Path | None:
    """A program that is there already: KUBEBUILDER_ASSETS, then PATH, then our cache."""
    tool = TOOLS[name]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (path := Path(assets, name)).exists():
        return path
    if on_path := shutil.which(name):
        version = version_of(on_path, tool.version_args)
        if version and (name in ANY_VERSION or version[:2] >= tool.minimum):
            return Path(on_path)
        wanted = ".".join(map(str, tool.minimum))
        say(f"{name} at {on_path} is not used: its version is {version or 'unknown'}, at least {wanted} is needed")
    if shutil.which("go") and tool.cached.exists():
        return tool.cached
    return None


def version_of(program: str | Path, args: Sequence[str]) -> tuple[int, ...] | None:
    try:
        out = subprocess.run([str(program), *args], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(out.stdout)


def parse_version(text: str) -> tuple[int, ...] | None:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else None


@cache
def go_version() -> str:
    go = shutil.which("go")
    if not go:
        raise ClusterError(
            "Go is needed to compile the cluster's programs and is not on PATH: install Go 1.26 or newer, or set"
            " KUBEBUILDER_ASSETS to a folder with kube-apiserver and etcd, or CONTEXT to a cluster that runs already"
        )
    # In the module's folder: its go.mod may choose a newer toolchain than the installed one
    out = subprocess.run(
        [go, "env", "GOVERSION"], cwd=HERE / "modules/kubernetes", capture_output=True, text=True, check=False
    )
    if out.returncode:
        raise ClusterError(
            f"{go} can't compile the cluster's programs, which need Go 1.26 or newer: {out.stderr.strip()[-500:]}"
        )
    return out.stdout.strip()


def _build(tools: Sequence[Tool]) -> None:
    """One `go build` for all programs of a module, so that shared packages are compiled once and links overlap."""
    if not tools:
        return
    groups: dict[tuple[str, str, str], list[Tool]] = defaultdict(list)
    for tool in tools:
        groups[tool.folder, tool.ldflags, tool.tags].append(tool)
    expected = sum(tool.seconds for tool in tools) * REFERENCE_CORES / min(os.cpu_count() or 1, 8)
    say("will compile, once, from pinned Go modules (at most about " + duration(expected) + "):")
    for tool in tools:
        say(f"  {tool.name} {tool.version}")
    workers = max(1, min(available_memory() // MEMORY_PER_BUILD, os.cpu_count() or 1, len(groups)))
    started = time.monotonic()
    compiled: set[str] = set()
    with ThreadPoolExecutor(workers) as pool, Progress() as progress:
        pending = {pool.submit(_build_group, group, compiled) for group in groups.values()}
        reported: set[str] = set()
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            elapsed = time.monotonic() - started
            for name in sorted(compiled - reported):
                progress.done(f"{name} {TOOLS[name].version} compiled ({duration(elapsed)})")
                reported.add(name)
            for build in done:
                build.result()
            progress.show(_status([tool.name for tool in tools if tool.name not in compiled], elapsed, expected))
    say(f"compiled {len(tools)} programs in {duration(time.monotonic() - started)}; kept in {cache_home() / 'bin'}")


def _status(left: Sequence[str], elapsed: float, expected: float) -> str:
    remaining = f"about {duration(expected - elapsed)} left" if elapsed < expected else "longer than expected"
    return f"compiling {', '.join(left)}: {duration(elapsed)}, {remaining}"


def _build_group(tools: Sequence[Tool], compiled: set[str]) -> None:
    """Compile the tools of one module; `compiled` gets the name of each as soon as it is linked."""
    # Made beside the final place: a rename is then atomic, and an interrupted build leaves no half program
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache_home() / "bin") as folder:
        made = {tool: Path(folder, "bin", tool.built_name) for tool in tools}
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", tools[0].ldflags, "-tags", tools[0].tags]
        with Path(folder, "log").open("w+") as log:
            go = subprocess.Popen(
                ["go", "build", *flags, "-o", f"{folder}/bin/", *(tool.package for tool in tools)],
                cwd=tools[0].source,
                env=build_environment(tools[0]),
                stdout=log,
                stderr=log,
            )
            while go.poll() is None:
                compiled.update(tool.name for tool, path in made.items() if path.exists())
                time.sleep(0.2)
            log.seek(0)
            output = log.read()
        if go.returncode:
            names = ", ".join(tool.name for tool in tools)
            raise ClusterError(f"compiling {names} failed in {tools[0].source}:\n{output[-3000:]}")
        for tool, path in made.items():
            tool.cached.parent.mkdir(exist_ok=True)
            path.rename(tool.cached)
            compiled.add(tool.name)


def build_environment(tool: Tool) -> dict[str, str]:
    """The compiler collects garbage less often where memory allows: CoreDNS took 2 min 2 s instead of 2 min 23 s on 2 cores."""
    roomy = {"GOGC": "400"} if available_memory() > 2 * MEMORY_PER_BUILD else {}
    chosen = {"GOTOOLCHAIN": tool.toolchain} if tool.toolchain else {}
    return roomy | os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"} | chosen


def available_memory() -> int:
    """Bytes that new processes can take without swapping; a guess where the system doesn't say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except FileNotFoundError:
        found = None
    return int(found[1]) << 10 if found else 2 * MEMORY_PER_BUILD
