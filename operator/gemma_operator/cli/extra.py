"""Commands that need more than the operator does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gemma_operator.settings import BadSetting

_PACKAGES = ("numpy", "numba", "matplotlib")


@contextmanager
def simulator(command: str) -> Iterator[None]:
    """Say in one line what to install where the packages for the simulator are absent. Raises BadSetting."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise BadSetting(f"{command} needs {error.name}: pip install 'gemma-operator[simulator]'") from error
