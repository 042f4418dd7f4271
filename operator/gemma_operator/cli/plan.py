"""gemma-operator plan: from a workload and a profile to the engines, GPUs and cost of a fleet."""

from __future__ import annotations

import io
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from gemma_operator.api.model import Model
from gemma_operator.cli import extra
from gemma_operator.cli.options import number, percentile, positive, seconds, share
from gemma_operator.cli.workload import add_engine, add_output, add_workload, read_arrivals, read_profile
from gemma_operator.engine.accelerators import ACCELERATORS, Accelerator, named
from gemma_operator.engine.catalog import lookup, weight_bytes
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import DEFAULT_PROFILE
from gemma_operator.settings import BadSetting

if TYPE_CHECKING:
    from gemma_operator.planning.memory import Memory
    from gemma_operator.workload.arrivals import Arrivals


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser("plan", help="size a fleet for a workload")
    add_workload(parser)
    parser.add_argument("--slo", type=seconds, default=0.3, metavar="TIME", help="target for TTFT (default: 300ms)")
    parser.add_argument(
        "--percentile", type=percentile, default=95.0, help="share of requests within it, in per cent (default: 95)"
    )
    add_engine(parser)
    parser.add_argument("--batch-share", type=share, default=0.0, help="of the requests that may wait (default: 0)")
    parser.add_argument(
        "--deadline", type=_deadline, default=3600.0, metavar="TIME", help="until which they may (default: 1h)"
    )
    parser.add_argument(
        "--cold-start",
        type=_cold_start,
        default=300.0,
        metavar="TIME",
        help="from an order to a Ready engine (default: 300s)",
    )
    parser.add_argument(
        "--model", default="google/gemma-4-E4B-it", help="hub id, for memory and MTP (default: google/gemma-4-E4B-it)"
    )
    parser.add_argument("--precision", choices=("bf16", "fp8", "nvfp4", "w4a16"), help="number format of its weights")
    parser.add_argument("--gpu", type=_gpu, help="kind of GPU, for memory; for instance h100")
    parser.add_argument("--gpus", type=positive, default=1, help="GPUs per engine (default: 1)")
    parser.add_argument("--gpu-hour-price", type=_price, help="price of a GPU-hour, in any currency")
    add_output(parser)
    parser.set_defaults(command=plan)


def plan(arguments: Namespace) -> int:
    """Print the plan; returns the exit code."""
    profile = read_profile(arguments.profile) or DEFAULT_PROFILE
    with extra.simulator("plan"):
        from rich.console import Console

        from gemma_operator.planning.plan import Wish, make_plan
        from gemma_operator.planning.report import figures, show

        arrivals, notes = read_arrivals(arguments)
        model = lookup(arguments.model)
        wish = Wish(
            slo=Slo(arguments.percentile, arguments.slo),
            profile=profile,
            gpus=arguments.gpus,
            cold_start=arguments.cold_start,
            price=arguments.gpu_hour_price,
            batch_share=arguments.batch_share,
            deadline=arguments.deadline,
            batched_encoder=arguments.encoder == "batched",
            mtp_tokens=model.mtp_tokens if model else 4,
            seed=arguments.seed,
        )
        found = make_plan(arrivals, wish, _memory(arguments, arrivals), notes)
        text = io.StringIO()
        show(found, wish, Console(file=text, width=120))
        if arguments.output == "json":
            print(json.dumps(figures(found, wish), indent=2))
        else:
            show(found, wish, Console(width=None if sys.stdout.isatty() else 120))
        if arguments.plot:
            from gemma_operator.planning.plot import save

            try:
                save(found, text.getvalue(), arguments.plot)
            except OSError as error:
                raise BadSetting(f"--plot {arguments.plot} can't be written: {error.strerror}") from error
    return 0


def _memory(arguments: Namespace, arrivals: Arrivals) -> Memory | None:
    from gemma_operator.planning.memory import memory_of

    if arguments.gpu is None:
        return None
    given = Model(id=arguments.model, precision=arguments.precision)
    model, weights = lookup(arguments.model), weight_bytes(given)
    if model is None or weights is None:
        known = "in this precision" if model else "as a model"
        raise BadSetting(
            f"--model {arguments.model} isn't in the catalog {known}: leave out --gpu, or name a google/gemma-4 model"
        )
    tokens = (
        float((arrivals.prompt_tokens + 78 * arrivals.frames + arrivals.output_tokens).mean()) if len(arrivals) else 1.0
    )
    return memory_of(
        model, weights, arguments.gpu, arguments.gpus, tokens, 1 if arguments.precision in ("fp8", "nvfp4") else 2
    )


def _price(text: str) -> float:
    return number(text, 0, 1_000_000)


def _deadline(text: str) -> float:
    return seconds(text, 60, 7 * 86_400)


def _cold_start(text: str) -> float:
    return seconds(text, 0, 7200)


def _gpu(text: str) -> Accelerator:
    if (found := named(text)) is None:
        raise ArgumentTypeError(f"{text!r} is no known GPU: {', '.join(gpu.name for gpu in ACCELERATORS)}")
    return found
