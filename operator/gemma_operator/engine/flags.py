"""Which flags vLLM's API server takes, by version. vLLM exits with code 2 on a flag that it doesn't know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gemma_operator.engine.flag_table import FLAGS
from gemma_operator.engine.versions import NEWEST, Version


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its positive spelling, whether a value follows, and the first and last version that take it."""

    name: str
    takes_value: bool
    since: Version
    until: Version


@cache
def known_flags(version: Version) -> Mapping[str, Flag]:
    """Flags of `version` by their positive spelling; a version newer than the table has those of the newest."""
    at = min(version, NEWEST)
    flags = (Flag(*row) for row in FLAGS)
    return {flag.name: flag for flag in flags if flag.since <= at <= flag.until}


def flag_name(argument: str) -> str:
    """Positive spelling of the flag in an argument: `--no-enable-x`, `--enable_x=1` and `--enable-x` are one flag."""
    name = argument.partition("=")[0].replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name
