"""Write docs/cli.md, every command of gemma-operator with its arguments, from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gemma_operator.cli import parser

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def commands(of: argparse.ArgumentParser, said: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command that does something, with its one line of help."""
    groups = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield of, said
    for group in groups:
        helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for name, sub in group.choices.items():
            yield from commands(sub, f"{said} {helps.get(name, '')}".strip())


def spelled(action: argparse.Action) -> str:
    """An argument as it is typed. argparse's own spelling differs between versions of Python."""
    values = "\\|".join(map(str, action.choices or ()))
    name = values or str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    shown = ", ".join(f"`{option}`" for option in action.option_strings)
    return shown if action.nargs == 0 else f"{shown} `{name}`"


def section(command: argparse.ArgumentParser, said: str) -> str:
    """A heading, what the command does, and a table of its arguments."""
    formatter = argparse.HelpFormatter(command.prog)
    rows = [
        f"| {spelled(action)}{' (required)' if action.option_strings and action.required else ''} "
        f"| {' '.join(formatter._expand_help(action).split()).replace('|', chr(92) + '|') if action.help else ''} |\n"
        for action in command._actions
        if not isinstance(action, argparse._HelpAction)
    ]
    table = "\n| argument | meaning |\n|---|---|\n" + "".join(rows) if rows else ""
    return f"\n## {command.prog}\n{said[:1].upper()}{said[1:]}.\n{table}"


def page() -> str:
    """The reference of all commands."""
    head = (
        "# Command line\n\nWritten by `make generate` from the code; don't edit.\n\n"
        "From a clone, after `make setup`, `gemma-operator` is `PYTHONPATH=operator .venv/bin/python -m gemma_operator`. "
        "Every command has `--help`.\n\n"
        "Exit codes: 0 done, 1 a difference was found (`render --diff`), 2 something is wrong and one line says what, "
        "3 the SLO would be missed (`simulate`) or its limit wasn't found (`profile`).\n"
    )
    return head + "".join(section(command, said) for command, said in commands(parser()))


if __name__ == "__main__":
    PAGE.write_text(page())
