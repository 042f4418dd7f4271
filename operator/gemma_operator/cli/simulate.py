"""gemma-operator simulate: what would happen to a pool under a workload, and when something fails."""

from __future__ import annotations

import io
import json
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemma_operator.api.parse import parse
from gemma_operator.cli import extra
from gemma_operator.cli.documents import read_documents
from gemma_operator.cli.options import number, positive, seconds, share
from gemma_operator.cli.workload import add_engine, add_output, add_workload, read_arrivals, read_profile
from gemma_operator.desired import desired
from gemma_operator.engine.view import PoolView
from gemma_operator.settings import BadSetting, read_settings

FAULTS = ("prometheus", "empty", "frozen", "half", "operator", "gpus", "image-pull")
MISSED = 3
"""Exit code where the SLO would be missed."""
MONDAY = datetime(2026, 11, 30, tzinfo=UTC)
"""The day of a start that names none."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser("simulate", help="say what would happen to a pool under a workload")
    parser.add_argument("file", type=Path, help="file with one GemmaServing")
    add_workload(parser)
    parser.add_argument("--pool", help="which pool; the one with a TTFT objective where it is the only one")
    add_engine(parser)
    parser.add_argument(
        "--engine-speed",
        type=_speed,
        default=1.0,
        help="how fast engines really are, over what the profile says: 0.7 is a profile that promises too much (default: 1)",
    )
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND:HH:MM:LENGTH",
        help=f"something fails from then on for so long, such as prometheus:12:00:10m; of {', '.join(FAULTS)}; may be repeated",
    )
    parser.add_argument(
        "--start",
        type=_start,
        default=MONDAY,
        metavar="TIME",
        help="when the workload begins, HH:MM of a Monday or a date with a time, UTC: for schedules and faults (default: 00:00)",
    )
    parser.add_argument(
        "--cold-start",
        type=_cold_start,
        default=(226.0, 428.0),
        metavar="TIME[-TIME]",
        help="from creation to Ready, at random between two times (default: 226s-428s)",
    )
    parser.add_argument("--failed-starts", type=share, default=0.0, help="share of starts that fail once (default: 0)")
    parser.add_argument("--gpus", type=positive, help="GPUs that the cluster has for this pool (default: enough)")
    parser.add_argument("--initial", type=positive, help="engines at the start (default: what its first minutes need)")
    parser.add_argument(
        "--pre-roll",
        type=_preroll,
        default=1800.0,
        metavar="TIME",
        help="of the workload's own end, played before it and not counted: the operator has seen traffic before (default: 30m)",
    )
    add_output(parser)
    parser.set_defaults(command=simulate)


def simulate(arguments: Namespace) -> int:
    """Print what would happen; returns the exit code."""
    view, donors, unfit = _view(arguments.file, arguments.pool)
    profile = read_profile(arguments.profile)
    with extra.simulator("simulate"):
        from rich.console import Console

        from gemma_operator.planning.what_if import Circumstances, what_if
        from gemma_operator.planning.what_if_report import figures, show

        start = arguments.start.timestamp()
        arrivals, notes = read_arrivals(arguments)
        given = Circumstances(
            start=start,
            profile=profile,
            speed=arguments.engine_speed,
            batched_encoder=arguments.encoder == "batched",
            cold_start=arguments.cold_start,
            failed_starts=arguments.failed_starts,
            gpus=arguments.gpus,
            faults=_faults(arguments.fault, arguments.start),
            donors=donors,
            initial=arguments.initial,
            preroll=arguments.pre_roll,
            seed=arguments.seed,
        )
        found = what_if(view, arrivals, given, (*notes, *unfit))
        text = io.StringIO()
        show(found, Console(file=text, width=120))
        if arguments.output == "json":
            print(json.dumps(figures(found), indent=2))
        else:
            show(found, Console(width=None if sys.stdout.isatty() else 120))
        if arguments.plot:
            from gemma_operator.planning.plot import save_answer

            try:
                save_answer(found, text.getvalue(), arguments.plot)
            except OSError as error:
                raise BadSetting(f"--plot {arguments.plot} can't be written: {error.strerror}") from error
    return 0 if found.holds else MISSED


def _view(file: Path, name: str | None) -> tuple[PoolView, int, list[str]]:
    """The pool that is played, as its engine sees it; how many engines others may lend it, and why some may not."""
    documents = read_documents(file, "default")
    if len(documents) != 1:
        raise BadSetting(f"{file} holds {len(documents)} GemmaServings: give a file with one")
    serving = parse(documents[0])
    want = desired(serving, read_settings().defaults)
    engines = want.engines
    if name is None:
        able = [pool for pool, engine in engines.items() if engine.view.slo]
        if len(able) != 1:
            raise BadSetting(
                f"{file} has {len(able)} pools with a TTFT objective: name one of {', '.join(engines)} with --pool"
            )
        name = able[0]
    if name not in engines:
        raise BadSetting(f"{file} has no pool {name}: it has {', '.join(engines)}")
    pools = [serving.spec.pools[lender] for lender in want.lenders] if name == serving.spec.borrower else []
    donors = sum(min(p.scaling.lend or 0, p.replicas.ceiling - p.replicas.min) for p in pools)
    return engines[name].view, donors, [finding.message for finding in want.warnings if finding.id == "LendingUnfit"]


def _faults(given: list[tuple[str, float, float]], start: datetime) -> tuple[Any, ...]:
    """Times of the day as seconds since the start, the first time that it is so late."""
    from gemma_operator.simulation.faults import Fault, FaultKind

    began = (start - start.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
    faults = []
    for kind, clock, length in given:
        at = clock - began
        at += 86_400 if at < 0 else 0
        faults.append(Fault(FaultKind(kind), at, at + length))
    return tuple(faults)


def _fault(text: str) -> tuple[str, float, float]:
    match = re.fullmatch(r"([a-z-]+):(\d{1,3}):(\d\d):(\w+)", text)
    if not match or int(match[3]) > 59:
        raise ArgumentTypeError(f"{text!r} is no fault: write KIND:HH:MM:LENGTH, such as prometheus:12:00:10m")
    if match[1] not in FAULTS:
        raise ArgumentTypeError(f"{match[1]!r} is nothing that can fail here: {', '.join(FAULTS)}")
    return match[1], 3600.0 * int(match[2]) + 60.0 * int(match[3]), seconds(match[4], 15, 7 * 86_400)


def _start(text: str) -> datetime:
    try:
        if re.fullmatch(r"\d{1,2}:\d\d", text):
            hours, minutes = map(int, text.split(":"))
            return MONDAY.replace(hour=hours, minute=minutes)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time: write HH:MM, or 2026-11-30T08:00") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _cold_start(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    span = seconds(low, 0, 7200), seconds(high or low, 0, 7200)
    if span[0] > span[1]:
        raise ArgumentTypeError(f"{text!r} ends before it begins: write the shorter time first, such as 226s-428s")
    return span


def _speed(text: str) -> float:
    return number(text, 0.05, 20)


def _preroll(text: str) -> float:
    return seconds(text, 0, 86_400)
