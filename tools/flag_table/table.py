"""From what each version's parser says to the rows of the table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

Version = tuple[int, int, int]
Row = tuple[str, str, Version, Version]
WIDTH = 60
"""Characters of values in a row, so that the formatter leaves it on one line."""


class TableError(Exception):
    """vLLM does something that the table can't express; the text says what."""


@dataclass(frozen=True)
class Reading:
    """One version: each flag's kind, the flag behind each spelling, and the values of the flags that have a list."""

    kinds: Mapping[str, str]
    spellings: Mapping[str, str]
    choices: Mapping[str, Sequence[str]]


def flags(readings: Mapping[Version, Reading]) -> list[Row]:
    """(flag, kind, first version, last version), by name."""
    return _spans({v: reading.kinds for v, reading in readings.items()}, readings)


def aliases(readings: Mapping[Version, Reading], inverses_since: Version) -> list[Row]:
    """(spelling, flag, first version, last version) of the spellings that no rule gives."""
    extra = {}
    for version, reading in readings.items():
        given = set().union(*(by_rule(*entry, version >= inverses_since) for entry in reading.kinds.items()))
        if missing := given - reading.spellings.keys():
            raise TableError(f"{version}: the rule of by_rule gives {sorted(missing)}, the parser doesn't")
        extra[version] = {s: flag for s, flag in reading.spellings.items() if s not in given}
    return _spans(extra, readings)


def by_rule(flag: str, kind: str, inverses: bool) -> set[str]:
    """Spellings that follow from a flag's name; gemma_operator.engine.flags has the same rule."""
    if kind != "switch":
        return {flag}
    found = {flag, f"--no-{flag[2:]}"}
    for prefix, inverse in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
        if inverses and flag.startswith(prefix):
            found.add(inverse + flag.removeprefix(prefix))
    return found


def inverses_since(readings: Mapping[Version, Reading]) -> Version:
    """First version where `--disable-x` switches `--enable-x` off."""
    return min(v for v, reading in readings.items() if reading.spellings.get("--disable-lora") == "--enable-lora")


def choices(readings: Mapping[Version, Reading]) -> list[Row]:
    """(flag, values, first version, last version), as many values of the same span in a row as a line has room for."""
    each = {v: {f"{f} {word}": f for f, words in r.choices.items() for word in words} for v, r in readings.items()}
    spans: dict[tuple[str, Version, Version], list[str]] = {}
    for name, flag, since, until in _spans(each, readings):
        spans.setdefault((flag, since, until), []).append(name.removeprefix(f"{flag} "))
    return [
        (flag, line, since, until)
        for (flag, since, until), values in sorted(spans.items())
        for line in wrap(" ".join(values), WIDTH, break_on_hyphens=False)
    ]


def _spans(each: Mapping[Version, Mapping[str, str]], versions: Mapping[Version, Reading]) -> list[Row]:
    """Runs of versions that have a name with the same meaning. A name that goes and comes back has several rows."""
    order = sorted(versions)
    rows = []
    for name in sorted(set().union(*each.values())):
        for meaning, run in groupby(order, key=lambda v: each[v].get(name)):
            span = list(run)
            if meaning is not None:
                rows.append((name, meaning, span[0], span[-1]))
    return rows


def module(readings: Mapping[Version, Reading]) -> str:
    """The text of gemma_operator/engine/flag_table.json: one row a line."""
    since = inverses_since(readings)
    tables = {"flags": flags(readings), "aliases": aliases(readings, since), "choices": choices(readings)}
    head = {"versions": sorted(readings), "inverses_since": since}
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    parts += [f"{json.dumps(name)}: [\n{_rows(rows)}\n]" for name, rows in tables.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(rows: Sequence[Row]) -> str:
    return ",\n".join(json.dumps(row) for row in rows)
