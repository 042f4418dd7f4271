"""Results of load tools, as stages. `read_results()` is the only door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gemma_operator.planning.errors import ResultError
from gemma_operator.planning.results import aiperf, guidellm, inference_perf
from gemma_operator.planning.results.document import Document
from gemma_operator.planning.stages import Stage
from gemma_operator.scaling.pool import Slo

TOOLS = "guidellm (0.7 or newer), inference-perf or aiperf"


def read_results(paths: Sequence[Path], slo: Slo) -> list[Stage]:
    """The stages of all results. A folder is searched for them; a file given twice counts once.

    Raises:
        ResultError: a file is no result of a known tool, or lacks what is needed; the message says which and what.
    """
    stages: list[Stage] = []
    for path in {path.resolve(): path for path in paths}.values():
        if path.is_dir():
            stages += [replace(stage, folder=str(path)) for stage in _folder(path, slo)]
        else:
            stages += _file(path, slo)
    return stages


def _folder(folder: Path, slo: Slo) -> list[Stage]:
    if found := sorted(folder.glob("stage_*_lifecycle_metrics.json")):
        return [stage for path in found for stage in _file(path, slo)]
    found = sorted(folder.rglob("profile_export_aiperf_sweep.json")) or sorted(
        folder.rglob("profile_export_aiperf.json")
    )
    found = found or sorted(path for path in folder.glob("*.json") if guidellm.is_result(_read(path)))
    if not found:
        raise ResultError(f"{folder} holds no result of {TOOLS}")
    return [stage for path in found for stage in _file(path, slo)]


def _file(path: Path, slo: Slo) -> list[Stage]:
    if path.suffix == ".csv":
        raise ResultError(f"{path} is CSV, which lacks what is needed: give the JSON that the tool writes beside it")
    if path.name == "summary_lifecycle_metrics.json":
        raise ResultError(
            f"{path.name} is the sum over all rates: give the folder with its stage_*_lifecycle_metrics.json"
        )
    found = _read(path)
    if guidellm.is_result(found):
        return guidellm.stages(found, slo)
    if inference_perf.is_result(found):
        return inference_perf.stages(found, slo)
    if aiperf.is_result(found):
        return aiperf.stages(found, slo)
    raise ResultError(f"{path} is no result of {TOOLS}")


def _read(path: Path) -> Document:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ResultError(f"{path} can't be read: {error.strerror}") from None
    try:
        found: Any = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "YAML" if path.suffix in (".yaml", ".yml") else "JSON"
        raise ResultError(f"{path} is no {kind}: {' '.join(str(error).split())[:120]}") from None
    return Document(found, path)
