"""gemma-operator: run | crd | render."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gemma_operator import __version__
from gemma_operator.api.crd import crd
from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.serving import KIND
from gemma_operator.desired import desired
from gemma_operator.engine.commandline import RefusedArgs
from gemma_operator.engine.versions import UnknownVersion
from gemma_operator.settings import BadSetting, read_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except (BadSetting, InvalidServing, UnknownVersion, RefusedArgs) as error:
        print(f"gemma-operator: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemma-operator", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("run", help="run the operator (settings come from the environment)").set_defaults(command=_run)
    commands.add_parser("crd", help="print the CustomResourceDefinition").set_defaults(command=_crd)
    render = commands.add_parser("render", help="print every object that a GemmaServing becomes")
    render.add_argument("file", type=Path, help="file with a GemmaServing")
    render.set_defaults(command=_render)
    return parser


def _run(_: argparse.Namespace) -> int:
    from gemma_operator.app import run  # kopf and kubernetes take 0.5 s that the other commands don't need
    from gemma_operator.cluster import NoCluster

    try:
        asyncio.run(run(read_settings()))
    except NoCluster as error:
        raise BadSetting(str(error)) from error
    return 0


def _crd(_: argparse.Namespace) -> int:
    _print([crd()])
    return 0


def _render(arguments: argparse.Namespace) -> int:
    try:
        documents = [document for document in yaml.safe_load_all(arguments.file.read_text()) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidServing(f"{arguments.file}: {error}") from error
    if not documents or any(not isinstance(d, dict) or d.get("kind") != KIND for d in documents):
        raise InvalidServing(f"{arguments.file}: must hold GemmaServings, and nothing else")
    defaults = read_settings().defaults
    _print([child for document in documents for child in desired(parse(document), defaults)])
    return 0


class _Plain(yaml.SafeDumper):
    """Writes equal parts out in full, for people."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _print(objects: Iterable[dict[str, Any]]) -> None:
    print(yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=120), end="")
