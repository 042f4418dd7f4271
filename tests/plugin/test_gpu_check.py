"""tools/gpu_check.py on the CPU with a narrow tower: its figures mean nothing here, its logic does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tools import gpu_check
from tools.gpu_check import Check

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def check() -> Check:
    return Check("cpu", layers=1, hidden=64, intermediate=128, heads=2)


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


def test_compares_our_encoder_with_vllms_and_with_the_serial_loop(check: Check) -> None:
    rows = gpu_check.bits(check, most=2)
    assert {(row["kind"], row["items"]) for row in rows} == {("frame", 1), ("frame", 2), ("image", 1)}
    assert all(
        row["ours_as_stock"] == row["ours_as_per_item_pooling"] == row["plain_as_stock"] == row["items"] for row in rows
    )


def test_every_form_of_the_mask_gives_the_same_bits_here(check: Check) -> None:
    assert all(gpu_check.masks(check).values())


def test_measures_all_three_ways(check: Check) -> None:
    rows = gpu_check.work(check, most=1, rounds=1)
    assert [row["way"] for row in rows if row["kind"] == "frame"] == ["serial", "stock", "ours"]
    ours, stock = (next(row for row in rows if row["way"] == way) for way in ("ours", "stock"))
    assert 0 < ours["launches"] < stock["launches"]


def test_an_operation_that_a_device_lacks_is_told_apart_from_one_that_differs() -> None:
    def missing(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("No available kernel")

    media = torch.arange(6.0).view(3, 2)
    assert gpu_check.alone_as_batched(missing, (media,)) is None
    assert gpu_check.alone_as_batched(lambda part: part * 2, (media,)) is True
    assert gpu_check.alone_as_batched(lambda part: part * len(part), (media,)) is False


GOOD: dict[str, Any] = {
    "device": "GPU",
    "torch": "2.11",
    "transformers": "5.17",
    "bits": [{"kind": "frame", "items": 6, "padding": True, "ours_as_stock": 6}],
    "operations": [{"operation": "linear up", "equal": False}, {"operation": "norm", "equal": True}],
    "work": [
        {
            "kind": "frame",
            "items": 6,
            "way": way,
            "milliseconds": time,
            "launches": 9,
            "waits": waits,
            "peak_bytes": 5,
            "bound_bytes": 6,
        }
        for way, time, waits in (("serial", 60.0, 12), ("stock", 12.0, 7), ("ours", 3.0, 0))
    ],
}


def test_a_good_device_breaks_nothing_and_shows_ratios() -> None:
    assert gpu_check.verdict(GOOD) == []
    text = gpu_check.summary({**GOOD, "broken": []})
    assert "20.0x" in text
    assert "other bits in a batch than alone: linear up" in text


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("bits", {"ours_as_stock": 4}, "4 of 6 have vLLM's bits"),
        ("work", {"waits": 2}, "2 waits for the GPU"),
        ("work", {"peak_bytes": 7}, "7 bytes, the bound is 6"),
    ],
)
def test_what_a_device_breaks_is_said(part: str, change: dict[str, Any], words: str) -> None:
    found = {**GOOD, part: [*GOOD[part][:-1], {**GOOD[part][-1], **change}]}
    (line,) = gpu_check.verdict(found)
    assert words in line


def test_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check", "--device", "cpu", "--out", str(tmp_path / "figures.json")])
    for part in ("masks", "bits", "operations", "work"):
        monkeypatch.setattr(gpu_check, part, lambda *_, part=part: GOOD.get(part, {}))
    monkeypatch.setattr(gpu_check, "Check", lambda *_: type("Fake", (), {"cuda": False}))
    assert gpu_check.main() == 0
    assert '"device": "CPU"' in (tmp_path / "figures.json").read_text()
