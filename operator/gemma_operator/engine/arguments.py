"""The user's own arguments: which flags they mean, which of ours they replace, and which the operator can't do without."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemma_operator.engine.findings import Finding, Severity
from gemma_operator.engine.flags import Flag, UnknownFlag, choices, known_flags, split
from gemma_operator.engine.versions import NEWEST
from gemma_operator.engine.view import PoolView

# Flags that the operator's Service, probes, metrics and arithmetic rely on -> what to do instead.
RESERVED = {
    "--host": "remove it", "--port": "remove it", "--uds": "remove it", "--root-path": "remove it",
    "--ssl-keyfile": "remove it", "--ssl-certfile": "remove it", "--disable-log-stats": "remove it",
    "--model": "set model.id, model.checkpoint or model.source", "--served-model-name": "set model.servedName or model.aliases",
    "--config": "write its settings as fields and arguments", "--help": "remove it",
    "--headless": "remove it", "--grpc": "remove it", "--shutdown-timeout": "set drainSeconds",
    "--data-parallel-multi-port-external-lb": "remove it", "--data-parallel-external-lb": "remove it",
    "--data-parallel-hybrid-lb": "remove it", "--data-parallel-rank": "remove it", "--data-parallel-start-rank": "remove it",
    "--nnodes": "remove it", "--node-rank": "remove it", "--api-server-count": "set apiServers", "--tensor-parallel-size": "set tensorParallel",
    "--pipeline-parallel-size": "set pipelineParallel", "--data-parallel-size": "set dataParallel",
    "--data-parallel-size-local": "remove it", "--mm-encoder-only": "remove it",
    "--limit-mm-per-prompt": "set modalities", "--language-model-only": "set modalities",
    "--custom-histogram-buckets": "remove it, slo.ttft.target has an edge of its own",
}  # fmt: skip
# Flags of which vLLM takes each, not the last (argparse's "append" in its cli_args.py, 0.19 to 0.33).
_REPEATED = {"--middleware"}
# Flags that hold a secret -> where it belongs.
SECRETS = {"--api-key": "engine.apiKeySecretRef", "--hf-token": "model.tokenSecretRef"}
# Flags that name a store for KV cache.
_CONNECTORS = ("--kv-transfer-config", "--kv-offloading-backend")
# research/vllm.md 1.5: these have no effect on Gemma 4.
WITHOUT_EFFECT = ("--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-encoder-attn-dtype")


# argparse takes these for values, as long as no flag looks like a number.
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
# More digits, or another suffix, are more than any budget.
_COUNT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([kK]?)")
# Most values that may follow a flag, by its kind in the table.
_MOST = {"flag": 0, "switch": 0, "value": 1, "int": 1, "float": 1, "count": 1, "json": 1, "optional": 1}
_NOT_NUMBERS = {("--max-model-len", "auto")}
# What Python's int() and float() take, and vLLM's human_readable_int (utils/argparse_utils.py); -1 stands for "as much as fits".
_NUMBERS = {
    "int": (re.compile(r"\s*[+-]?\d+\s*"), "a whole number"),
    "float": (re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"), "a number"),
    "count": (re.compile(r"\s*(-1|\d+(\.\d+)?[kKmMgGtT]|\d+)\s*"), "a whole number, or one such as 4k"),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One flag of the user's: where it stands in extraArgs, the flag that it means (or why it means none), and its values."""

    index: int
    written: str
    flag: str
    unknown: str = ""
    values: tuple[str, ...] = ()


def parse(view: PoolView) -> tuple[list[Argument], list[int]]:
    """The flags in extraArgs, and the places of items that follow no flag."""
    found: list[Argument] = []
    stray: list[int] = []
    closed = True
    for index, item in enumerate(view.pool.extra_args):
        if len(item) > 1 and item.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(item):
            written, equals, inline = item.partition("=")
            try:
                flag, value = split(item, view.version)
                found.append(Argument(index, written, flag, values=() if value is None else (value,)))
                closed = value is not None
            except UnknownFlag as error:
                found.append(Argument(index, written, written, str(error), (inline,) if equals else ()))
                closed = bool(equals)
        elif closed or not _takes_another(view, found[-1]):
            stray.append(index)
        else:
            found[-1] = replace(found[-1], values=(*found[-1].values, item))
    return found, stray


def _takes_another(view: PoolView, argument: Argument) -> bool:
    flag = known_flags(view.version).get(argument.flag)
    return flag is None or len(argument.values) < _MOST.get(flag.kind, len(argument.values) + 1)


def replaces(given: list[Argument], flag: str, values: tuple[str, ...]) -> bool:
    """Whether the user's arguments take the place of a setting of ours; a flag of which vLLM takes each does only with the same value."""
    return any(own.flag == flag and (flag not in _REPEATED or own.values == values) for own in given)


