"""The script that writes the flag table: what it makes of what the parsers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma_operator.engine.flag_table import CHOICES, VERSIONS
from gemma_operator.engine.flags import choices, known_flags, spellings
from tools.flag_table.table import Reading, TableError, aliases, flags, module
from tools.flag_table.table import choices as choice_rows
from tools.flag_table.wheels import pins

TABLE = Path(__file__).parents[2] / "operator/gemma_operator/engine/flag_table.json"
V1, V2, V3 = (0, 1, 0), (0, 2, 0), (0, 3, 0)


def reading(*values: str, spellings: dict[str, str] | None = None, **kinds: str) -> Reading:
    """One version with the flags --a, --b ..., of which --a takes `values`."""
    named = {f"--{name}": kind for name, kind in kinds.items()}
    return Reading(named, {**{name: name for name in named}, **(spellings or {})}, {"--a": values})


def test_the_table_is_what_the_script_writes_of_its_content() -> None:
    listed = {flag for flag, *_ in CHOICES}
    readings = {
        version: Reading(
            {flag.name: flag.kind for flag in known_flags(version).values()},
            spellings(version),
            {flag: sorted(choices(flag, version)) for flag in listed},
        )
        for version in VERSIONS
    }
    assert module(readings) == TABLE.read_text()


def test_every_version_of_the_table_has_its_wheel_pinned() -> None:
    assert [pin.version for pin in pins()] == list(VERSIONS)
    assert all(" --hash=sha256:" in pin.requirement for pin in pins())


def test_a_flag_that_comes_back_or_changes_has_a_row_for_each_span() -> None:
    readings = {V1: reading(a="value", b="flag"), V2: reading(a="value"), V3: reading(a="json", b="flag")}
    assert flags(readings) == [
        ("--a", "value", V1, V2),
        ("--a", "json", V3, V3),
        ("--b", "flag", V1, V1),
        ("--b", "flag", V3, V3),
    ]


def test_an_alias_has_the_versions_that_know_it() -> None:
    readings = {V1: reading(a="value"), V2: reading(a="value", spellings={"-a": "--a", "--first": "--a"})}
    assert aliases(readings, V3) == [("--first", "--a", V2, V2), ("-a", "--a", V2, V2)]


def test_a_rule_that_vllm_gives_up_is_no_table() -> None:
    with pytest.raises(TableError, match="--no-a"):
        aliases({V1: reading(a="switch")}, V3)


def test_values_stand_with_the_versions_that_take_them() -> None:
    readings = {V1: reading("x", "y", a="value"), V2: reading("x", "z", a="value")}
    assert choice_rows(readings) == [("--a", "y", V1, V1), ("--a", "x", V1, V2), ("--a", "z", V2, V2)]
