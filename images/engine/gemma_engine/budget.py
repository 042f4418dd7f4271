"""A limit on what the vision encoder does in one step, apart from the token budget.

vLLM lets a step encode as many soft tokens as the step has tokens, and every answer that is being written waits for all of it.
A smaller limit spreads a burst of media over several steps, with decoding in between:

    --ec-manager-config '{"encoder_cache_manager_cls": "gemma_engine.budget.StepLimitedEncoderCacheManager",
                          "manager_config": {"encoder_tokens_per_step": 512}}'            (vLLM 0.28 and later)
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

LIMIT = "encoder_tokens_per_step"


def step_limit(vllm_config: Any) -> int:
    """The configured limit in soft tokens; 0 for none. ValueError for one that is no positive whole number."""
    given = getattr(getattr(vllm_config, "ec_manager_config", None), "manager_config", {}).get(LIMIT, 0)
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ValueError(f"manager_config.{LIMIT} is {given!r}: it must be a whole number of soft tokens, 1 or more")
    return given


class StepLimitedEncoderCacheManager(EncoderCacheManager):
    """vLLM's manager, which also says no once a step has encoded enough. The first item of a step always passes."""

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: Any) -> StepLimitedEncoderCacheManager:
        manager = cls(cache_size=cache_size)
        manager.limit = step_limit(vllm_config)
        return manager

    def __init__(self, cache_size: int) -> None:
        super().__init__(cache_size)
        self.limit = 0
        self._most_budget = 0

    def can_allocate(
        self, request: Any, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        # The scheduler counts its budget down within a step, so the most that was ever left is the whole of it.
        self._most_budget = max(self._most_budget, encoder_compute_budget)
        used = self._most_budget - encoder_compute_budget
        wanted = request.get_num_encoder_embeds(input_id)
        if self.limit and used and used + wanted > self.limit:
            return False
        allowed: bool = super().can_allocate(request, input_id, encoder_compute_budget, num_embeds_to_schedule)
        return allowed
