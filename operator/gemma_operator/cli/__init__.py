"""gemma-operator: run | crd | render | explain | profile | plan | simulate | top."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import sys
from collections.abc import Sequence

from gemma_operator import __version__
from gemma_operator.api.crd import crd
from gemma_operator.api.parse import InvalidServing
from gemma_operator.cli import explain, plan, profile, render, simulate, top
from gemma_operator.cli.output import dump
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.versions import UnknownVersion
from gemma_operator.planning.errors import ResultError, SweepError
from gemma_operator.settings import BadSetting, read_settings
from gemma_operator.workload.errors import WorkloadError

ERRORS = (BadSetting, InvalidServing, UnknownVersion, RefusedSpec, ResultError, SweepError, WorkloadError)
"""What is told in one line; anything else is a fault of ours."""

STDERR = 2
GIVE_UP_SECONDS = 30
"""An operator that has ended, and whose tasks or threads don't let themselves be ended, tells where they hang and ends all the same."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except ERRORS as error:
        print(f"gemma-operator: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="gemma-operator", description=__doc__)
    made.add_argument("--version", action="version", version=__version__)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("run", help="run the operator (settings come from the environment)").set_defaults(command=_run)
    commands.add_parser("crd", help="print the CustomResourceDefinition").set_defaults(command=_crd)
    render.add_to(commands)
    explain.add_to(commands)
    profile.add_to(commands)
    plan.add_to(commands)
    simulate.add_to(commands)
    top.add_to(commands)
    return made


def _run(_: argparse.Namespace) -> int:
    from gemma_operator.app import WatchDied, run  # kopf and kubernetes take 0.5 s that the other commands don't need
    from gemma_operator.connection import NoCluster

    async def run_to_the_end() -> None:
        try:
            await run(read_settings())
        finally:
            faulthandler.dump_traceback_later(GIVE_UP_SECONDS, exit=True, file=STDERR)

    try:
        asyncio.run(run_to_the_end())
    except NoCluster as error:
        raise BadSetting(str(error)) from error
    except WatchDied as error:
        print(f"gemma-operator: {error}", file=sys.stderr)
        return 1
    return 0


def _crd(_: argparse.Namespace) -> int:
    print(dump([crd()]), end="")
    return 0
