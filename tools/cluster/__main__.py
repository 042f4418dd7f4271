"""The command line: python3 -m tools.cluster COMMAND."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from . import binaries, external, leftovers
from .console import ClusterError, say
from .control_plane import ControlPlane, not_running
from .network import NETWORK
from .node import Node
from .pretended import PretendedNodes
from .process import PROXY_VARIABLES, Supervisor
from .state import State, all_states

KINDS: dict[str, type[ControlPlane]] = {
    "node": Node,
    "control-plane": ControlPlane,
    "pretended-nodes": PretendedNodes,
}
MODE_HELP = (
    "node (default): Pods run; needs Linux, root and some Debian packages. control-plane: etcd, API server and controller"
    " manager only (garbage collection and Deployments work, Pods stay Pending); needs neither and starts in seconds."
    " pretended-nodes: a control plane with a scheduler, and nodes on which Pods are Ready by kwok's word, without running"
)


def up(args: argparse.Namespace) -> None:
    if args.context:
        external.check(args.context)
        return
    if args.gpus is not None and args.mode != "node":
        raise ClusterError("--gpus needs --mode node: a control plane has no node to put them on")
    cluster = KINDS[args.mode].start(args.name, keep=True)
    if args.gpus is not None and isinstance(cluster, Node):
        cluster.set_gpus(args.gpus)


def down(args: argparse.Namespace) -> None:
    if args.context:
        say(f"the context {args.context!r} is not ours: nothing to do")
        return
    state = State(args.name)
    if not state.root.exists():
        say(f"no cluster {args.name!r}")
        return
    with state.locked():
        leftovers.clear(state, Supervisor(state.root))
        if args.images:
            leftovers.delete_images(state)
    say(f"{args.name!r} is down" + (f"; its images are kept in {state.images}" if state.images.exists() else ""))


def status(args: argparse.Namespace) -> None:
    if args.context:
        external.check(args.context)
        return
    for state in all_states():
        record = state.read_record()
        handles = Supervisor(state.root).handles()
        if record is None and not handles:
            continue
        mode = record["mode"] if record else "unfinished"
        ready = mode in KINDS and KINDS[mode](state).running()
        print(f"{state.name}: {mode}, {'ready' if ready else 'NOT READY'}")
        for name, handle in handles.items():
            print(f"  {name:24} {'pid ' + str(handle.pid) if handle.alive else 'ENDED'}")
        if record:
            print(f"  {'server':24} {record['server']}\n  {'kubeconfig':24} {state.kubeconfig}")


def build(args: argparse.Namespace) -> None:
    wanted = args.tools.split(",") if args.tools else binaries.MODES[args.mode]
    for name, path in binaries.ensure(wanted).items():
        print(f"{name} {path}")


def kubeconfig(args: argparse.Namespace) -> None:
    print(kubeconfig_of(args))


def kubeconfig_of(args: argparse.Namespace) -> str:
    if args.context:
        return external.kubeconfig()
    state = State(args.name)
    if state.read_record() is None:
        raise ClusterError(not_running(args.name))
    return str(state.kubeconfig)


def load(args: argparse.Namespace) -> None:
    if args.context:
        external.load(args.context, args.archives)
        return
    node = Node(State(args.name))
    if not node.running():
        raise ClusterError(not_running(args.name))
    for archive in args.archives:
        node.load(archive)


def env(args: argparse.Namespace) -> None:
    """Lines for `eval`: the kubeconfig, and a PATH with kubectl and helm."""
    print(f"export KUBECONFIG={shlex.quote(kubeconfig_of(args))}")
    folders = []
    for name in ("kubectl", "helm"):
        if path := binaries.find(name):
            folders.append(str(path.parent))
        else:
            say(f"{name} is neither on PATH nor compiled: 'python3 -m tools.cluster build --tools {name}' compiles it")
    present = os.environ.get("PATH", "").split(":")
    if more := [folder for folder in folders if folder not in present]:
        print(f"export PATH={shlex.quote(':'.join(more))}:$PATH")
    if not args.context and any(os.environ.get(name) for name in PROXY_VARIABLES):
        print(f"export NO_PROXY=${{NO_PROXY:+$NO_PROXY,}}{NETWORK} no_proxy=${{no_proxy:+$no_proxy,}}{NETWORK}")


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(
        prog="python3 -m tools.cluster", description="A real Kubernetes on this machine."
    )
    commands = main_parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--name", default="local", help="which cluster (default: local)")
    shared.add_argument(
        "--context", default=os.environ.get("CONTEXT"),
        help="use the cluster of this kubeconfig context instead of one of ours (default: the variable CONTEXT)",
    )  # fmt: skip

    def command(function: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(function.__name__, help=text, description=text, parents=[shared])  # type: ignore[attr-defined]
        made.set_defaults(function=function)
        return made

    one = command(up, "start a cluster, compiling its programs first where this machine lacks them; no-op when it runs")
    one.add_argument("--mode", choices=KINDS, default="node", help=MODE_HELP)
    one.add_argument("--gpus", type=int, metavar="N", help="pretend N nvidia.com/gpu on the node")
    one = command(down, "end a cluster, or clear what a crash left of it")
    one.add_argument("--images", action="store_true", help="delete the imported images as well")
    command(status, "show the clusters and their parts")
    one = command(build, "compile the programs of a mode, or some by name, and print where they are")
    one.add_argument("--mode", choices=KINDS, default="node", help=MODE_HELP)
    one.add_argument("--tools", metavar="A,B", help=f"these only, of: {', '.join(binaries.TOOLS)}")
    command(kubeconfig, "print the path of the cluster's kubeconfig")
    one = command(load, "import image archives (docker save, buildah push docker-archive:, OCI)")
    one.add_argument("archives", nargs="+", type=Path, metavar="IMAGE.tar")
    command(env, 'print shell lines that set KUBECONFIG and PATH: eval "$(python3 -m tools.cluster env)"')
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        args.function(args)
    except ClusterError as error:
        print(f"[cluster] error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[cluster] interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
