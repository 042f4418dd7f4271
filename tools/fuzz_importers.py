"""Coverage-guided fuzzing of what reads other people's files: results of load tests, and logs and traces of requests.

`pip install atheris`, then `PYTHONPATH=operator:. python tools/fuzz_importers.py -max_total_time=3600`; other arguments are libFuzzer's.
Whatever the bytes, it ends with stages or a workload, or with the one error that is meant for people.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gemma_operator"]):
    from gemma_operator.planning.errors import ResultError
    from gemma_operator.planning.operating import curves, operating_point
    from gemma_operator.planning.results import read_results
    from gemma_operator.scaling.pool import Slo
    from gemma_operator.workload.arrivals import WorkloadError
    from gemma_operator.workload.source import read_workload

SEEDS = Path("tests/unit/data")
SLO = Slo(95, 0.3)
NAMES = ("result.json", "log.csv", "log.jsonl")
"""The reader is chosen by the name; the first byte of an input chooses the name."""
LARGEST_SEED = 20_000  # bytes: libFuzzer is at its best with small inputs


def one(data: bytes, folder: Path) -> None:
    """Read one input. Raises whatever isn't meant for people."""
    path = folder / NAMES[data[0] % len(NAMES) if data else 0]
    path.write_bytes(data[1:])
    if path.name == NAMES[0]:
        with suppress(ResultError):
            for curve in curves(read_results([path], SLO)):
                operating_point(curve, SLO)
    else:
        with suppress(WorkloadError):
            read_workload(str(path))


def main() -> None:
    """Fuzz until told to stop."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, path in enumerate(
        sorted(path for path in SEEDS.rglob("*") if path.suffix in (".json", ".csv", ".jsonl"))
    ):
        kind = next(n for n, name in enumerate(NAMES) if name.endswith(path.suffix))
        (corpus / str(number)).write_bytes(bytes([kind]) + path.read_bytes()[:LARGEST_SEED])
    atheris.Setup([*sys.argv, str(corpus), "-max_len=20000"], lambda data: one(data, folder))
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