def findings(view: PoolView, ours: set[str]) -> Iterator[Finding]:
    """What is wrong or unwise about extraArgs and env; `ours` are the flags that we would set."""
    arguments, stray = parse(view)
    where = f"{view.path}.extraArgs"
    for index in stray:
        text = (
            f"{where}[{index}] is {view.pool.extra_args[index]!r:.60} and belongs to no flag: the engine "
            "would ignore it, or take it for the model; remove it"
        )
        yield Finding("InvalidArgument", "refuse", text)
    for argument in arguments:
        yield from _one(view, argument, f"{where}[{argument.index}]")
    # Dotted keys of one flag add up.
    whole = (argument.flag for argument in arguments if "." not in argument.written)
    for flag, times in Counter(whole).items():
        if times > 1 and flag not in _REPEATED:
            yield Finding("ArgumentTwice", "warn", f"{where}: {flag} is there {times} times; vLLM takes the last")
    if replaced := sorted({argument.flag for argument in arguments} & ours - _REPEATED):
        yield Finding(
            "UserArgumentWins", "warn", f"{where}: {', '.join(replaced)} replaces what the operator would set"
        )


def _one(view: PoolView, argument: Argument, where: str) -> Iterator[Finding]:
    flag = known_flags(view.version).get(argument.flag)
    if argument.flag in RESERVED:
        text = (
            f"{where}: {argument.written} can't be set, the operator relies on {argument.flag}: "
            f"{RESERVED[argument.flag]}"
        )
        yield Finding("ReservedArgument", "refuse", text)
    elif argument.flag in SECRETS and argument.values:
        text = (
            f"{where}: a secret must not stand in the spec: set {SECRETS[argument.flag]} instead of {argument.written}"
        )
        yield Finding("SecretInArguments", "refuse", text)
    elif argument.flag == "--dtype" and set(argument.values) & {"half", "float16"}:
        text = (
            f"{where}: --dtype {argument.values[0]}: Gemma 4 answers only <pad> in fp16 (vllm#40290): use "
            "bfloat16, or remove it"
        )
        yield Finding("Fp16", "refuse", text)
    elif flag is None:
        # A build of their own, or one that is newer than the table, may know it.
        severity: Severity = "warn" if view.custom_command or view.version > NEWEST else "refuse"
        yield Finding("ArgumentUnknown", severity, f"{where}: {argument.unknown}")
    elif problem := _problem(view, flag, argument):
        yield Finding("InvalidArgument", "refuse", f"{where}: {argument.written} {problem}")
    elif argument.flag == "--max-num-batched-tokens" and (tokens := _number(argument.values[0])) < view.smallest_budget:
        text = (
            f"{where}: {argument.written} is {tokens}: a step must have room for the largest item, which "
            f"takes {view.smallest_budget} tokens; raise it, or switch that modality off"
        )
        yield Finding("BudgetTooSmall", "refuse", text)
    elif argument.flag == "--compilation-config" and "cudagraph_mm_encoder" in " ".join(
        (argument.written, *argument.values)
    ):
        text = (
            f"{where}: cudagraph_mm_encoder gives most frames of a video the picture of another: set "
            "encoder.cudaGraphs instead, which sees to that"
        )
        yield Finding("GraphsByArgument", "refuse", text)
    elif (
        argument.flag in _CONNECTORS
        and "lmcache" in " ".join(argument.values).lower()
        and not view.pool.modalities.text_only
    ):
        text = (
            f"{where}: LMCache may give a request the KV cache of another image (LMCache#4086): use another connector, "
            "or set all counts of modalities to 0"
        )
        yield Finding("ConnectorUnsafe", "refuse", text)
    elif argument.written == "--trust-request-mm-kwargs" and not view.pool.modalities.text_only:
        text = (
            f"{where}: {argument.written} lets any request say how its media are processed, and mm_processor_kwargs with "
            "patch_size 1 ends the engine (vLLM 0.32, tried): only where all clients are yours"
        )
        yield Finding("RequestsTrusted", "warn", text)
    elif argument.flag in WITHOUT_EFFECT:
        yield Finding(
            "ArgumentWithoutEffect", "warn", f"{where}: {argument.written} has no effect on Gemma 4's encoder"
        )


def _problem(view: PoolView, flag: Flag, argument: Argument) -> str | None:
    """Why the engine's parser would refuse the values of a flag."""
    values = argument.values
    if flag.kind in ("flag", "switch") and values:
        return f"takes no value, and has {values[0]!r:.60}: remove it"
    if flag.kind not in ("flag", "switch", "optional") and not values:
        return "needs a value: add it as the next item, or after ="
    allowed = choices(flag.name, view.version)
    if allowed and (wrong := [value for value in values if value not in allowed]):
        return f"is {wrong[0]!r:.60}: allowed are {', '.join(sorted(allowed))}"
    pattern, wanted = _NUMBERS.get(flag.kind, (None, ""))
    if pattern and not pattern.fullmatch(values[0]) and (flag.name, values[0]) not in _NOT_NUMBERS:
        return f"is {values[0]!r:.60}: it must be {wanted}"
    if flag.kind == "json" and "." not in argument.written and not _is_json(values[0]):
        return f"is {values[0]!r:.60}: it must be JSON"
    return None


def _number(text: str) -> int:
    """A count as vLLM reads it (utils/argparse_utils.py): 4096, 4k (4000) or 4K (4096); what is no count is large enough."""
    if not (match := _COUNT.fullmatch(text.strip())):
        return 1 << 30
    factor = {"k": 1000, "K": 1024}.get(match[2], 1)
    return int(float(match[1]) * factor)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
