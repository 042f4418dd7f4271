"""Whether a model fits its GPUs, and how many requests its KV cache holds: from the model catalog."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_operator.engine.accelerators import Accelerator
from gemma_operator.engine.catalog import CatalogModel
from gemma_operator.engine.checks import GIB, MEMORY_UTILIZATION, OVERHEAD_BYTES

TEXT_ONLY_GAIN = 0.126
"""More KV cache where the encoder isn't loaded (seed 001, one GPU, NVFP4)."""
ENCODER_PARAMETERS = {"E2B": 150e6, "E4B": 150e6, "26B-A4B": 550e6, "31B": 550e6}
"""Of the vision tower: 16 layers 768 wide for the small ones, 27 layers 1152 wide for the large ones (assumed, as in
research/encoder-feasibility.md); a layer has 4 x width^2 + 3 x width x inner width."""
BYTES_PER_ENCODER_PARAMETER = 2
"""Quantised checkpoints leave the tower in bf16."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one engine, all its GPUs together; sizes in GiB."""

    gpu: str
    total: float
    weights: float
    kv_room: float
    """What is left for KV cache."""
    kv_per_token: int | None
    """Bytes of each further token of a long context; None where the catalog doesn't know the model's layers."""
    kv_tokens: int | None
    """Tokens of long contexts that it holds."""
    requests: int | None
    """Requests of the workload's mean length that it holds at once."""
    text_only_tokens: int | None
    """The same tokens without the encoder; None for a model that has none."""
    encoder: float = 0.0
    """Of the weights, the vision encoder's."""

    @property
    def fits(self) -> bool:
        """Whether there is room for weights and at least one request."""
        return self.kv_room > 0 and self.requests != 0


def memory_of(
    model: CatalogModel, weights: int, gpu: Accelerator, gpus: int, request_tokens: float, bytes_per_value: int
) -> Memory:
    """Memory of an engine on `gpus` of a kind, for requests of so many tokens, prompt and answer together."""
    total = gpus * gpu.memory_gib * GIB
    room = int(total * MEMORY_UTILIZATION - weights - OVERHEAD_BYTES)
    per_token = tokens = requests = text_only = None
    if model.attention:
        per_token = model.attention.bytes_per_token(bytes_per_value)
        tokens = max(0, room // per_token)
        requests = max(0, room // model.attention.bytes_per_sequence(max(1, round(request_tokens)), bytes_per_value))
        text_only = int(tokens * (1 + TEXT_ONLY_GAIN)) if model.encoder else None
    return Memory(
        gpu.name if gpus == 1 else f"{gpus} x {gpu.name}", total / GIB, weights / GIB, room / GIB, per_token, tokens, requests,
        text_only, ENCODER_PARAMETERS.get(model.size, 0.0) * BYTES_PER_ENCODER_PARAMETER / GIB,
    )  # fmt: skip
