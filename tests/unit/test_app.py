"""What the operator dies of."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from gemma_operator import app


async def test_what_kopf_dies_of_is_one_line() -> None:
    async def dies() -> None:
        raise RuntimeError("expired", {"kind": "Status", "code": 410})

    with pytest.raises(app.WatchDied, match=r"^the watch of the API server ended: expired; the operator has to"):
        await app._ended(asyncio.create_task(dies()))


HANGS = """
import asyncio
from gemma_operator import app, cli

async def stays():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def dies(settings):
    app.task = asyncio.create_task(stays())
    await asyncio.sleep(0)
    raise ValueError("the scaler died")

app.run, cli.GIVE_UP_SECONDS = dies, 1
cli.main(["run"])
"""


def test_a_task_that_does_not_end_holds_up_no_operator_that_has_died() -> None:
    """It was alive, did nothing and took no SIGTERM: kopf takes it, and kopf waited for its own end."""
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "most recent call first" in ended.stderr
