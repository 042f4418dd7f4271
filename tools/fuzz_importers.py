"""Coverage-guided fuzzing of what reads other people's bytes: results of load tests, logs and traces of requests, Prometheus'
answers, and the engines' metrics.

`pip install atheris`, then `PYTHONPATH=operator:. python tools/fuzz_importers.py -max_total_time=3600`; other arguments are libFuzzer's.
Whatever the bytes, it ends with stages, a workload or sound counters, or with the errors that are meant for people.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gemma_operator"]):
    from gemma_operator.metrics.assemble import Unusable
    from gemma_operator.metrics.client import MALFORMED
    from gemma_operator.metrics.engines import parse
    from gemma_operator.metrics.prometheus import group, newest
    from gemma_operator.planning.errors import ResultError
    from gemma_operator.planning.operating import curves, operating_point
    from gemma_operator.planning.results import read_results
    from gemma_operator.scaling.counters import EngineCounters
    from gemma_operator.scaling.pool import Slo
    from gemma_operator.workload.arrivals import WorkloadError
    from gemma_operator.workload.source import read_workload
    from tests.support.scripted_prometheus import ScriptedEngine

SEEDS = Path("tests/unit/data")
SLO = Slo(95, 0.3)
NAMES = ("result.json", "log.csv", "log.jsonl", "prometheus", "metrics.txt")
"""The reader is chosen by the name; the first byte of an input chooses the name."""
LARGEST_SEED = 20_000  # bytes: libFuzzer is at its best with small inputs


def one(data: bytes, folder: Path) -> None:
    """Read one input. Raises whatever isn't meant for people."""
    name, body = NAMES[data[0] % len(NAMES) if data else 0], data[1:]
    if name == "prometheus":
        with suppress(*MALFORMED):
            found, _ = newest(group(json.loads(body)))
            for counters in found.values():
                check(counters)
    elif name == "metrics.txt":
        with suppress(Unusable, *MALFORMED):
            check(parse("uid", 1.0, body.decode()))
    else:
        path = folder / name
        path.write_bytes(body)
        if name == "result.json":
            with suppress(ResultError):
                for curve in curves(read_results([path], SLO)):
                    operating_point(curve, SLO)
        else:
            with suppress(WorkloadError):
                read_workload(str(path))


class Unsound(Exception):
    """Counters that the scaler must never get."""


def check(counters: EngineCounters) -> None:
    """Raise Unsound where a count isn't finite, or falls from bucket to bucket."""
    counts = [count for _, count in counters.ttft]
    if counts != sorted(counts) or not all(0 <= count < math.inf for count in (*counts, counters.running)):
        raise Unsound(counters)


def seeds() -> list[bytes]:
    """Real inputs of each kind."""
    suffixes = {".json": 0, ".csv": 1, ".jsonl": 2, ".txt": 4}
    files = sorted(path for path in SEEDS.rglob("*") if path.suffix in suffixes)
    vector = json.dumps([*ScriptedEngine("a").series(1.0), *ScriptedEngine("b").series(1.0)]).encode()
    return [
        bytes([3]) + vector,
        *(bytes([suffixes[path.suffix]]) + path.read_bytes()[:LARGEST_SEED] for path in files),
    ]


def main() -> None:
    """Fuzz until told to stop."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([*sys.argv, str(corpus), "-max_len=20000"], lambda data: one(data, folder))
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
