"""The limit on a step's encoding, under vLLM's own scheduling order of one step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gemma_engine.budget import StepLimitedEncoderCacheManager, step_limit
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.engine.plugin import encoder_limit
from tests.plugin.conftest import HOME

BUDGET = 2496


def config(value: Any) -> Any:
    return SimpleNamespace(ec_manager_config=SimpleNamespace(manager_config={"encoder_tokens_per_step": value}))


class Request:
    """One medium of so many soft tokens."""

    def __init__(self, name: str, tokens: int) -> None:
        self.request_id = name
        self.mm_features = [SimpleNamespace(identifier=name)]
        self.tokens = tokens

    def get_num_encoder_embeds(self, _: int) -> int:
        return self.tokens


def steps(manager: Any, waiting: list[int]) -> list[list[int]]:
    """What each step encodes, as vLLM's scheduler goes through its queue: it stops at the first that doesn't fit."""
    queue = [Request(str(index), tokens) for index, tokens in enumerate(waiting)]
    done = []
    while queue:
        left, step = BUDGET, []
        while queue and manager.can_allocate(queue[0], 0, left, 0):
            request = queue.pop(0)
            manager.allocate(request, 0)
            manager.free_encoder_input(request, 0)
            left -= request.tokens
            step.append(request.tokens)
        assert step, "a step that encodes nothing would wait for ever"
        done.append(step)
    return done


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(0, [[396] * 6, [396] * 2], id="none: as many as the token budget holds"),
        pytest.param(800, [[396] * 2] * 4, id="800: two videos of 6 frames per step"),
        pytest.param(396, [[396]] * 8, id="396: one"),
        pytest.param(100, [[396]] * 8, id="less than a video: one all the same"),
    ],
)
def test_a_burst_of_eight_videos_is_spread(limit: int, expected: list[list[int]]) -> None:
    manager = StepLimitedEncoderCacheManager.create_manager(cache_size=BUDGET, vllm_config=config(limit))
    assert steps(manager, [396] * 8) == expected


@given(st.integers(1, 3000), st.lists(st.integers(1, BUDGET), min_size=1, max_size=30))
def test_no_step_goes_beyond_the_limit_except_by_one_medium_alone(limit: int, waiting: list[int]) -> None:
    manager = StepLimitedEncoderCacheManager.create_manager(cache_size=BUDGET, vllm_config=config(limit))
    for step in steps(manager, waiting):
        assert len(step) == 1 or sum(step) <= min(limit, BUDGET)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, [8]), (800, [2, 2, 2, 2]), (100, [1] * 8)],
    ids=["none: one step, and the answer waits for all of it", "800", "less than a video"],
)
def test_vllms_scheduler_spreads_a_burst_over_steps_that_all_give_the_running_answer_a_token(
    limit: int | None, expected: list[int]
) -> None:
    from tests.plugin.scheduling import scheduler, steps_of_a_burst

    given = encoder_limit(limit) if limit else None
    model = str(HOME / "models" / "gemma-4-tiny")
    steps = steps_of_a_burst(scheduler(model, 4096, given), requests=8)
    assert [step.videos for step in steps] == expected
    assert all(step.answers for step in steps)
    inside = steps_of_a_burst(scheduler(model, 4096, given), requests=1, videos_each=8)
    assert [step.videos for step in inside] == expected, "videos of one request are spread as well"


@pytest.mark.parametrize("value", [-1, "512", 1.5, True])
def test_a_limit_that_is_no_number_of_tokens_stops_the_start(value: Any) -> None:
    with pytest.raises(ValueError, match=r"encoder_tokens_per_step is .* whole number"):
        step_limit(config(value))


def test_a_vllm_without_the_option_has_no_limit() -> None:
    assert step_limit(SimpleNamespace()) == 0
