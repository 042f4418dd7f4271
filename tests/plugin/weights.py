"""Digests of the weights that real vLLM has in memory: `python -m tests.plugin.weights LOAD_FORMAT=MODEL...`, a line for each."""

from __future__ import annotations

import hashlib
import sys

import torch

from tests.plugin.harness import Real


def digest(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        load_format, _, model = asked.partition("=")
        print("weights:", digest(Real(model, "bfloat16", load_format=load_format).model))
