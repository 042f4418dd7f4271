"""What the last words of an engine that died mean, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known way to fail: reason of the condition, and what to do. `passing`: another start may mend it."""

    reason: str
    advice: str
    passing: bool = False


# Words of huggingface_hub (errors.py, utils/_http.py), transformers (utils/hub.py), PyTorch (OutOfMemoryError) and vLLM 0.19 to 0.33;
# first match wins.
_KNOWN: tuple[tuple[str, Diagnosis], ...] = (
    (
        r"GatedRepoError|access (a )?gated repo|403 (Client Error|Forbidden)|awaiting a review",
        Diagnosis(
            "ModelAccessDenied",
            "accept the model's licence on the hub with the account of the token in model.tokenSecretRef",
        ),
    ),
    (
        r"401 (Client Error|Unauthorized)|Invalid (username or password|user token|credentials)"
        r"|RepositoryNotFoundError|is not a valid model identifier",
        Diagnosis(
            "ModelAccessDenied",
            "the hub doesn't show this model: check model.id, and the token in model.tokenSecretRef",
        ),
    ),
    (
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|Name or service not known|Temporary failure in name resolution"
        r"|Connect(ion)?(Error| refused)|Max retries exceeded|We couldn't connect to"
        r"|429 Too Many Requests|50\d (Bad Gateway|Service Unavailable)",
        Diagnosis(
            "ModelSourceUnreachable",
            "the engine can't reach its model: check network policies, model.source and the hub's address",
            passing=True,
        ),
    ),
    (
        r"RevisionNotFoundError|EntryNotFoundError|404 Client Error|is not a valid git identifier"
        r"|does not appear to have a file named|Invalid repository ID or local directory|No such file or directory: '?/models",
        Diagnosis("ModelNotFound", "check model.id, model.revision, model.checkpoint and model.source"),
    ),
    (
        r"unrecognized arguments|error: argument ",
        Diagnosis(
            "ArgumentRefused",
            "this vLLM doesn't take these arguments: correct extraArgs, or engine.version where the image is another version "
            "than its tag says",
        ),
    ),
    (
        r"No module named '?gemma_engine",
        Diagnosis(
            "PluginMissing",
            "engine.plugin is true, and the image has no gemma_engine, or an older one: build it anew, or set engine.plugin to false",
        ),
    ),
    (
        r"max_model_len .* is greater than the derived max_model_len",
        Diagnosis("ContextTooLong", "lower maxModelLen to what the model takes"),
    ),
    (
        r"larger than the (available KV cache memory|maximum number of tokens that can be stored in KV cache)"
        r"|No available memory for the cache blocks|is less than requested memory for kv",
        Diagnosis("KvCacheTooSmall", "lower maxModelLen, or raise gpuMemoryUtilization or tensorParallel"),
    ),
    (
        r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|Free memory on device .* is less than"
        r"|is less than desired CPU memory utilization",
        Diagnosis(
            "OutOfGpuMemory", "lower gpuMemoryUtilization, maxNumBatchedTokens or maxModelLen, or raise tensorParallel"
        ),
    ),
    (
        r"No space left on device",
        Diagnosis("DiskFull", "the cache has no room for the weights: give model.cache a larger volume"),
    ),
    (
        r"max_tokens_per_mm_item .* is larger than max_num_batched_tokens",
        Diagnosis(
            "BudgetTooSmall", "raise maxNumBatchedTokens to at least the number named, or switch that modality off"
        ),
    ),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), diagnosis) for pattern, diagnosis in _KNOWN)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception): ")
# The API server's process says no more than this where its engine's process died; Python's own farewell comes last.
_EMPTY = re.compile(
    r"Engine core initialization failed|EngineCore (failed to start|encountered an issue)|resource_tracker|warnings\.warn\("
)
# What the kubelet and vLLM's logging (logging_utils/formatter.py) write before each line.
_PREFIX = re.compile(
    r"^(\d{4}-\d\d-\d\dT\S+ )?(\([^)]*pid=\d+\) )?((ERROR|WARNING|INFO) \d\d-\d\d [\d:]+ \[[^]]*\] ?)?"
)


# What the readiness probe of our plugin writes to the engine's log (images/engine/gemma_engine/probe.py).
_PROBE = re.compile(r"gemma_engine\.probe: (?:ready$|not ready: (.*))", re.MULTILINE)


def unfit(log: str) -> str:
    """Why the plugin's probe doesn't pass, by its newest word in an engine's log; empty where it passes, or said nothing."""
    return next((match[1] or "" for match in reversed(list(_PROBE.finditer(log)))), "")


def diagnose(text: str) -> Diagnosis | None:
    """What an engine died of, from the end of its log; None where nothing known stands there."""
    return next((diagnosis for pattern, diagnosis in _PATTERNS if pattern.search(text)), None)


def telling_line(text: str) -> str:
    """The line of a log that says why: the one that a diagnosis stands on, else the last exception, else the last lines."""
    plain = [line for raw in text.splitlines() if (line := _PREFIX.sub("", raw).strip())]
    lines = [line for line in plain if not _EMPTY.search(line)] or plain
    for pattern in (*(pattern for pattern, _ in _PATTERNS), _EXCEPTION):
        if found := [line for line in lines if pattern.search(line)]:
            return found[-1]
    return " | ".join(lines[-2:]) if lines else "it printed nothing"
