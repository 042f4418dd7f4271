"""How far an engine is in its start, by what it writes to its log."""

from __future__ import annotations

import re

# What vLLM 0.19 to 0.33 prints of a phase: model_executor/model_loader/{weight_utils,default_loader}.py for the bars and the
# times of reading, v1/worker/{gpu,cpu}_model_runner.py for what follows.
_READS_WEIGHTS = re.compile(
    r"[Ll]oading (\S+ checkpoint )?shards|Loading safetensors using|Time spent downloading weights|Loading weights took|\[RunAI Streamer\]"
)
_COMPILES = re.compile(r"Model loading took|Warming up model for the compilation")

Marks = tuple[tuple[str, str], ...]
"""(phase, RFC 3339 time at which it began), in the order of the log."""


def marks(log: str) -> Marks:
    """When an engine began to load weights and to compile, from a log whose lines begin with their times."""
    found: dict[str, str] = {}
    for line in log.splitlines():
        at, _, text = line.partition(" ")
        for phase, pattern in (("Loading", _READS_WEIGHTS), ("Compiling", _COMPILES)):
            if phase not in found and pattern.search(text):
                found[phase] = at
    return tuple(found.items())
