"""Which flags vLLM's API server takes, by version. vLLM exits with code 2 on a flag that it doesn't know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import chain

from gemma_operator.engine.flag_table import ALIASES, CHOICES, FLAGS, INVERSES_SINCE
from gemma_operator.engine.versions import NEWEST, Version, spell

_INVERSES = {"--enable-": "--disable-", "--disable-": "--enable-"}


class UnknownFlag(ValueError):
    """The engine would refuse the argument, and exit; the text says why, and what to write."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its positive spelling, its kind, and the first and last version that take it.

    Kinds: `flag` (no value), `switch` (no value, `--no-` turns it off), `value` (one), `int`, `float` and `count` (one
    number; a count may end in k or M), `json` (one, in JSON; dotted keys set parts of it), `optional` (one or none), `values` (one or more).
    """

    name: str
    kind: str
    since: Version
    until: Version

    @property
    def takes_value(self) -> bool:
        """Whether a value may follow."""
        return self.kind not in ("flag", "switch")


@cache
def known_flags(version: Version) -> Mapping[str, Flag]:
    """Flags of `version` by their positive spelling; a version newer than the table has those of the newest."""
    at = min(version, NEWEST)
    flags = (Flag(*row) for row in FLAGS)
    return {flag.name: flag for flag in flags if flag.since <= at <= flag.until}


@cache
def choices(flag: str, version: Version) -> frozenset[str]:
    """Values that `version` takes for a flag of the table's CHOICES; empty where the table has no list for the flag."""
    at = min(version, NEWEST)
    rows = (values.split() for name, values, since, until in CHOICES if name == flag and since <= at <= until)
    return frozenset(chain.from_iterable(rows))


def flag_name(argument: str) -> str:
    """Positive spelling of the flag in an argument: `--no-enable-x`, `--enable_x=1` and `--enable-x` are one flag."""
    name = argument.partition("=")[0].replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name


def canonical(argument: str, version: Version) -> str:
    """The flag that `version` sets when it is given `argument`. Raises UnknownFlag."""
    return split(argument, version)[0]


def split(argument: str, version: Version) -> tuple[str, str | None]:
    """The flag that an argument means for `version`, by its positive spelling, and the value in the same argument.

    `--no-enable-x`, `--max_num_seqs=4`, `--max-num-se`, `--compilation-config.mode`, `-tp`, `-n2` and `-O3` all name a flag.
    The rules are those of vLLM's FlexibleArgumentParser.parse_args (vllm/utils/argparse_utils.py, 0.19 to 0.33) and of
    argparse below it (Python 3.11, `_parse_optional`), which takes the unambiguous beginning of a flag for the flag.
    Raises UnknownFlag.
    """
    if argument.startswith("-O"):
        return "--optimization-level", argument[2:].removeprefix("=") or None
    known = spellings(version)
    written, equals, value = argument.partition("=")
    name, dot, _ = written.partition(".")
    if name.startswith("--"):
        name = name.replace("_", "-")
    joined = value if equals else None
    if name in known:
        return known[name], joined
    if name.startswith("--"):
        meant = [spelling for spelling in known if spelling.startswith(name)] if name != "--" else []
    elif (whole := name if dot else argument)[:2] in known:
        meant, joined = [whole[:2]], whole[2:]
    else:
        # argparse of Python 3.11 wants the beginning of a short flag without `=`.
        meant = [spelling for spelling in known if spelling.startswith(whole)]
    if len(meant) == 1:
        return known[meant[0]], joined
    raise UnknownFlag(_refusal(argument, name, sorted(meant), version))


@cache
def spellings(version: Version) -> Mapping[str, str]:
    """Every spelling of every flag that `version` takes, with the flag."""
    at = min(version, NEWEST)
    found = {spelling: flag for spelling, flag, since, until in ALIASES if since <= at <= until}
    for flag in known_flags(version).values():
        found[flag.name] = flag.name
        if flag.kind == "switch":
            found[f"--no-{flag.name[2:]}"] = flag.name
            for prefix, inverse in _INVERSES.items():
                if at >= INVERSES_SINCE and flag.name.startswith(prefix):
                    found[inverse + flag.name.removeprefix(prefix)] = flag.name
    return found


def _refusal(argument: str, name: str, meant: list[str], version: Version) -> str:
    if meant:
        return f"{name} may mean {', '.join(meant[:5])}: write the one that is meant in full"
    if " " in name:
        return f"{argument!r} is one argument: give the flag and its value as two, or join them by ="
    spans = [f"{spell(since)} to {spell(until)}" for flag, _, since, until in FLAGS if flag == name]
    if spans:
        return f"vLLM {spell(version)} has no flag {name}, only {' and '.join(spans)} have it: remove it"
    near = get_close_matches(name, spellings(version), n=1)
    return f"vLLM {spell(version)} has no flag {name}: {f'did you mean {near[0]}?' if near else 'remove it'}"
