"""What the operator dies of."""

from __future__ import annotations

import asyncio

import pytest

from gemma_operator import app


async def test_what_kopf_dies_of_is_one_line() -> None:
    async def dies() -> None:
        raise RuntimeError("expired", {"kind": "Status", "code": 410})

    with pytest.raises(app.WatchDied, match=r"^the watch of the API server ended: expired; the operator has to"):
        await app._ended(asyncio.create_task(dies()))
