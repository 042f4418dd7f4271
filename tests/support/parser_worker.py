"""Says first which spellings the engine's own parser knows, and then of each command line on stdin what the parser says.

A line is JSON in both directions. Runs in the engine's Python.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from tools.flag_table.real_parser import cli_args, flag_of, new_parser, spellings, with_quiet_stdout


class Refused(Exception):
    """What the parser says before it would exit with code 2."""


def refuse(message: str) -> NoReturn:
    raise Refused(message)


class Parser:
    """vLLM's parser without the work that is the same for every line: the defaults are filled in once, not per line."""

    def __init__(self) -> None:
        self._module = cli_args()
        self._parser: Any = new_parser(self._module)
        self._parser.error = refuse
        self.spellings = spellings(self._parser)
        self._flags = {a.dest: flag_of(a) if a.option_strings else a.dest for a in self._parser._actions}
        self._defaults = vars(self._parser.parse_args([]))
        # Only required actions matter beside the positional one, and there is none.
        self._parser._actions = [action for action in self._parser._actions if not action.option_strings]

    def answer(self, line: Sequence[str]) -> dict[str, Any]:
        """The refusal (None: accepted), and the flags that the line sets."""
        given = Namespace()
        try:
            self._parser.parse_args(line, given)
            # A template is a file in the Pod, which isn't here.
            self._module.validate_parsed_serve_args(
                Namespace(**{**self._defaults, **vars(given), "chat_template": None})
            )
        except SystemExit:
            return {"error": "the engine prints something and exits", "flags": []}
        except Exception as error:
            return {"error": str(error), "flags": []}
        # The positional one is set to None where no word is left for it.
        given_flags = [
            self._flags[dest] for dest, value in vars(given).items() if dest != "model_tag" or value is not None
        ]
        return {"error": None, "flags": given_flags}


def serve(stream: Any) -> None:
    parser = Parser()
    print(json.dumps(parser.spellings), file=stream)
    for line in sys.stdin:
        print(json.dumps(parser.answer(json.loads(line))), file=stream)


if __name__ == "__main__":
    with_quiet_stdout(serve)
