"""vLLM's own argument parser, of any version that is on this machine, as a process that answers line by line."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from gemma_operator.engine.flag_table import VERSIONS
from gemma_operator.engine.versions import Version, spell
from tools.flag_table.wheels import folder
from tools.images.engine_venv import engine_venv

ROOT = Path(__file__).parents[2]
# What images/engine/requirements-cpu.txt installs.
INSTALLED: Version = (0, 32, 0)


@cache
def versions() -> list[Version]:
    """The versions whose parser can run here: the installed one, and those that `make flags` unpacked."""
    return [version for version in VERSIONS if version == INSTALLED or folder(version).exists()]


@dataclass(frozen=True)
class Answer:
    """What the parser says of a command line: why it refuses (None: it accepts), and which flags the line sets.

    A word that no flag takes sets `model_tag`, which the server ignores.
    """

    error: str | None
    flags: list[str]


class EngineParser:
    """The parser of one version. Takes a few seconds to start and then thousands of lines a second; close it, or use `with`."""

    def __init__(self, version: Version) -> None:
        sources = [] if version == INSTALLED else [str(folder(version))]
        environment = {
            "PYTHONPATH": ":".join([*sources, str(ROOT)]),
            "PATH": "/usr/bin:/bin",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._version = version
        self._process = subprocess.Popen(
            [engine_venv() / "bin/python", "-m", "tests.support.parser_worker"],
            env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Every spelling that the parser knows, with the flag's name. Waits until the parser has started."""
        spellings: dict[str, str] = json.loads(self._line())
        return spellings

    def answer(self, argv: Sequence[str]) -> Answer:
        """What the engine says of the arguments after `python3 -m vllm.entrypoints.openai.api_server`."""
        assert self.spellings
        assert self._process.stdin
        print(json.dumps(list(argv)), file=self._process.stdin, flush=True)
        return Answer(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return line
        raise RuntimeError(f"the parser of vLLM {spell(self._version)} ended with code {self._process.wait()}")

    def accepts(self, argv: Sequence[str]) -> str | None:
        """None where the engine takes the arguments, else what it says before it exits."""
        return self.answer(argv).error

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
