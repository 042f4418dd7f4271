"""Donors in the simulator: warm batch engines, moved by the product's own rule for loans."""

from __future__ import annotations

import numpy as np

from gemma_operator.scaling.lending import Loans
from gemma_operator.simulation.faults import Fault, FaultKind, Faults
from gemma_operator.simulation.fleet import Engines, World
from gemma_operator.simulation.policies import Borrower, Product
from gemma_operator.simulation.run import Played, play
from gemma_operator.workload.arrivals import Arrivals
from gemma_operator.workload.synthetic import arrivals_at, constant, synthetic


def test_a_donor_answers_after_the_flip_and_finishes_what_it_has() -> None:
    arrivals = Arrivals.of(np.arange(0.0, 60.0, 0.5), 500, 1500)
    engines = Engines(World(donors=2), arrivals, 1)
    engines.advance(15)
    assert engines.fleet().members[0].uid == "engine-0"
    assert [member.uid for member in engines.batch_fleet().members] == ["donor-0", "donor-1"]
    before = engines.scrape().engines["donor-0"]
    assert before.ttft[-1][1] == 0, "no request of the pool goes to an engine that isn't lent"

    engines.move(Loans(lend=("donor-0",)))
    engines.advance(30)
    guest = next(member for member in engines.fleet().members if member.lent)
    assert (guest.uid, guest.joined_at - engines.world.epoch) == ("donor-0", 15)
    assert engines.batch_fleet().away == 1
    assert engines.fleet().desired == 1, "a guest is none of the pool's replicas"

    engines.move(Loans(give_back=("donor-0",)))
    engines.advance(45)
    counted = engines.scrape().engines["donor-0"]
    assert counted.running, "it works off its answers"
    engines.advance(60)
    assert engines.scrape().engines["donor-0"].ttft[-1][1] == counted.ttft[-1][1], "and gets no more requests"
    assert engines.gpu_seconds(0, 60) == 60 + 15, "a loan costs from the decision to the giving back"
    assert np.isfinite(engines.requests.ttft).all()


def stepped(donors: int, faults: Faults | None = None) -> tuple[Played, list[int]]:
    at = arrivals_at(lambda now: np.where((now >= 1200) & (now < 2400), 50.0, 15.0), 3600, seed=7)
    policy = Borrower() if donors else Product()
    played = play(policy, Arrivals.of(at, 500, 20), World(donors=donors), length=3600, preroll=0, faults=faults)
    return played, [decision.lent for decision in policy.decisions]


def test_donors_bridge_a_cold_start_and_go_back() -> None:
    (without, _), (lent, path) = stepped(0), stepped(2)
    assert lent.outcome.attainment > without.outcome.attainment + 0.05
    assert max(path) == 2
    assert path[-1] == 0
    assert lent.outcome.gpu_hours < without.outcome.gpu_hours * 1.1


def test_nothing_is_lent_while_nothing_is_known() -> None:
    _, path = stepped(2, Faults([Fault(FaultKind.PROMETHEUS, 900, 1500)]))
    assert max(path[: 1500 // 15]) == 0


def test_nothing_is_lent_at_a_constant_load() -> None:
    policy = Borrower()
    arrivals = synthetic(constant(45), 3600, seed=5, output_tokens=20)
    play(policy, arrivals, World(donors=2), length=3600, initial=3, preroll=0)
    assert sum(decision.lent for decision in policy.decisions) == 0
