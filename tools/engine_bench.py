"""What the engine's plugin takes and gives on real vLLM (CPU), as data: the time of its start-up self-check, and how long a burst
of videos holds up a running answer with and without the limit on a step's encoding.

    python -m tools.engine_bench --write          both; renews docs/data/engine-bench.json and the tables in docs/engine-image.md
    python -m tools.engine_bench --write stall    one of them

For a machine that does nothing else: a quarter of an hour on 2 cores. Seconds are this machine's; what carries over is the ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "engine-bench.json"
DOCS = ROOT / "docs" / "engine-image.md"
NAME = "heavy"

TOWERS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 192, "intermediate": 768, "heads": 3, "layers": 4},
    "E4B's width, 2 layers": {"hidden": 768, "intermediate": 3072, "heads": 12, "layers": 2},
}
HEAVY = "E4B's width, 2 layers"
"""Beside the tiny decoder: a video takes seconds, a token of an answer hundredths of one."""
VIDEOS, FRAMES = 8, 6
LIMITS = (None, 800, 400)
"""Soft tokens per step; a video of 6 frames at 4:3 has 378."""
ROUNDS = 3
ANSWER_TOKENS = 3000
LEAD_TOKENS = 20
"""Tokens of the running answer before the burst."""
FLAGS = [
    "--served-model-name", NAME, "--enforce-eager", "--max-model-len=4096", "--max-num-batched-tokens=4096",
    "--no-enable-prefix-caching", "--enable-logging-iteration-details", "--disable-log-stats",
    "--middleware=gemma_engine.arrivals.Arrivals",
    '--limit-mm-per-prompt={"audio": 0}',
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["checks", "stall"])
    parser.add_argument("--write", action="store_true", help="write the data file and the tables")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:  # under the engine's Python, since only that has vLLM
        print(json.dumps(checked(given.inside, given.folder) if given.part == "checks" else written(given.folder)))
        return 0
    known = json.loads(DATA.read_text()) if DATA.exists() else {}
    for part, measure in (("checks", checks), ("stall", stall)):
        if given.part in (None, part):
            known[part] = {**measure(), "load_average": round(os.getloadavg()[0], 1)}
            print(json.dumps({part: known[part]}, indent=1), flush=True)
    if given.write:
        DATA.write_text(json.dumps(known, indent=1) + "\n")
        text = DOCS.read_text()
        for part, rows in tables(known).items():
            before, _, rest = text.partition(f"<!-- {part} -->")
            _, _, after = rest.partition(f"<!-- /{part} -->")
            text = "\n".join([f"{before}<!-- {part} -->", *rows, f"<!-- /{part} -->{after}"])
        DOCS.write_text(text)
    return 0


def inside(part: str, tower: str, folder: Path) -> Any:
    """The last line of this module's output, under the engine's own Python."""
    from tools.images.engine_venv import engine_venv

    command = [
        engine_venv() / "bin" / "python",
        "-m",
        "tools.engine_bench",
        part,
        "--inside",
        tower,
        "--folder",
        folder,
    ]
    paths = ":".join([str(ROOT), str(ROOT / "images" / "engine")])
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def written(folder: Path) -> str:
    """The tiny Gemma 4 with the heavy tower."""
    from tests.plugin import harness

    return harness.write_model(tiny(), folder, **TOWERS[HEAVY])


def tiny() -> Path:
    return Path(sys.prefix) / "models" / "gemma-4-tiny"


def checked(tower: str, folder: Path) -> dict[str, Any]:
    """The worker's self-check, three times in one process: the first one warms kernels up as well."""
    from tests.plugin import harness

    logging.disable(logging.INFO)
    model = harness.Real(harness.write_model(tiny(), folder, **TOWERS[tower]), "bfloat16")
    times = []
    with model.serving():
        for _ in range(3):
            began, worked = time.perf_counter(), time.process_time()
            model.model._check()
            times.append(taken(time.perf_counter() - began, time.process_time() - worked))
    return {"times": times, "state": model.model.record["state"]}


def taken(seconds: float, cores: float) -> dict[str, float]:
    """Seconds by the clock, and of all cores together, which other work on the machine does not draw out."""
    return {"seconds": round(seconds, 2), "core_seconds": round(cores, 2)}


def checks() -> dict[str, Any]:
    """The worker's self-check alone, by tower; and the golden requests through a server, with vLLM's own encoder and with ours."""
    towers = {}
    for tower in TOWERS:
        with tempfile.TemporaryDirectory() as folder:
            towers[tower] = inside("checks", tower, Path(folder))["times"]
        print(f"{tower}: {towers[tower]}", file=sys.stderr, flush=True)
    without, _ = golden_requests("off")
    times, log = golden_requests("on")
    said = next(line for line in log.splitlines() if "checked in" in line)
    return {"towers": towers, "unchecked": without, "probe": times, "log": said[said.index("The vision encoder") :]}


def golden_requests(encoder: str) -> tuple[list[dict[str, float]], str]:
    """What the probe takes, the first time, twice again, and once it knows; and the server's log."""
    from tests.plugin.server import probe

    times = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        server("", Path(scratch), GEMMA_ENGINE_ENCODER=encoder) as engine,
    ):
        marker = ["--marker", f"{scratch}/marker", "--timeout", "120"]
        for again in ([], ["--canary"], ["--canary"], []):
            began, worked = time.perf_counter(), core_seconds(engine.process.pid)
            found = probe(engine.url, "ready", *marker, *again)
            assert found.returncode == 0, found.stdout
            times.append(taken(time.perf_counter() - began, core_seconds(engine.process.pid) - worked))
        return times, engine.log.read_text()


