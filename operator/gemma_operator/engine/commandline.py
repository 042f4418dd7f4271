"""The engine's command line: every flag we render, for the class of the pool and the version of the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_operator.api.serving import Pool, PoolClass, Slo, Spec
from gemma_operator.engine.catalog import lookup
from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.versions import Version

PORT = 8000
SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")
# research/vllm.md section 2: MTP of Gemma 4 exists since 0.21; crashes at start are known up to 0.25.
MTP_SINCE: Version = (0, 26, 0)
# research/autoscaling.md section 2.2, row 15: 16 edges in seconds, dense around 300 ms; another objective adds one.
TTFT_EDGES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
# Flags that the operator's Service, probes and metrics rely on.
RESERVED = (
    "--host", "--port", "--uds", "--root-path", "--ssl-keyfile", "--ssl-certfile",
    "--model", "--served-model-name", "--disable-log-stats",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """Defaults of a class: requests at once, tokens per step, seconds to drain (sources: design.md, seeds/001, seeds/002)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    drain_seconds: int
    prefix_caching: bool
    mtp: bool
    slo: Slo | None


DEFAULTS: Mapping[PoolClass, ClassDefaults] = {
    "interactive": ClassDefaults(64, 4096, 30, prefix_caching=False, mtp=False, slo=Slo()),
    "batch": ClassDefaults(256, 16384, 120, prefix_caching=True, mtp=True, slo=None),
}
MAX_MODEL_LEN = 32768


class RefusedArgs(ValueError):
    """Arguments of the user that would break the operator; the text says which, and what to use instead."""


def pool_slo(spec: Spec, pool: str) -> Slo | None:
    """Objective of a pool: its own, else its class's; None for a batch pool without one."""
    return spec.pools[pool].slo or DEFAULTS[spec.class_of(pool)].slo


def drain_seconds(spec: Spec, pool: str) -> int:
    """Seconds that running requests get when an engine of the pool is stopped."""
    own = spec.pools[pool].drain_seconds
    return DEFAULTS[spec.class_of(pool)].drain_seconds if own is None else own


def served_name(spec: Spec) -> str:
    """Name that clients put into `model`."""
    return spec.model.served_name or spec.model.id


def engine_args(spec: Spec, pool: str, version: Version) -> list[str]:
    """Arguments of the engine of one pool, ours first and then the user's.

    Raises RefusedArgs where extraArgs touch a flag that the operator relies on.
    """
    user = list(spec.pools[pool].extra_args)
    taken = {flag_name(argument) for argument in user if argument.startswith("--")}
    known = known_flags(version)
    for name in sorted(taken):
        # argparse takes the beginning of a flag for the flag.
        meant = next((r for r in RESERVED if r == name or (name not in known and r.startswith(name))), None)
        if meant:
            raise RefusedArgs(
                f"pools.{pool}.extraArgs: {name} can't be set, the operator's Service, probes and metrics rely on {meant}: "
                "remove it (id and name of the model are set in spec.model)"
            )
    args: list[str] = []
    for flag, values in _flags(spec, pool, version):
        name = flag_name(flag)
        if name not in taken and name in known:
            args += [flag, *values]
    return args + user


def _flags(spec: Spec, name: str, version: Version) -> list[tuple[str, Sequence[str]]]:
    """What we would set; engine_args leaves out what the version doesn't know."""
    pool, defaults = spec.pools[name], DEFAULTS[spec.class_of(name)]
    prefix_caching = pool.prefix_caching.enabled if pool.prefix_caching else defaults.prefix_caching
    flags: list[tuple[str, Sequence[str]]] = [
        ("--model", [spec.model.id]),
        ("--served-model-name", [served_name(spec)]),
        ("--host", ["0.0.0.0"]),
        ("--port", [str(PORT)]),
        ("--dtype", ["bfloat16"]),
        ("--max-model-len", [str(pool.max_model_len or MAX_MODEL_LEN)]),
        ("--max-num-seqs", [str(pool.max_num_seqs or defaults.max_num_seqs)]),
        ("--max-num-batched-tokens", [str(pool.max_num_batched_tokens or defaults.max_num_batched_tokens)]),
        ("--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching", []),
        ("--shutdown-timeout", [str(drain_seconds(spec, name))]),
    ]
    if spec.model.revision:
        flags.append(("--revision", [spec.model.revision]))
    if pool.tensor_parallel > 1:
        flags.append(("--tensor-parallel-size", [str(pool.tensor_parallel)]))
    if pool.kv_cache_dtype:
        flags.append(("--kv-cache-dtype", [pool.kv_cache_dtype]))
    flags += _media(pool, prefix_caching)
    if speculative := mtp_config(spec, name, version):
        flags.append(("--speculative-config", [_json(speculative)]))
    flags.append(("--custom-histogram-buckets", [_json({"time_to_first_token": ttft_edges(pool_slo(spec, name))})]))
    return flags


def _media(pool: Pool, prefix_caching: bool) -> list[tuple[str, Sequence[str]]]:
    media = pool.modalities
    if media.text_only:
        return [("--language-model-only", [])]
    limits = {"image": media.image.count, "video": media.video.count, "audio": media.audio.count}
    flags: list[tuple[str, Sequence[str]]] = [("--limit-mm-per-prompt", [_json(limits)])]
    if media.video.count and media.video.frames:
        flags.append(("--media-io-kwargs", [_json({"video": {"num_frames": media.video.frames}})]))
    if not prefix_caching:
        # Unique media never hit the processor cache; it only costs memory (seeds/000 switches it off as well).
        flags.append(("--mm-processor-cache-gb", ["0"]))
    return flags


def mtp_config(spec: Spec, pool: str, version: Version) -> dict[str, Any] | None:
    """vLLM's speculative config of a pool; None where MTP is off, or on by default only and not to be had."""
    own, entry = spec.pools[pool].mtp, lookup(spec.model.id)
    wanted = own.enabled if own else DEFAULTS[spec.class_of(pool)].mtp
    if not wanted:
        return None
    # A model on disk may have no network to fetch the catalog's drafter with.
    if own is None and (entry is None or version < MTP_SINCE or spec.model.id.startswith("/")):
        return None
    assistant = (own.assistant if own else None) or (entry.assistant if entry else None)
    if assistant is None:
        raise RefusedArgs(
            f"pools.{pool}.mtp is on, but the catalog has no drafter for model {spec.model.id!r}: set mtp.assistant, or mtp.enabled to false"
        )
    if version < MTP_SINCE:
        raise RefusedArgs(
            f"pools.{pool}.mtp is on, but Gemma 4's MTP needs vLLM 0.26 or newer: raise engine.image, or set mtp.enabled to false"
        )
    tokens = (own.tokens if own else None) or (entry.mtp_tokens if entry else 4)
    return {"method": "mtp", "model": assistant, "num_speculative_tokens": tokens}


def ttft_edges(slo: Slo | None) -> list[float]:
    """Histogram edges for TTFT in seconds, with one exactly at the objective."""
    edges = set(TTFT_EDGES)
    if slo:
        edges.add(slo.ttft.seconds)
    return sorted(edges)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
