"""The proof of the engine's vision encoder on real vLLM (CPU): the same bits as vLLM's own, in fewer calls and without waits.

    python -m tools.encoder_proof --write             everything, about half an hour; renews docs/data/encoder-proof.json
    python -m tools.encoder_proof --write burst       one part of it
    python -m tools.encoder_proof equality --model tiny --dtype bfloat16 --batches 200

Runs itself again under the engine's own Python, since only that has vLLM. It claims no speed: on a CPU there is none to gain.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "encoder-proof.json"
DOCS = ROOT / "docs" / "engine-image.md"
TOKEN_BUDGET = 4096
FIRST, LAST = "<!-- proof -->", "<!-- /proof -->"

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 192, "intermediate": 768, "heads": 3, "layers": 4},
    "e4b": {"hidden": 768, "intermediate": 3072, "heads": 12, "layers": 1},
    "31b": {"hidden": 1152, "intermediate": 4304, "heads": 16, "layers": 1, "standardize": True},
}
"""Vision towers: the tiny model's, and the real ones' widths with fewer layers (31b's from the research notes)."""

EVERYTHING: list[tuple[str, str, str, int]] = [
    ("memory", "e4b", "bfloat16", 0),
    ("memory", "31b", "bfloat16", 0),
    ("memory", "e4b", "float32", 0),
    ("equality", "tiny", "bfloat16", 120),
    ("equality", "tiny", "float32", 100),
    ("equality", "e4b", "bfloat16", 12),
    ("equality", "e4b", "float32", 6),
    ("equality", "31b", "bfloat16", 4),
    ("table", "e4b", "bfloat16", 0),
    ("burst", "tiny", "bfloat16", 0),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["equality", "table", "memory", "burst"])
    parser.add_argument("--model", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--write", action="store_true", help="run everything, or one part of it, and write the data file"
    )
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        paths = [str(ROOT), str(ROOT / "images" / "engine")]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = ":".join(paths)  # vLLM looks at a model's class in a process of its own
        if arguments.part == "burst":
            print(json.dumps(burst(arguments)))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            figures = {"equality": equality, "table": table, "memory": memory}[arguments.part]
            print(json.dumps(figures(real_model(arguments, Path(folder)), arguments)))
        return 0
    if not arguments.write and not arguments.part:
        parser.error("name a part, or --write")
    if not arguments.write:
        print(json.dumps(run(arguments.part, arguments.model, arguments.dtype, arguments.batches), indent=1))
        return 0
    for part, model, dtype, batches in EVERYTHING:
        if not arguments.part or arguments.part == part:
            keep(f"{part} {model} {dtype}", run(part, model, dtype, batches))
    return 0


def keep(name: str, figures: dict[str, Any]) -> None:
    """Puts one part's figures in the place of its earlier ones."""
    known = json.loads(DATA.read_text()) if DATA.exists() else {}
    DATA.write_text(json.dumps({**known, name: figures}, indent=1) + "\n")
    before, _, rest = DOCS.read_text().partition(FIRST)
    _, _, after = rest.partition(LAST)
    DOCS.write_text(f"{before}{FIRST}\n{tables(json.loads(DATA.read_text()))}\n{LAST}{after}")


def tables(data: dict[str, Any]) -> str:
    """The figures as docs/engine-image.md shows them."""
    parts = [
        title + "\n\n" + "\n".join(rows)
        for title, rows in (equality_rows(data), work_rows(data), memory_rows(data), burst_rows(data))
    ]
    return "\n\n".join(parts)


def equality_rows(data: dict[str, Any]) -> tuple[str, list[str]]:
    rows = ["| tower | type | steps | images | videos | frames | media that differ |", "|---|---|---|---|---|---|---|"]
    for name, found in data.items():
        if name.startswith("equality"):
            _, model, dtype = name.split()
            counts = (found[key] for key in ("batches", "images", "videos", "frames", "media_that_differ"))
            rows.append(f"| {model} | {dtype} | " + " | ".join(map(str, counts)) + " |")
    return (
        "Random steps (mixed shapes, 1 to 32 frames, mixed requests, single, empty; chunks of 1 to 64), every bit compared:",
        rows,
    )


def work_rows(data: dict[str, Any]) -> tuple[str, list[str]]:
    rows = [
        "| load | card | encoder calls | pooler calls | waits | operations | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    found = data["table e4b bfloat16"]["rows"]
    for stock, ours in zip(found[::2], found[1::2], strict=True):
        pairs = [f"{stock[key]} → **{ours[key]}**" for key in ("encoder_calls", "pooler_calls", "waits", "operations")]
        peaks = f"{stock['peak_bytes'] / 1e6:.0f} → {ours['peak_bytes'] / 1e6:.0f}"
        rows.append(f"| {stock['load']} | {stock['card']} | " + " | ".join([*pairs, peaks]) + " |")
    return (
        "What one step does, vLLM's own → ours (E4B's width, one layer of its 16; operations without views):",
        rows,
    )


def memory_rows(data: dict[str, Any]) -> tuple[str, list[str]]:
    rows = ["| tower | type | patches | measured MB | our bound | vLLM's formula |", "|---|---|---|---|---|---|"]
    for name, found in data.items():
        if name.startswith("memory"):
            _, model, dtype = name.split()
            for row in found["rows"]:
                sizes = (f"{row[key] / 1e6:.0f}" for key in ("measured", "bound", "vllm"))
                rows.append(f"| {model} | {dtype} | {row['patches']} | " + " | ".join(sizes) + " |")
    return "What one more item adds to the peak of a call:", rows


def burst_rows(data: dict[str, Any]) -> tuple[str, list[str]]:
    rows = [
        "| soft tokens per step | videos in each step | soft tokens in the largest | tokens of the running answer meanwhile |",
        "|---|---|---|---|",
    ]
    found = data["burst tiny bfloat16"]
    for limit, steps in found["limits"].items():
        videos = " + ".join(map(str, steps["videos"]))
        rows.append(
            f"| {limit} | {videos} | {max(steps['videos']) * found['video_tokens']} | {sum(steps['answers'])} |"
        )
    return (
        f"The steps of vLLM's scheduler while 8 videos of 6 frames arrive at once beside a running answer (token budget {found['token_budget']}):",
        rows,
    )


def run(part: str, model: str, dtype: str, batches: int) -> dict[str, Any]:
    """One part in a process of its own: a process holds one model."""
    from tools.images.engine_venv import engine_venv

    folder = engine_venv()
    command = [
        str(folder / "bin" / "python"),
        __file__,
        part,
        "--model",
        model,
        "--dtype",
        dtype,
        "--batches",
        str(batches),
    ]
    started = time.monotonic()
    done = subprocess.run([*command, "--engine", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{part} of {model} in {dtype} failed:\n{done.stderr[-6000:]}")
    print(f"{part} of {model} in {dtype}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def real_model(arguments: argparse.Namespace, folder: Path) -> Any:
    from tests.plugin import harness

    tiny = arguments.engine / "models" / "gemma-4-tiny"
    return harness.Real(harness.write_model(tiny, folder, **MODELS[arguments.model]), arguments.dtype)


def equality(real: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Random steps through both encoders with the same chunks: how many batches and media, and how many differ."""
    import torch
    from gemma_engine.chunks import even_sizes

    from tests.plugin import harness

    random_ = random.Random(arguments.seed)
    images = [real.image(*size, seed=index) for index, size in enumerate([*harness.SIZES, harness.FULL, harness.FULL])]
    shapes = [(640, 360), (640, 480), (360, 640), (480, 480), (700, 490)]
    videos = [
        real.video(frames, *shapes[frames % 5], seed=100 + frames) for frames in (1, 2, 3, 5, 6, 8, 12, 16, 24, 32)
    ]
    total = {"batches": 0, "empty": 0, "images": 0, "videos": 0, "frames": 0, "media_that_differ": 0}
    with real.serving():
        for _ in range(arguments.batches):
            items = harness.random_items(random_, images, videos, most_images=4 if arguments.model == "tiny" else 3)
            total["batches"] += 1
            if not items:
                total["empty"] += not real.model.embed_multimodal()
            for modality, batch in real.batches(items):
                rows = batch["pixel_values" if modality == "image" else "pixel_values_videos"]
                most = random_.choice([1, 2, 3, 4, 7, 16, 64])
                real.model._most_items = lambda *_, most=most: most
                ours = real.ours(batch)
                stocks = real.stocks_in_chunks(modality, batch, even_sizes(len(rows), most))
                total["images" if modality == "image" else "videos"] += len(ours)
                total["frames"] += len(rows) if modality == "video" else 0
                pairs = zip(ours, stocks, strict=True)
                total["media_that_differ"] += sum(not torch.equal(our, stock) for our, stock in pairs)
    return {**total, "fallbacks": real.model.record["fallbacks"], "state": real.model.record["state"]}


def table(real: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Calls, waits, operations and peak memory of vLLM's own encoder on two cards and of ours, by load."""
    from tests.plugin import harness

    loads = {
        f"{count} images": [real.image(*harness.SIZES[index % 9], seed=index) for index in range(count)]
        for count in (1, 4, 8, 16)
    }
    for frames in (1, 6, 16, 32):
        loads[f"1 video of {frames}"] = [real.video(frames, 640, 360, seed=frames)]
    for count in (4, 8):
        loads[f"{count} videos of 6"] = [real.video(6, 640, 360, seed=50 * index) for index in range(count)]
    cards = {"24 GB": (1.9, 24), "80 GB": (6.4, 80)}
    rows = []
    with real.serving():
        real.model._check()
        real.model._profiling = False
        for name, items in loads.items():
            for card, (free, whole) in cards.items():
                harness.MEMORY.free, harness.MEMORY.total = int(free * harness.GIB), whole * harness.GIB
                for who in ("stock", "plugin"):
                    rows.append({"load": name, "card": card, "encoder": who, **asdict(worked(real, who, items))})
    return {"rows": rows, "layers": MODELS[arguments.model]["layers"]}


def worked(real: Any, who: str, items: list[Any]) -> Any:
    """What a step with these media, all of one modality, did."""
    from tests.plugin import harness

    ((modality, batch),) = real.batches(items)

    def encode() -> None:
        if who == "plugin":
            real.ours(batch)
        else:
            real.stocks(modality, batch)

    work = harness.Work()
    with harness.counted(real.model, work):
        encode()
    return replace(work, peak_bytes=harness.peak_bytes(encode))


def memory(real: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """What one more item really adds to the peak, beside the bound that chunks are sized with and vLLM's formula."""
    from gemma_engine.chunks import item_bytes

    config, itemsize = real.model.vision_tower.config, real.model.model_dtype.itemsize
    rows = []
    with real.serving():
        for tokens in (70, 280, 560):
            patches = tokens * 9
            rows.append(
                {
                    "patches": patches,
                    "measured": (chunk_peak(real, tokens, 3) - chunk_peak(real, tokens, 1)) // 2,
                    "bound": item_bytes(patches, config.hidden_size, config.intermediate_size, itemsize),
                    "vllm": patches * 4 * config.position_embedding_size * 8,
                }
            )
    return {"rows": rows}


def chunk_peak(real: Any, tokens: int, items: int) -> int:
    import torch
    from gemma_engine.encoder import encode_chunk
    from gemma_engine.selfcheck import grid, pattern

    from tests.plugin import harness

    tower, dtype, cpu = real.model.vision_tower, real.model.model_dtype, torch.device("cpu")
    columns = tokens // 10 - 1
    positions = torch.stack([grid(columns, 10, tokens * 9, cpu)] * items)
    pixels = pattern(items, tokens * 9, 3 * tower.config.patch_size**2, cpu, dtype)

    def encode() -> None:
        encode_chunk(tower, pixels, positions, [columns * 10] * items, dtype)

    encode()
    return harness.peak_bytes(encode)


def burst(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the steps of vLLM's own scheduler encode when 8 videos arrive at once beside a running answer, by limit."""
    sys.path.append(str(ROOT / "operator"))
    from gemma_operator.engine import plugin
    from tests.plugin.scheduling import VIDEO_TOKENS, scheduler, steps_of_a_burst

    model = str(arguments.engine / "models" / "gemma-4-tiny")
    limits = {"none": None, "800": plugin.encoder_limit(800), "400": plugin.encoder_limit(400)}
    found = {}
    for name, limit in limits.items():
        steps = steps_of_a_burst(scheduler(model, TOKEN_BUDGET, limit), requests=8)
        found[name] = {"videos": [step.videos for step in steps], "answers": [step.answers for step in steps]}
    return {"token_budget": TOKEN_BUDGET, "video_tokens": VIDEO_TOKENS, "limits": found}


if __name__ == "__main__":
    sys.exit(main())
