"""What we know of the Gemma 4 models.

Sources: research/vllm.md sections 1.6, 2 and 3 (checkpoints, sizes, drafters, encoders); the models' config.json files as quoted in
public repositories (layers, KV heads, windows); vLLM recipes models/Google (audio, context lengths, drafted tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gemma_operator.api.model import Model, Precision
from gemma_operator.engine.versions import Version

GB = 10**9


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers that keep a KV cache of their own: (layers, KV heads, head size) with a sliding window and without."""

    window_tokens: int
    sliding: tuple[int, int, int]
    full: tuple[int, int, int]

    def bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """KV bytes that each further token of a long context costs: only the layers without a window grow."""
        layers, heads, size = self.full
        return 2 * layers * heads * size * bytes_per_value

    def bytes_per_sequence(self, tokens: int, bytes_per_value: int = 2) -> int:
        """KV bytes of one sequence of so many tokens."""
        layers, heads, size = self.sliding
        windowed = 2 * layers * heads * size * bytes_per_value * min(tokens, self.window_tokens)
        return windowed + self.bytes_per_token(bytes_per_value) * tokens


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One set of weights: its hub id, and its size in bytes where it is known."""

    id: str
    size_bytes: int | None = None
    broken_until: Version | None = None
    """Last engine version that is known to answer nonsense with it."""


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One size of Gemma 4."""

    size: str
    checkpoints: Mapping[Precision, Checkpoint]
    assistant: str
    mtp_tokens: int
    """Tokens drafted per step that upstream recommends."""
    context_tokens: int
    active_parameters: float
    """Parameters that a token passes through: what its compute costs."""
    attention: Attention | None = None
    encoder: bool = True
    """False where images go into the decoder without a tower (12B)."""
    audio: bool = False
    bidirectional_images: bool = False
    """True where an image is never split over steps, so that the largest item must fit the token budget."""
    since: Version = (0, 19, 0)
    aliases: tuple[str, ...] = field(default=())


def _google(size: str, suffix: str = "") -> str:
    return f"google/gemma-4-{size}-it{suffix}"


MODELS = (
    CatalogModel(
        "E2B",
        {
            "bf16": Checkpoint(_google("E2B"), int(9.8 * GB)),
            "fp8": Checkpoint("RedHatAI/gemma-4-E2B-it-FP8-dynamic"),
            "w4a16": Checkpoint(_google("E2B", "-qat-w4a16-ct"), int(7.3 * GB)),
        },
        _google("E2B", "-assistant"), 2, 131072, 2.3e9,
        attention=Attention(512, (12, 1, 256), (3, 1, 512)), audio=True,
    ),
    CatalogModel(
        "E4B",
        {
            "bf16": Checkpoint(_google("E4B"), int(15.2 * GB)),
            "fp8": Checkpoint("RedHatAI/gemma-4-E4B-it-FP8-dynamic"),
            "w4a16": Checkpoint(_google("E4B", "-qat-w4a16-ct"), int(9.8 * GB)),
        },
        _google("E4B", "-assistant"), 4, 131072, 4.5e9,
        attention=Attention(512, (20, 2, 256), (4, 2, 512)), audio=True,
    ),
    CatalogModel(
        "12B",
        {
            "bf16": Checkpoint(_google("12B"), int(22.8 * GB)),
            "fp8": Checkpoint("RedHatAI/gemma-4-12B-it-FP8-Dynamic"),
            "nvfp4": Checkpoint("RedHatAI/gemma-4-12B-it-NVFP4"),
            "w4a16": Checkpoint(_google("12B", "-qat-w4a16-ct"), int(8.3 * GB)),
        },
        _google("12B", "-assistant"), 4, 131072, 12e9,
        encoder=False, audio=True, since=(0, 23, 0),
    ),
    CatalogModel(
        "26B-A4B",
        {
            "bf16": Checkpoint(_google("26B-A4B"), int(51.6 * GB)),
            "fp8": Checkpoint("RedHatAI/gemma-4-26B-A4B-it-FP8-dynamic"),
            "nvfp4": Checkpoint("nvidia/Gemma-4-26B-A4B-NVFP4"),
        },
        _google("26B-A4B", "-assistant"), 4, 262144, 4e9,
        attention=Attention(1024, (25, 8, 256), (5, 2, 512)), bidirectional_images=True,
    ),
    CatalogModel(
        "31B",
        {
            "bf16": Checkpoint(_google("31B"), 59 * GB),
            "fp8": Checkpoint("RedHatAI/gemma-4-31B-it-FP8-dynamic", broken_until=(0, 24, 0)),
            "nvfp4": Checkpoint("nvidia/Gemma-4-31B-IT-NVFP4"),
            "w4a16": Checkpoint(_google("31B", "-qat-w4a16-ct"), int(19.8 * GB)),
        },
        _google("31B", "-assistant"), 4, 262144, 31e9,
        attention=Attention(1024, (50, 16, 256), (10, 4, 512)), bidirectional_images=True,
    ),
)  # fmt: skip
_BYTES_PER_PARAMETER: Mapping[Precision, float] = {"bf16": 1.0, "fp8": 0.55, "nvfp4": 0.35, "w4a16": 0.45}


def lookup(model_id: str) -> CatalogModel | None:
    """The catalog's entry for a hub id such as google/gemma-4-E4B-it or RedHatAI/gemma-4-E4B-it-FP8-dynamic; None where unknown."""
    tail = model_id.rpartition("/")[2].lower()
    return next((model for model in MODELS if tail.startswith(f"gemma-4-{model.size.lower()}")), None)


def published(model_id: str) -> CatalogModel | None:
    """The catalog's entry of which `model_id` is one of the checkpoints; None for anybody else's weights, of whatever size."""
    return next((model for model in MODELS if any(c.id == model_id for c in model.checkpoints.values())), None)


def precision_of(model: Model) -> Precision:
    """Number format of the weights: the one asked for, else what the name of the checkpoint says, else bf16."""
    return model.precision or _named(model.checkpoint or model.id)


def _named(model_id: str) -> Precision:
    marks: tuple[tuple[str, Precision], ...] = (("nvfp4", "nvfp4"), ("fp8", "fp8"), ("w4a16", "w4a16"))
    return next((precision for mark, precision in marks if mark in model_id.lower()), "bf16")


def checkpoint_of(model: Model) -> Checkpoint:
    """The weights to load. Raises KeyError where the catalog has none of the precision asked for.

    Weights that aren't the catalog's (a fine-tune) or don't come from a hub are never exchanged for another checkpoint.
    """
    if model.checkpoint:
        return Checkpoint(model.checkpoint)
    if entry := published(model.id):
        return entry.checkpoints[model.precision or _named(model.id)]
    mounted = model.source is not None and model.source.hub is None
    if mounted or model.precision in (None, _named(model.id)):
        return Checkpoint(model.id)
    raise KeyError(model.precision)


def weight_bytes(model: Model) -> int | None:
    """Size of the weights in bytes, estimated from bf16 where the checkpoint's own isn't known; None for an unknown model."""
    entry = lookup(model.id)
    if entry is None:
        return None
    try:
        known = checkpoint_of(model).size_bytes
    except KeyError:
        return None
    bf16 = entry.checkpoints["bf16"].size_bytes or 0
    return known or int(bf16 * _BYTES_PER_PARAMETER[precision_of(model)])
