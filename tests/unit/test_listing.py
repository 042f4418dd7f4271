"""Kinds that the API server lists late, and which kopf doesn't watch then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from gemma_operator import listing
from gemma_operator.cluster import OPTIONAL, Refused
from gemma_operator.desired.route import HTTP_ROUTE


class Listing:
    """A cluster that answers whether a kind is listed; the last answer stays."""

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
    monkeypatch.setattr(listing.asyncio, "sleep", lambda seconds: sleep(0))


async def test_it_waits_for_its_kind_and_no_longer_than_it_should(caplog: pytest.LogCaptureFixture) -> None:
    assert await listing.listed_within(Listing(False, False, True), 5)  # type: ignore[arg-type]
    assert not await listing.listed_within(Listing(False), 5)  # type: ignore[arg-type]
    assert "is the CRD installed?" in caplog.text
    assert await listing.listed_within(Listing(Refused("no discovery")), 5)  # type: ignore[arg-type]


async def test_it_ends_once_its_kind_came_late() -> None:
    await asyncio.wait_for(listing.until_listed(Listing(*[False] * 70, True), False), 5)  # type: ignore[arg-type]


async def test_a_crd_that_was_removed_and_is_back_ends_the_operator() -> None:
    """kopf would not watch it again, and live on without doing anything."""
    await asyncio.wait_for(listing.until_listed(Listing(True, True, False, True), True), 5)  # type: ignore[arg-type]


ROUTE, OTHERS = OPTIONAL[HTTP_ROUTE], {names for kind, names in OPTIONAL.items() if kind != HTTP_ROUTE}


@pytest.mark.parametrize(
    ("answers", "watched"),
    [
        ([True], lambda: OTHERS),
        ([False, True, False, True, True], lambda: OTHERS),
        ([Refused("busy"), True, Refused("busy"), True], lambda: OTHERS),
    ],
)
async def test_a_kind_that_is_listed_and_not_watched_ends_the_operator(
    answers: list[Any], watched: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await asyncio.wait_for(listing.until_overlooked(Listing(*answers), watched), 5)  # type: ignore[arg-type]
    assert "HTTPRoute came, and isn't watched yet: starting anew" in caplog.text


@pytest.mark.parametrize(
    ("answers", "views"),
    [
        ([True], [OTHERS | {ROUTE}]),
        ([False], [OTHERS]),
        ([True], [None]),
        ([True], [OTHERS, OTHERS | {ROUTE}]),
        ([True, False], [OTHERS]),
    ],
    ids=["watched", "not there", "kopf looks around", "watched a moment later", "gone again"],
)
async def test_else_it_goes_on(answers: list[Any], views: list[Any]) -> None:
    """Each view of what kopf watches holds for a look; the last stays."""
    looks = 0

    def watched() -> Any:
        nonlocal looks
        looks += 1
        return views.pop(0) if len(views) > 1 else views[0]

    task = asyncio.create_task(listing.until_overlooked(Listing(*answers), watched))  # type: ignore[arg-type]
    while looks < 20 and not task.done():
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
