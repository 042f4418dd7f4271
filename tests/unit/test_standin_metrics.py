"""The stand-in's /metrics: vLLM's names, types, labels and edges, and what a request changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gemma_operator.simulation.standin.metrics import EngineMetrics
from gemma_operator.simulation.step_model import Costs
from tests.unit.test_standin import arguments, chat, samples, serving, until, video

REAL_METRICS = Path(__file__).parent / "data" / "vllm-0.32-metrics.txt"


def families(text: str) -> dict[str, tuple[str, set[frozenset[tuple[str, str]]]]]:
    """vLLM's metric families: type and label sets (without bucket edges)."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:"):
            sets = {frozenset((k, v) for k, v in s.labels.items() if k != "le") for s in family.samples}
            found[family.name] = (family.type, sets)
    return found


class TestMetrics:
    @pytest.fixture(autouse=True)
    def as_a_process_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the operator's metrics are imported too, the client is told for the whole process to leave out times of creation."""
        monkeypatch.setattr("prometheus_client.metrics._use_created", True)

    def test_names_types_and_labels_are_vllms(self) -> None:
        """Against a sample of the real engine, with multi-token prediction of 4 tokens; all label sets from the start."""
        metrics = EngineMetrics(arguments("--speculative-config", '{"method":"mtp","num_speculative_tokens":4}'))
        real, ours = families(REAL_METRICS.read_text()), families(metrics.render().decode())
        assert real.pop("vllm:cache_config_info")[0] == ours.pop("vllm:cache_config_info")[0]
        assert ours == real

    async def test_observes_a_request(self) -> None:
        async with serving("--custom-histogram-buckets", '{"time_to_first_token":[0.3,60]}') as client:
            before = await samples(client)
            await client.post("/v1/chat/completions", json=chat(video()))
            found = await samples(client)
        assert before['request_success_total{finished_reason="length"}'] == 0
        assert [before[f'time_to_first_token_seconds_bucket{{le="{le}"}}'] for le in ("0.3", "60.0", "+Inf")] == [0] * 3
        assert found['time_to_first_token_seconds_bucket{le="60.0"}'] == 1
        assert found["inter_token_latency_seconds_count"] == 4
        assert found['request_success_total{finished_reason="length"}'] == 1
        assert found["generation_tokens_total"] == 5
        assert found["prompt_tokens_total"] == 6 * 78 + 4 + 8
        assert found["num_requests_running"] == 0
        for phase in ("queue", "prefill", "decode", "inference"):
            assert found[f"request_{phase}_time_seconds_count"] == 1
        spent = found["request_inference_time_seconds_sum"]
        assert found["e2e_request_latency_seconds_sum"] > spent > found["request_decode_time_seconds_sum"] > 0

    async def test_default_edges(self) -> None:
        async with serving() as client:
            found = await samples(client)
        for edge in ("0.001", "0.25", "0.5", "2560.0"):
            assert f'time_to_first_token_seconds_bucket{{le="{edge}"}}' in found
        assert 'e2e_request_latency_seconds_bucket{le="0.3"}' in found

    async def test_counts_drafts(self) -> None:
        speculation = '{"method":"mtp","model":"drafter","num_speculative_tokens":2}'
        async with serving("--speculative-config", speculation) as client:
            await client.post("/v1/chat/completions", json=chat(max_tokens=100, ignore_eos=True))
            found = await samples(client)
        assert found["generation_tokens_total"] == 100
        assert found["spec_decode_num_draft_tokens_total"] == 2 * found["spec_decode_num_drafts_total"]
        accepted = [found[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{n}"}}'] for n in (0, 1)]
        assert sum(accepted) == found["spec_decode_num_accepted_tokens_total"]
        assert accepted[0] > accepted[1] > 0

    async def test_client_that_leaves_is_never_observed(self) -> None:
        async with serving(costs=Costs().scaled(20)) as client:
            waiting = await client.post("/v1/chat/completions", json=chat("x" * 8000, stream=True))
            waiting.close()
            answering = await client.post(
                "/v1/chat/completions", json=chat(max_tokens=1000, ignore_eos=True, stream=True)
            )
            await answering.content.readline()
            answering.close()
            found = await until(client, lambda found: found["num_requests_running"] == 0)
        assert found["time_to_first_token_seconds_count"] == 1
        assert found["e2e_request_latency_seconds_count"] == 0
        assert sum(value for name, value in found.items() if name.startswith("request_success_total")) == 0
