"""gemma-operator render: what a GemmaServing becomes, why, and what of it differs from a cluster."""

from __future__ import annotations

import asyncio
import difflib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemma_operator.api.parse import parse
from gemma_operator.api.serving import KIND, GemmaServing
from gemma_operator.cli.documents import read_documents
from gemma_operator.cli.output import dump
from gemma_operator.desired import Defaults, Desired, desired
from gemma_operator.desired.names import APPLIED, ASKED, POOL, TEMPLATE
from gemma_operator.desired.warm_up import warm_up
from gemma_operator.rollout import REVISION, settle
from gemma_operator.settings import BadSetting, read_settings

Object = dict[str, Any]
# What the API server writes by itself.
_NOISE = ("managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink")


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser("render", help="print every object that a GemmaServing becomes")
    parser.add_argument("file", type=Path, help="file with GemmaServings")
    parser.add_argument("-n", "--namespace", default="default", help="namespace of a GemmaServing that names none")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--explain", action="store_true", help="say where each engine flag and variable comes from instead"
    )
    how.add_argument(
        "--diff",
        action="store_true",
        help="show what would change in the cluster of the kubeconfig (with the operator's GEMMA_* settings); exit code 1 if anything",
    )
    how.add_argument(
        "--warm-up",
        action="store_true",
        help="print for each pool a Job that fills its cache (model.cache) for these settings before engines need them",
    )
    parser.set_defaults(command=render)


def render(arguments: Namespace) -> int:
    """Print objects, reasons or differences; returns the exit code."""
    defaults = read_settings().defaults
    servings = [parse(document) for document in read_documents(arguments.file, arguments.namespace)]
    if arguments.diff:
        return asyncio.run(_diff(servings, defaults))
    for serving in servings:
        want = desired(serving, defaults)
        objects = _warm_ups(serving, want) if arguments.warm_up else want.objects
        print(explanation(serving, want) if arguments.explain else dump(objects), end="")
        if not arguments.explain and serving is not servings[-1]:
            print("---")
    return 0


def _warm_ups(serving: GemmaServing, want: Desired) -> list[Object]:
    deployments = {o["metadata"]["labels"][POOL]: o for o in want.children if o["kind"] == "Deployment"}
    return [warm_up(serving, pool, engine, deployments[pool]) for pool, engine in want.engines.items()]


def explanation(serving: GemmaServing, want: Desired) -> str:
    """Each flag and variable of each pool with its reason, then the warnings."""
    lines = []
    for pool, engine in want.engines.items():
        lines += [f"{serving.name}, pool {pool} ({engine.view.class_}): {engine.image}", "  " + " ".join(engine.server)]
        rows = [(" ".join((setting.flag, *setting.values)), setting.why) for setting in engine.command.settings]
        rows += [(argument, f"spec.{engine.view.path}.extraArgs") for argument in engine.command.extra]
        rows += [(f"{v.name}={v.value or '(from a Secret)'}", v.why) for v in engine.environment]
        width = min(60, max(len(left) for left, _ in rows))
        lines += [
            f"  {left:<{width}}  {why}" if len(left) <= width else f"  {left}\n  {'':<{width}}  {why}"
            for left, why in rows
        ]
        lines.append("")
    lines += [f"warning {warning.id}: {warning.message}" for warning in want.warnings]
    return "\n".join(lines).rstrip("\n") + "\n"


async def _diff(servings: Iterable[GemmaServing], defaults: Defaults) -> int:
    from gemma_operator.cluster import Cluster, Refused
    from gemma_operator.connection import NoCluster, connect

    try:
        cluster = Cluster(connect("render"))
        found = [await _difference(cluster, serving, defaults) for serving in servings]
    except (NoCluster, Refused) as error:
        raise BadSetting(str(error)) from error
    except Exception as error:  # whatever the connection fails with: one line, no traceback
        raise BadSetting(f"the cluster can't be asked: {error}") from error
    print("".join(found), end="")
    return int(any(found))


async def _difference(cluster: Any, serving: GemmaServing, defaults: Defaults) -> str:
    there = await cluster.get(KIND, serving.namespace, serving.name)
    serving = serving.model_copy(update={"uid": there["metadata"]["uid"] if there else ""})
    out = []
    for child in desired(serving, defaults).objects:
        kind, name = child["kind"], child["metadata"]["name"]
        live = await cluster.get(kind, serving.namespace, name)
        wanted = settle(serving, child, live)[0] if kind == "Deployment" else child
        after = await cluster.apply(wanted, dry_run=True) if there else child
        before = dump([_plain(live)]).splitlines(keepends=True) if live else []
        lines = difflib.unified_diff(
            before, dump([_plain(after)]).splitlines(keepends=True), f"cluster {kind}/{name}", f"file {kind}/{name}"
        )
        out += list(lines)
    return "".join(out)


def _plain(found: Mapping[str, Any]) -> Object:
    """An object without what changes by itself."""
    meta = {key: value for key, value in found["metadata"].items() if key not in _NOISE}
    marks = (REVISION, APPLIED, ASKED, TEMPLATE)
    meta["annotations"] = {key: value for key, value in meta.get("annotations", {}).items() if key not in marks}
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": meta, "spec": found["spec"]}
