"""The command line of vLLM's API server: the same flags by version, the same refusals (exit code 2)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gemma_operator.engine import plugin
from gemma_operator.engine.flags import known_flags
from gemma_operator.engine.versions import Version
from gemma_operator.simulation.step_model import EngineConfig, Media

MODALITIES = ("image", "video", "audio")
DEFAULT_LIMIT = 999  # items of a modality in one prompt, as vLLM
# Gemma 4's processor: most frames of a video, embeddings of an image and tokens around it, tokens of 30 s of audio.
MAX_VIDEO_FRAMES = 32
IMAGE_SOFT_TOKENS = 280
IMAGE_OVERHEAD = 2
AUDIO_TOKENS = 750
BUCKET_FAMILIES = (
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
    "iteration_tokens",
    "request_params_n",
    "request_num_preemptions",
    "request_tokens",
    "kv_cache_residency",
)
_MAGNITUDES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30, "": 1}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the stand-in acts on; every other flag of the version is accepted and has no effect."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    max_model_len: int
    engine: EngineConfig
    limits: Mapping[str, int]
    video_frames: int
    image_soft_tokens: int
    prefix_caching: bool
    mm_cache_gb: float
    api_servers: int
    shutdown_timeout: float
    max_queued_requests: int | None
    max_queued_tokens: int | None
    sheds: bool
    """Whether refusals are worded by our plugin's middleware."""
    buckets: Mapping[str, Sequence[float]]
    draft_tokens: int


def parse_arguments(argv: Sequence[str], version: Version, *, batched_encoder: bool) -> Arguments:
    """Arguments of `vllm serve` or of its API server module. Exits with code 2 where vLLM would."""
    words = list(argv[1:] if argv[:1] == ["serve"] else argv)
    parser = _parser(version)
    found = parser.parse_args([_dashes(word) for word in words])
    values: dict[str, Any] = {name: value for name, value in vars(found).items() if value is not None}
    try:
        return _arguments(values, batched_encoder=batched_encoder)
    except ValueError as error:
        parser.error(str(error))


def _parser(version: Version) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="api_server.py", usage="%(prog)s [model_tag] [options]", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for name, flag in known_flags(version).items():
        if name == "--middleware":
            parser.add_argument(name, action="append")
        elif flag.takes_value:
            parser.add_argument(name, type=_TYPES.get(name, str), nargs="+" if name == "--served-model-name" else None)
        else:
            parser.add_argument(name, action=argparse.BooleanOptionalAction)
    return parser


def _dashes(word: str) -> str:
    """vLLM takes `--max_num_seqs` for `--max-num-seqs`."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _number(text: str) -> int:
    """An integer, or one with a suffix: `32k` is 32,000 and `32K` is 32,768."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 32768, 32k or 32K")
    return int(float(match[1]) * _MAGNITUDES[match[2]])


def _length(text: str) -> int:
    return 0 if text in ("auto", "-1") else _number(text)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _policy(text: str) -> str:
    if text not in ("fcfs", "priority"):
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from fcfs, priority)")
    return text


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "--port": int,
    "--max-model-len": _length,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": _number,
    "--limit-mm-per-prompt": _json,
    "--media-io-kwargs": _json,
    "--mm-processor-kwargs": _json,
    "--mm-processor-cache-gb": float,
    "--api-server-count": int,
    "--shutdown-timeout": int,
    "--max-num-queued-reqs": int,
    "--max-num-queued-tokens": int,
    "--scheduling-policy": _policy,
    "--speculative-config": _json,
    "--custom-histogram-buckets": _json,
}


