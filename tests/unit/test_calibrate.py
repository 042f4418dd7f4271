"""`python -m tools.calibrate`: costs are found again in what an engine with them would show, and errors are told as they are."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from gemma_operator.planning.replay import Ask
from gemma_operator.simulation.step_model import Costs, EngineConfig, Media
from tools.calibrate import __main__ as calibrate
from tools.calibrate import fit

ROOT = Path(__file__).parents[2]
TRUE = Costs(
    step=0.02,
    sequence_token=0.001,
    prompt_token=0.0001,
    encoder_batch=0.03,
    encoder_unit=0.1,
    tokenize=0.012,
    media_decode=0.0,
    media_process=0.015,
)
CONFIG = EngineConfig(4096, 64)


def shown(costs: Costs, noise: float, seed: int = 1) -> tuple[list[fit.Single], list[fit.Decoding]]:
    """What single requests and decoding sequences take, a little more than the costs now and then."""
    rng = np.random.default_rng(seed)
    singles = []
    for tokens, frames in [*((n, 0) for n in (80, 250, 420, 640)), *((90, f) for f in (2, 3, 5))]:
        total = tokens + (Media(frames).tokens if frames else 0)
        engine = costs.step + costs.sequence_token + costs.prompt_token * total
        engine += costs.encoder(frames, float(frames), batched=True)
        for _ in range(9):
            late = 1 + noise * rng.exponential() * (rng.random() < 0.15)
            ttft = (engine + costs.tokenize + frames * costs.media_process) * late
            singles.append(fit.Single(total, frames, ttft, engine * late))
    decodings = [fit.Decoding(n, costs.step + n * costs.sequence_token) for n in (1, 8, 24)]
    return singles, decodings


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_costs_are_found_again(noise: float) -> None:
    found, true = asdict(fit.fit(*shown(TRUE, noise))), asdict(TRUE)
    for name in (
        "step",
        "sequence_token",
        "prompt_token",
        "encoder_batch",
        "encoder_unit",
        "tokenize",
        "media_process",
    ):
        assert found[name] == pytest.approx(true[name], rel=0.1), name


def test_a_cost_that_does_not_show_is_none_and_not_less() -> None:
    costs = fit.fit(*shown(Costs(step=0.02, sequence_token=0.0, prompt_token=1e-4, encoder_batch=0.0), 0.0))
    assert costs.sequence_token == pytest.approx(0.0, abs=1e-9)
    assert min(asdict(costs).values()) >= 0


def test_a_burst_tells_how_much_slower_a_busy_machine_is() -> None:
    asks = fit.asks_of(fit.at_once(40, 1, 2, 0.1))
    for factor in (1.0, 2.5):
        seen = fit.predicted(asks, CONFIG, TRUE.scaled(factor))
        assert fit.slowdown(TRUE, CONFIG, asks, seen) == pytest.approx(factor, rel=0.02)


def test_the_highest_rate_is_where_the_limit_is_reached() -> None:
    rate = fit.highest_rate(TRUE, CONFIG, 2, 0.1)

    def p95(rate: float) -> float:
        return fit.p95(fit.predicted(fit.asks_of(fit.draw(rate, 400, 3, 2, 0.1)), CONFIG, TRUE))

    assert p95(0.5 * rate) < fit.LIMIT_SECONDS < p95(2 * rate)


def test_an_interval_holds_its_p95() -> None:
    values = np.random.default_rng(1).exponential(1.0, 300).tolist()
    low, high = fit.interval_of_p95(values)
    assert low < fit.p95(values) < high
    assert low < 3.0 < high, "the true one"


def test_asks_are_the_arrivals() -> None:
    arrivals = fit.draw(5.0, 50, 2, 3, 0.5)
    asks = fit.asks_of(arrivals)
    assert len(asks) == 50
    assert asks[7] == Ask(
        float(arrivals.at[7]),
        int(arrivals.prompt_tokens[7]),
        int(arrivals.output_tokens[7]),
        int(arrivals.frames[7]),
    )


def test_the_docs_show_the_data() -> None:
    text = (ROOT / "docs/simulator.md").read_text()
    table = text.partition(calibrate.FIRST)[2].partition(calibrate.LAST)[0].strip().splitlines()
    assert table == calibrate.rows(json.loads(calibrate.DATA.read_text()))
