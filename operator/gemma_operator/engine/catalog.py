"""What we know of the Gemma 4 models (source: research/vllm.md sections 1.6 and 2, vLLM recipes Google/Gemma4.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One size of Gemma 4: its drafter, and the drafted tokens that upstream recommends."""

    size: str
    assistant: str
    mtp_tokens: int


_MODELS = (
    CatalogModel("E2B", "google/gemma-4-E2B-it-assistant", 2),
    CatalogModel("E4B", "google/gemma-4-E4B-it-assistant", 4),
    CatalogModel("12B", "google/gemma-4-12B-it-assistant", 4),
    CatalogModel("26B-A4B", "google/gemma-4-26B-A4B-it-assistant", 4),
    CatalogModel("31B", "google/gemma-4-31B-it-assistant", 4),
)


def lookup(model_id: str) -> CatalogModel | None:
    """The catalog's entry for a hub id such as google/gemma-4-E4B-it or RedHatAI/gemma-4-E4B-it-FP8-dynamic; None where unknown."""
    tail = model_id.rpartition("/")[2].lower()
    for model in _MODELS:
        if tail.startswith(f"gemma-4-{model.size.lower()}"):
            return model
    return None
