"""The operator's start: it waits for its kind, and starts anew where that comes late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gemma_operator import app
from gemma_operator.cluster import Refused


class Listing:
    """A cluster that lists our kind from the n-th time on, or says something else."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def is_listed(self, kind: str) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(app.asyncio, "sleep", lambda seconds: sleep(0))


async def test_it_waits_for_its_kind_and_no_longer_than_it_should(caplog: pytest.LogCaptureFixture) -> None:
    assert await app._listed_within(Listing(False, False, True), 5)  # type: ignore[arg-type]
    assert not await app._listed_within(Listing(False), 5)  # type: ignore[arg-type]
    assert "is the CRD installed?" in caplog.text
    assert await app._listed_within(Listing(Refused("no discovery")), 5)  # type: ignore[arg-type]


async def test_it_ends_once_its_kind_came_late() -> None:
    await asyncio.wait_for(app._until_listed(Listing(*[False] * 70, True), False), 5)  # type: ignore[arg-type]


async def test_a_crd_that_was_removed_and_is_back_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf would not watch it again, and live on without doing anything."""
    monkeypatch.setattr(app, "LISTED_LOOK_SECONDS", 0)
    await asyncio.wait_for(app._until_listed(Listing(True, True, False, True), True), 5)  # type: ignore[arg-type]


async def test_what_kopf_dies_of_is_one_line() -> None:
    async def dies() -> None:
        raise RuntimeError("expired", {"kind": "Status", "code": 410})

    with pytest.raises(app.WatchDied, match=r"^the watch of the API server ended: expired; the operator has to"):
        await app._ended(asyncio.create_task(dies()))
