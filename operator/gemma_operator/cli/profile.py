"""gemma-operator profile: what one engine carries within the SLO, as the ConfigMap that the autoscaler reads."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemma_operator.api.scaling import MeasuredWith
from gemma_operator.cli.options import frames, number, percentile, positive, seconds, share
from gemma_operator.cli.output import dump
from gemma_operator.planning.errors import ResultError
from gemma_operator.planning.measured import capacity_profile, config_map, sentences, summary
from gemma_operator.planning.operating import Found, curves, operating_point
from gemma_operator.planning.results import read_results
from gemma_operator.planning.stages import CLOSED, CONSTANT, POISSON, UNKNOWN, Stage
from gemma_operator.scaling.pool import Slo
from gemma_operator.settings import BadSetting

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
    _options(imported)
    imported.set_defaults(command=import_results)
    measured = kinds.add_parser("run", help="by an own open-loop sweep of a server")
    measured.add_argument(
        "--url", required=True, type=_url, help="of a server of OpenAI's API, for instance http://localhost:8000"
    )
    measured.add_argument("--api-key-file", type=Path, help="file with the key that the server wants")
    measured.add_argument(
        "--rates", type=_rates, default=[], help="requests/s to test, for instance 4,6,8; searched where absent"
    )
    measured.add_argument("--start", type=_rate, default=1.0, help="rate at which the search begins (default: 1)")
    measured.add_argument("--requests", type=positive, default=200, help="per rate (default: 200)")
    measured.add_argument(
        "--burstiness",
        type=_burstiness,
        default=2.0,
        help="of the arrivals: 1 is random, 2 comes in bursts (default: 2)",
    )
    measured.add_argument("--prompt-tokens", type=positive, default=500, help="text of a prompt (default: 500)")
    measured.add_argument("--output-tokens", type=positive, default=100, help="of an answer (default: 100)")
    measured.add_argument(
        "--media-share", type=share, default=0.0, help="of the requests with media, 0 to 1 (default: 0)"
    )
    measured.add_argument("--frames", type=frames, default=6, help="of a video; 1 is an image (default: 6)")
    measured.add_argument("--seed", type=int, default=1, help="of prompts and arrivals (default: 1)")
    _options(measured)
    measured.set_defaults(command=run_sweep)


def _options(parser: ArgumentParser) -> None:
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


def run_sweep(arguments: Namespace) -> int:
    """Measure a server and print its profile; returns the exit code."""
    from gemma_operator.planning.prompts import Wanted
    from gemma_operator.planning.sweep_run import Load, Target, served, sweep

    slo = Slo(arguments.percentile, arguments.slo)
    headers = _headers(arguments.api_key_file)
    wanted = Wanted(arguments.prompt_tokens, arguments.output_tokens, arguments.media_share, arguments.frames)
    load = Load(arguments.requests, arguments.burstiness, arguments.seed)

    async def measure() -> list[Stage]:
        model, version = await served(arguments.url, headers)
        arguments.engine_version = arguments.engine_version or version
        target = Target(arguments.url, arguments.model or model, wanted, headers)
        return await sweep(target, load, slo, arguments.rates, arguments.start, _tell)

    stages = asyncio.run(measure())
    return show(stages, slo, arguments)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _headers(key_file: Path | None) -> dict[str, str]:
    if key_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {key_file.read_text().strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"--api-key-file {key_file} can't be read: {error}") from error


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


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2]:
        raise ArgumentTypeError(f"{text!r} is no URL such as http://localhost:8000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _rate(text: str) -> float:
    return number(text, 0.01, 10_000)


def _rates(text: str) -> list[float]:
    return sorted({_rate(part) for part in text.split(",")})


def _burstiness(text: str) -> float:
    return number(text, 0.1, 10)
