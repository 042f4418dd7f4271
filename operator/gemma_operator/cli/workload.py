"""What commands that play or plan a workload have in common: the workload, the profile of the engines, the picture."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gemma_operator.api.parse import stored_profile
from gemma_operator.cli.options import frames, number, share
from gemma_operator.scaling.policy import profile_of
from gemma_operator.scaling.profile import Profile
from gemma_operator.settings import BadSetting

if TYPE_CHECKING:
    from gemma_operator.workload.arrivals import Arrivals

PICTURES = (".png", ".svg", ".html")


def add_workload(parser: ArgumentParser) -> None:
    """The workload, and what is made of it."""
    parser.add_argument(
        "workload",
        help="a log (.csv, .jsonl), a folder of ServeGen clients, or a description such as poisson:rate=10,seconds=3600",
    )
    parser.add_argument("--scale", type=_factor, default=1.0, help="times as many requests (default: 1)")
    parser.add_argument("--crop", type=_span, metavar="FROM:TO", help="only this part, in seconds")
    parser.add_argument(
        "--media-share", type=share, help="give this share of the requests media, in place of the workload's own"
    )
    parser.add_argument("--frames", type=frames, default=6, help="of these media; 1 is an image (default: 6)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: 1)")


def add_engine(parser: ArgumentParser) -> None:
    """What its engines are."""
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="a ConfigMap of `gemma-operator profile`; built-in where absent"
    )
    parser.add_argument(
        "--encoder",
        choices=("batched", "serial"),
        default="batched",
        help="the engine's vision encoder (default: batched)",
    )


def add_output(parser: ArgumentParser) -> None:
    """How the answer is given."""
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="a table, or figures for scripts"
    )
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="write a .png, .svg or .html too")


def read_arrivals(arguments: Namespace) -> tuple[Arrivals, tuple[str, ...]]:
    """The workload, and what is to be said about it. Raises WorkloadError."""
    from gemma_operator.workload.source import read_workload

    log = read_workload(arguments.workload, arguments.seed)
    arrivals = log.arrivals.crop(*arguments.crop) if arguments.crop else log.arrivals
    arrivals = arrivals.scaled(arguments.scale, arguments.seed)
    if arguments.media_share is not None:
        arrivals = arrivals.with_media(arguments.media_share, arguments.seed, arguments.frames)
    return arrivals, log.notes


def read_profile(path: Path | None) -> Profile | None:
    """The profile of a ConfigMap, or of the text in one; None without a file. Raises BadSetting."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.safe_load(text)
        if isinstance(found, dict) and found.get("kind") == "ConfigMap":
            data = found.get("data") or {}
            if len(data) != 1:
                raise ValueError(f"the ConfigMap has {len(data)} keys; one with a profile is expected")
            text = str(*data.values())
        return replace(profile_of(stored_profile(text)), name=path.name)
    except OSError as error:
        raise BadSetting(f"--profile {path} can't be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise BadSetting(f"--profile {path} is none: {error}") from error


def _factor(text: str) -> float:
    return number(text, 0.001, 10_000)


def _span(text: str) -> tuple[float, float]:
    start, _, end = text.partition(":")
    span = number(start or "0", 0, 1e9), number(end, 0, 1e9) if end else 1e12
    if span[0] >= span[1]:
        raise ArgumentTypeError(f"{text!r} holds nothing: give FROM:TO in seconds, such as 240:3600")
    return span


def _picture(text: str) -> Path:
    if not text.endswith(PICTURES):
        raise ArgumentTypeError(f"{text!r} is no {', '.join(PICTURES)}")
    return Path(text)
