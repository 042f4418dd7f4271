"""docs/capacity-planning.md: its commands run and print what it shows, and its table has every option."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_operator.cli import main, parser
from gemma_operator.workload.source import COMMON, KINDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/capacity-planning.md").read_text()
SHOWN = re.findall(r"```sh\n(.*?)\n```.*?```text\n(.*?)\n```", TEXT, re.S)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=lambda text: text[:30])
def test_commands_print_what_is_shown(command, output, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "gemma-operator"
    assert main(arguments) == 0
    printed = capsys.readouterr()
    lines = {line.rstrip() for line in (printed.out + printed.err).splitlines()}
    assert [line for line in output.splitlines() if line.rstrip() not in lines] == []


def test_other_commands_are_understood():
    named = re.findall(r"`gemma-operator (profile \w+ -[^`]+)`", TEXT)
    assert named
    for command in named:
        assert parser().parse_args(shlex.split(command)).command


def commands(of: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands(sub, f"{path} {name}".strip())


@pytest.mark.parametrize("command", ["plan", "simulate", "profile import", "profile run"])
def test_every_option_is_in_the_table(command):
    options = {
        max(action.option_strings, key=len)
        for action in dict(commands(parser()))[command]._actions
        if action.option_strings and "--help" not in action.option_strings
    }
    rows = re.findall(r"^\| ((?:`[a-z ]+`(?:, )?)+) \| (.*?) \|", TEXT, re.M)
    documented = {
        option
        for of, names in rows
        if any(command.startswith(one.strip("`")) for one in of.split(", "))
        for option in re.findall(r"`(--[a-z-]+)`", names)
    }
    assert documented == options


def test_every_made_up_workload_is_named():
    for word in (*KINDS, *COMMON):
        assert re.search(rf"`{word.replace('_', '-')}[`:]", TEXT), word
