"""The argument parser of the vLLM on the path, whichever version that is. Runs in the engine's Python, not in ours.

    PYTHONPATH=WHEEL:. python -m tools.flag_table.real_parser      (prints the parser's flags as JSON)

One engine environment serves every version: a parser needs little of what vLLM depends on.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from argparse import Action, BooleanOptionalAction
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from unittest.mock import MagicMock

# Where under vllm/entrypoints cli_args.py is: since 0.33, since 0.29, before.
HOMES = ("common", "launchers", "openai")
# Old versions import these; the engine environment, of a newer version, doesn't have them.
MISSING = {"gguf"}
# Functions of vllm/engine/arg_utils.py (and json) that read a JSON value.
READS_JSON = {"loads", "parse_dataclass", "union_dict_and_str"}
# Flags whose values the operator checks, and where vLLM lists them when argparse takes any string.
LISTED_ELSEWHERE = {
    "--kv-cache-dtype": ("vllm.config.cache", "CacheDType"),
    "--load-format": ("vllm.model_executor.model_loader", "LoadFormats"),
}


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports of MISSING give something empty instead of an error."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in MISSING:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return MagicMock(name=spec.name, __path__=[])

    def exec_module(self, module: ModuleType) -> None:
        pass


def cli_args() -> Any:
    """vLLM's module with make_arg_parser and validate_parsed_serve_args."""
    sys.meta_path.append(_Stubs())
    # A CUDA wheel on a machine without a GPU finds no platform; the flags are the same on all.
    platforms: Any = importlib.import_module("vllm.platforms")
    platforms.builtin_platform_plugins["cpu"] = lambda: "vllm.platforms.cpu.CpuPlatform"
    entrypoints = Path(importlib.import_module("vllm").__path__[0]) / "entrypoints"
    home = next(name for name in HOMES if (entrypoints / name / "cli_args.py").exists())
    return importlib.import_module(f"vllm.entrypoints.{home}.cli_args")


def new_parser(module: Any) -> Any:
    """The parser that `python3 -m vllm.entrypoints.openai.api_server` makes."""
    return module.make_arg_parser(importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser())


def flag_of(action: Action) -> str:
    """The flag's name: its first long spelling."""
    return next(spelling for spelling in action.option_strings if spelling.startswith("--"))


def spellings(parser: Any) -> dict[str, str]:
    """Every spelling that the parser knows, those hidden from its help too, with the flag's name."""
    return {spelling: flag_of(action) for spelling, action in parser._option_string_actions.items()}


def _kind(action: Action) -> str:
    if isinstance(action, BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "flag"
    if action.nargs in ("+", "?"):
        return "values" if action.nargs == "+" else "optional"
    if action.type and _reads_json(action.type):
        return "json"
    # The types are closures over closures: what they take tells more than what they are called.
    kinds = (("value", "x"), ("count", "1k"), ("float", "1.5"), ("int", "1"))
    return next((kind for kind, text in kinds if _takes(action.type or str, text)), "value")


def _takes(read: Any, text: str) -> bool:
    try:
        read(text)
    except Exception:
        return False
    return True


def _reads_json(read: Any) -> bool:
    """Whether a type function, or one that it wraps, reads JSON."""
    if getattr(read, "__name__", "") in READS_JSON:
        return True
    cells = getattr(read, "__closure__", None) or ()
    return any(callable(cell.cell_contents) and _reads_json(cell.cell_contents) for cell in cells)


def _choices(parser: Any) -> dict[str, list[str]]:
    actions = {flag_of(action): action for action in parser._option_string_actions.values()}
    found = {flag: action.choices for flag, action in actions.items() if action.choices}
    for flag, (module, name) in LISTED_ELSEWHERE.items():
        found.setdefault(flag, get_args(getattr(importlib.import_module(module), name)))
    return {flag: sorted(map(str, values)) for flag, values in found.items()}


def reading() -> dict[str, Any]:
    """What the tool keeps of a version: kinds and spellings of its flags, and the values of some."""
    parser = new_parser(cli_args())
    kinds = {flag_of(action): _kind(action) for action in parser._option_string_actions.values()}
    return {"kinds": kinds, "spellings": spellings(parser), "choices": _choices(parser)}


def with_quiet_stdout(work: Callable[[Any], None]) -> None:
    """Calls `work` with a stream to our standard output, which nothing else can write to: vLLM logs there."""
    with os.fdopen(os.dup(1), "w", buffering=1) as ours:
        os.dup2(2, 1)
        work(ours)


if __name__ == "__main__":
    with_quiet_stdout(lambda stream: json.dump(reading(), stream))
