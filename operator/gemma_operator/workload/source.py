"""A workload by the words of the command line: a file, a folder, or a description such as `sine:low=2,high=20`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gemma_operator.workload.arrivals import Arrivals, WorkloadError
from gemma_operator.workload.logs import Log, read_csv, read_jsonl
from gemma_operator.workload.servegen import read_servegen
from gemma_operator.workload.synthetic import Rate, constant, ramp, sine, spike, step, synthetic

HOUR = 3600.0
COMMON = {"seconds": HOUR, "cv": 1.0, "prompt_tokens": 500.0, "output_tokens": 200.0}
"""What every description may say, with what holds where it doesn't."""
KINDS: dict[str, dict[str, float]] = {
    "constant": {"rate": 10},
    "poisson": {"rate": 10},
    "gamma": {"rate": 10},
    "step": {"rate": 10, "to": 30, "at": 1800},
    "ramp": {"rate": 10, "to": 30, "start": 0, "end": HOUR},
    "sine": {"low": 2, "high": 20, "period": 24 * HOUR},
    "spike": {"rate": 10, "to": 60, "at": 1800, "length": 30},
}
"""Kinds of made-up workloads, with the words each takes besides the common ones."""
OWN_COMMON = {"constant": {"cv": 0.0}, "gamma": {"cv": 2.0}, "sine": {"seconds": 24 * HOUR}}


def read_workload(source: str, seed: int = 0) -> Log:
    """Requests of a log (`.csv`, `.jsonl`, either gzipped), of a folder of ServeGen clients, or made from a description.

    Raises:
        WorkloadError: says what is wrong with the file or the description, and what is allowed.
    """
    kind = source.partition(":")[0]
    path = Path(source)
    if kind in KINDS and not path.exists():
        return Log(_synthetic(source, seed))
    if not source or not path.exists():
        raise WorkloadError(
            f"{source} is neither a file or folder nor a description: "
            f"give a .csv, a .jsonl, a folder of ServeGen clients, or one of {', '.join(KINDS)} "
            "with values, such as poisson:rate=10,seconds=3600"
        )
    if path.is_dir():
        return Log(read_servegen(path, seed))
    name = path.name.removesuffix(".gz")
    return read_jsonl(path) if name.endswith((".jsonl", ".json")) else read_csv(path)


def _synthetic(source: str, seed: int) -> Arrivals:
    kind, _, text = source.partition(":")
    allowed = COMMON | OWN_COMMON.get(kind, {}) | KINDS[kind]
    given: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in allowed:
            raise WorkloadError(f"{kind} has no {name!r}: it takes {', '.join(allowed)}")
        try:
            given[name] = float(value)
        except ValueError:
            raise WorkloadError(f"{part!r} is no value: write {name}=NUMBER") from None
    values = allowed | given
    return synthetic(
        _rate(kind, {name: values[name] for name in KINDS[kind]}),
        values["seconds"],
        cv=values["cv"],
        seed=seed,
        prompt_tokens=round(values["prompt_tokens"]),
        output_tokens=round(values["output_tokens"]),
    )


def _rate(kind: str, values: dict[str, float]) -> Rate:
    makers: dict[str, Callable[..., Rate]] = {"step": step, "ramp": ramp, "sine": sine, "spike": spike}
    return makers.get(kind, constant)(**values)
