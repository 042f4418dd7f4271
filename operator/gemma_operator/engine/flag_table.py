"""Flags of vLLM's API server by version, as each version's own parser told them (`make flags` writes flag_table.json)."""

from __future__ import annotations

import json
from importlib import resources

Version = tuple[int, int, int]
Row = tuple[str, str, Version, Version]

_DATA = json.loads(resources.files(__package__).joinpath("flag_table.json").read_text())


def _rows(name: str) -> tuple[Row, ...]:
    return tuple((first, second, _version(since), _version(until)) for first, second, since, until in _DATA[name])


def _version(numbers: list[int]) -> Version:
    major, minor, patch = numbers
    return major, minor, patch


VERSIONS: tuple[Version, ...] = tuple(map(_version, _DATA["versions"]))
"""The versions that were read."""
INVERSES_SINCE = _version(_DATA["inverses_since"])
"""From this version on `--disable-x` is a spelling of `--no-enable-x`, and `--enable-x` of `--no-disable-x`."""
FLAGS = _rows("flags")
"""(flag, kind, first version, last version); the kinds are explained in flags.py."""
ALIASES = _rows("aliases")
"""(other spelling, flag, first version, last version)"""
CHOICES = _rows("choices")
"""(flag, values, first version, last version)"""
