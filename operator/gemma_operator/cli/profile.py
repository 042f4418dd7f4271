"""gemma-operator profile: what one engine carries within the SLO, as the ConfigMap that the autoscaler reads."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemma_operator.api.scaling import MeasuredWith
from gemma_operator.api.values import duration_seconds
from gemma_operator.cli.output import dump
from gemma_operator.planning.measured import capacity_profile, config_map, sentences, summary
from gemma_operator.planning.operating import Found, curves, operating_point
from gemma_operator.planning.results import ResultError, read_results
from gemma_operator.planning.stages import CLOSED, CONSTANT, POISSON, UNKNOWN, Stage
from gemma_operator.scaling.pool import Slo

BOUND_ONLY = 3
"""Exit code where the SLO's limit lies outside of the rates that were tested."""
_PROCESSES = {"constant": CONSTANT, "poisson": POISSON, "concurrent": CLOSED}


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser("profile", help="find what an engine carries within the SLO")
    kinds = parser.add_subparsers(required=True, metavar="import|run")
    imported = kinds.add_parser("import", help="from results of guidellm, inference-perf or aiperf")
    imported.add_argument("files", nargs="+", type=Path, metavar="FILE", help="result file, or a folder of them")
    imported.add_argument(
        "--arrivals", choices=sorted(_PROCESSES), help="how requests arrived, where the result doesn't say it"
    )
    add_options(imported)
    imported.set_defaults(command=import_results)


def add_options(parser: ArgumentParser) -> None:
    """What both ways to a profile have in common."""
    parser.add_argument("--slo", type=seconds, default=0.3, metavar="TIME", help="target for TTFT (default: 300ms)")
    parser.add_argument(
        "--percentile", type=percentile, default=95.0, help="share of requests within it, in per cent (default: 95)"
    )
    parser.add_argument("--engines", type=positive, default=1, help="engines behind the measured address (default: 1)")
    parser.add_argument("--model", help="hub id of the model, where the result doesn't say it")
    parser.add_argument("--engine-version", help="vLLM version that was measured")
    parser.add_argument("--gpu", help="GPU that was measured, for instance h100")
    parser.add_argument("--name", default="gemma-profile", help="name of the ConfigMap (default: gemma-profile)")
    parser.add_argument("-n", "--namespace", help="its namespace")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="ConfigMap, or figures")


def import_results(arguments: Namespace) -> int:
    """Print the profile of what load tools measured; returns the exit code."""
    slo = Slo(arguments.percentile, arguments.slo)
    stages = read_results(arguments.files, slo)
    if told := _PROCESSES.get(arguments.arrivals or ""):
        stages = [replace(stage, process=told) if stage.process == UNKNOWN else stage for stage in stages]
    return show(stages, slo, arguments)


def show(stages: Sequence[Stage], slo: Slo, arguments: Namespace) -> int:
    """Print what the stages say, as a ConfigMap or as figures; what is to be said about it goes to stderr."""
    points = [found for curve in curves(stages) if (found := operating_point(curve, slo))]
    if not points:
        raise ResultError(
            "no stage of these results says anything of the engine: was the load client on its own limit?"
        )
    lines = sentences(points, slo, arguments.engines)
    print("\n".join(lines), file=sys.stderr)
    known = [point for point in points if point.rate]
    bounded = len(known) == len(points) and all(point.crossed for point in points)
    if arguments.output == "json":
        print(json.dumps(summary(points, arguments.engines), indent=2))
    elif known:
        measured = MeasuredWith(
            model=arguments.model or _only(known),
            engine_version=arguments.engine_version,
            gpu=arguments.gpu,
        )
        profile = capacity_profile(known, arguments.engines, measured)
        print(dump([config_map(arguments.name, arguments.namespace, profile, lines)]), end="")
    else:
        print("no profile: test lower rates, or serve with another GPU, model or encoder", file=sys.stderr)
    return 0 if bounded else BOUND_ONLY


def _only(points: Sequence[Found]) -> str | None:
    models = {point.model for point in points}
    return models.pop() if len(models) == 1 else None


def seconds(text: str) -> float:
    """A duration such as 300ms, in seconds."""
    try:
        found = duration_seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if not 0.01 <= found <= 600:
        raise ArgumentTypeError(f"{text} is out of range: give 10ms to 10m")
    return found


def percentile(text: str) -> float:
    """A percentile of 50 to 99.9."""
    return number(text, 50, 99.9)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def number(text: str, low: float, high: float) -> float:
    """A number within bounds."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not low <= found <= high:
        raise ArgumentTypeError(f"{text!r} is no number from {low:g} to {high:g}")
    return found
