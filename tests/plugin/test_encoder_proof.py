"""The committed figures: what they must say, and that the page shows them."""

from __future__ import annotations

import json

from tools.encoder_proof import DATA, DOCS, FIRST, LAST, tables

FIGURES = json.loads(DATA.read_text())


def test_the_page_shows_the_committed_figures() -> None:
    shown = DOCS.read_text().split(FIRST)[1].split(LAST)[0].strip()
    assert shown == tables(FIGURES).strip()


def test_no_medium_of_two_hundred_steps_and_more_differs() -> None:
    runs = [found for name, found in FIGURES.items() if name.startswith("equality")]
    assert sum(found["batches"] for found in runs) >= 200
    assert {found["media_that_differ"] for found in runs} == {found["fallbacks"] for found in runs} == {0}


def test_a_step_is_one_call_without_a_wait() -> None:
    ours = [
        row
        for row in FIGURES["table e4b bfloat16"]["rows"]
        if row["encoder"] == "plugin" and row["load"] != "16 images"
    ]
    assert {(row["encoder_calls"], row["waits"]) for row in ours} == {(1, 0)}


def test_the_bound_on_memory_holds() -> None:
    rows = [row for name, found in FIGURES.items() if name.startswith("memory") for row in found["rows"]]
    assert all(row["measured"] <= row["bound"] < row["vllm"] for row in rows)
