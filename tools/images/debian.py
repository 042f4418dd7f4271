"""Debian packages that a step needs: listed, then installed when that is allowed, else explained."""

import os
import shutil

from .console import ImagesError, run_logged, say
from .recipes import CACHE


def need(purpose: str, programs: dict[str, str]) -> None:
    """`programs` maps each program to the package that brings it."""
    missing = sorted({package for program, package in programs.items() if not shutil.which(program)})
    if not missing:
        return
    command = f"apt-get install -y --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ImagesError(f"{purpose} needs {', '.join(missing)}. On Debian, as root: `{command}`. Then try again.")
    say(f"{purpose} needs the Debian packages {', '.join(missing)}; installing them")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    log = CACHE / "logs" / "apt.log"
    run_logged("apt-get update", ["apt-get", "update", "-q"], log, env)
    run_logged(command, command.split(), log, env)