def _arguments(values: Mapping[str, Any], *, batched_encoder: bool) -> Arguments:
    model = values.get("model_tag") or values.get("model") or "google/gemma-4-E4B-it"
    limits = _limits(values)
    frames = values.get("media_io_kwargs", {}).get("video", {}).get("num_frames", MAX_VIDEO_FRAMES)
    if not isinstance(frames, int) or frames == 0:
        raise ValueError(
            f"argument --media-io-kwargs: video.num_frames is {frames!r}, allowed are numbers from 1, or -1 for all"
        )
    draft_tokens, by_batch = _speculation(values.get("speculative_config"))
    image_soft_tokens = values.get("mm_processor_kwargs", {}).get("max_soft_tokens", IMAGE_SOFT_TOKENS)
    engine = EngineConfig(
        max_num_batched_tokens=values.get("max_num_batched_tokens", 8192),
        max_num_seqs=values.get("max_num_seqs", 1024),
        largest_item_tokens=_largest_item(limits, image_soft_tokens),
        batched_encoder=batched_encoder,
        priority=values.get("scheduling_policy") == "priority",
        draft_tokens=by_batch,
    )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens ({engine.max_num_batched_tokens}) must be greater than or equal to "
            f"max_num_seqs ({engine.max_num_seqs})"
        )
    return Arguments(
        model=model,
        served_names=tuple(values.get("served_model_name", [model])),
        host=values.get("host", "0.0.0.0"),
        port=values.get("port", 8000),
        max_model_len=values.get("max_model_len") or 131_072,
        engine=engine,
        limits=limits,
        video_frames=MAX_VIDEO_FRAMES if frames < 0 else frames,
        image_soft_tokens=image_soft_tokens,
        prefix_caching=values.get("enable_prefix_caching", True),
        mm_cache_gb=values.get("mm_processor_cache_gb", 4.0),
        api_servers=values.get("api_server_count", 1),
        shutdown_timeout=values.get("shutdown_timeout", 0),
        max_queued_requests=values.get("max_num_queued_reqs"),
        max_queued_tokens=values.get("max_num_queued_tokens"),
        sheds=plugin.SHEDDING in values.get("middleware", ()),
        buckets=_buckets(values.get("custom_histogram_buckets", {})),
        draft_tokens=draft_tokens,
    )


def _largest_item(limits: Mapping[str, int], image_soft_tokens: int) -> int:
    """Prompt tokens of the largest media item that the limits allow."""
    tokens = {
        "image": Media(1, image_soft_tokens, IMAGE_OVERHEAD).tokens,
        "video": Media(MAX_VIDEO_FRAMES).tokens,
        "audio": AUDIO_TOKENS,
    }
    return max((tokens[name] for name in MODALITIES if limits[name]), default=0)


def _limits(values: Mapping[str, Any]) -> dict[str, int]:
    limits = dict.fromkeys(MODALITIES, 0 if values.get("language_model_only") else DEFAULT_LIMIT)
    for name, limit in values.get("limit_mm_per_prompt", {}).items():
        count = limit.get("count", DEFAULT_LIMIT) if isinstance(limit, dict) else limit
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"argument --limit-mm-per-prompt: {name} is {limit!r}, allowed are counts from 0")
        limits[name] = min(count, limits.get(name, count))
    return limits


def _speculation(config: Mapping[str, Any] | None) -> tuple[int, list[tuple[int, int, int]]]:
    """The most draft tokens, and how many by batch size, of a speculative config."""
    if config is None:
        return 0, []
    tokens = config.get("num_speculative_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError(
            f"argument --speculative-config: num_speculative_tokens is {tokens!r}, allowed are numbers from 1"
        )
    by_batch = config.get("num_speculative_tokens_per_batch_size") or [[1, 10**9, tokens]]
    return tokens, [(low, high, drafts) for low, high, drafts in by_batch]


def _buckets(families: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    for family, edges in families.items():
        if family not in BUCKET_FAMILIES:
            raise ValueError(
                f"argument --custom-histogram-buckets: no family {family!r}, allowed are {', '.join(BUCKET_FAMILIES)}"
            )
        if not edges or any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"argument --custom-histogram-buckets: {family} must be a list of increasing numbers")
    return families