def core_seconds(group: int) -> float:
    """What the processes of a group have computed for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) == group)
    return ticks / os.sysconf("SC_CLK_TCK")


def server(model: str, scratch: Path, limit: int | None = None, **environment: str) -> Any:
    """A context manager of a real vLLM with the plugin."""
    sys.path[:0] = [] if str(ROOT / "operator") in sys.path else [str(ROOT / "operator")]
    from gemma_operator.engine.plugin import encoder_limit
    from tests.engine.server import serving
    from tests.plugin.server import PluginHome
    from tools.images.engine_venv import engine_venv

    home = PluginHome(engine_venv(), environment)
    limits = [f"--ec-manager-config={json.dumps(encoder_limit(limit))}"] if limit else []
    scratch.mkdir(exist_ok=True)
    return serving(home, ["--model", model or home.model, *FLAGS, *limits], NAME, scratch)


def stall() -> dict[str, Any]:
    """The longest wait between two pieces of a running answer while videos arrive at once, by limit."""
    from tests.plugin.server import probe

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = inside("stall", HEAVY, Path(folder, "model"))
        for limit in LIMITS:
            scratch = Path(folder, str(limit))
            with server(model, scratch, limit) as engine:
                ready = probe(engine.url, "ready", "--marker", f"{scratch}/marker", "--timeout", "300")
                assert ready.returncode == 0, ready.stdout
                found[str(limit or "none")] = [burst(engine) for _ in range(ROUNDS)]
                print(f"{limit}: {found[str(limit or 'none')]}", file=sys.stderr, flush=True)
    return {"tower": HEAVY, "videos": VIDEOS, "frames": FRAMES, "limits": found}


def burst(engine: Any) -> dict[str, float]:
    """One running answer, and videos that arrive together once it is under way."""
    from tests.engine.server import text, video

    media = [video(FRAMES) for _ in range(VIDEOS)]
    times: list[float] = []
    is_under_way, is_over = threading.Event(), threading.Event()

    def chat() -> None:
        for _ in engine.ask("Go on.", tokens=ANSWER_TOKENS):
            times.append(time.monotonic())
            if len(times) == LEAD_TOKENS:
                is_under_way.set()
            if is_over.is_set():
                return  # the client leaves

    def ask(medium: dict[str, Any]) -> float:
        began = time.monotonic()
        next(iter(engine.ask([medium, text("What happens?")], tokens=1)))
        return time.monotonic() - began

    with ThreadPoolExecutor(VIDEOS + 1) as pool:
        running = pool.submit(chat)
        assert is_under_way.wait(60), "the answer does not begin"
        began = time.monotonic()
        first = list(pool.map(ask, media))
        is_over.set()
        running.result()
    before, after = split(times, began)
    return {
        "longest_wait": round(max(gaps(after)), 2),
        "usual_wait": round(statistics.median(gaps(before)), 3),
        "tokens_meanwhile": len(after) - 2,
        "slowest_video": round(max(first), 2),
    }


def split(times: Sequence[float], at: float) -> tuple[list[float], list[float]]:
    """Times until a moment, and from the last of them on."""
    before = [when for when in times if when <= at]
    return before, [*before[-1:], *(when for when in times if when > at)]


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def tables(data: dict[str, Any]) -> dict[str, list[str]]:
    """The figures as docs/engine-image.md shows them, by part."""
    return {part: rows(data[part]) for part, rows in (("checks", check_rows), ("stall", stall_rows)) if part in data}


def check_rows(found: dict[str, Any]) -> list[str]:
    golden = "golden text, image and video through a server of the tiny model"
    runs = {f"self-check, tower: {name}": times for name, times in found["towers"].items()} | {
        f"{golden}, vLLM's own encoder, unchecked": found["unchecked"][:3],
        f"{golden}, the first time with its self-check": found["probe"][:3],
    }
    rows = ["| | the first time | again | core seconds: the first time | again |", "|---|---|---|---|---|"]
    for name, (first, *later) in runs.items():
        shown = (
            f"{min(one[key] for one in times):.1f} s"
            for key in ("seconds", "core_seconds")
            for times in ([first], later)
        )
        rows.append(f"| {name} | {' | '.join(shown)} |")
    return rows


def stall_rows(found: dict[str, Any]) -> list[str]:
    rows = [
        "| soft tokens per step | longest wait of the running answer, by burst | all videos have a first token after "
        "| the wait's share of that (median) |",
        "|---|---|---|---|",
    ]
    for limit, rounds in found["limits"].items():
        waits, wholes = (", ".join(f"{one[key]:.1f}" for one in rounds) for key in ("longest_wait", "slowest_video"))
        rows.append(f"| {limit} | {waits} s | {wholes} s | {share(rounds):.0%} |")
    return rows


def share(rounds: Sequence[dict[str, float]]) -> float:
    """The longest wait as a part of its burst: other work on the machine draws out both."""
    return statistics.median(one["longest_wait"] / one["slowest_video"] for one in rounds)


if __name__ == "__main__":
    sys.exit(main())
