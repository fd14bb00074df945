"""Whom a round chooses: as many as asked for, those available, at ceilings of the space."""

from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import Setting, cohort_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.core.width import Width, uniform_widths
from fjord.data.federated import GeneratedData
from fjord.devices.tiers import ListedDevices, VaryingDevices, uniform_tiers
from fjord.federated.rounds import Federation


def population(size: int, **changes: object) -> Federation:
    asked: list[int] = []

    def make(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(client)
        generator = torch.Generator().manual_seed(client)
        return torch.randn(4, 4, generator=generator, dtype=torch.float64), torch.zeros(
            4, dtype=torch.int64
        )

    federation = Setting("dense", **changes).make()
    federation.data = GeneratedData(size, make, federation.data.test)
    federation.devices = uniform_tiers(5, size)
    federation.asked = asked
    return federation


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 1000), st.integers(0, 500))
def test_a_cohort_has_its_size_and_no_client_twice(
    size: int, cohort: int, seed: int, t: int
) -> None:
    federation = population(size, cohort=cohort, seed=seed)
    chosen = [client for client, _ in cohort_of(federation, t)]
    assert len(chosen) == min(size, cohort) == len(set(chosen))
    assert all(0 <= client < size for client in chosen)
    assert chosen == [
        client for client, _ in cohort_of(population(size, cohort=cohort, seed=seed), t)
    ]


def test_cohorts_differ_between_rounds_and_seeds_and_reach_everyone() -> None:
    federation = population(50, cohort=5, seed=1)
    rounds = [frozenset(c for c, _ in cohort_of(federation, t)) for t in range(200)]
    assert len(set(rounds)) > 190
    times = [sum(client in chosen for chosen in rounds) for client in range(50)]
    assert min(times) > 5
    assert max(times) < 45
    other = population(50, cohort=5, seed=2)
    assert sum(frozenset(c for c, _ in cohort_of(other, t)) == rounds[t] for t in range(50)) < 3


def test_only_available_clients_are_chosen_about_the_right_share_of_them() -> None:
    federation = population(2000, cohort=2000, seed=4, availability=Fraction(3, 10))
    rounds = [{c for c, _ in cohort_of(federation, t)} for t in range(2)]
    for chosen in rounds:
        assert 500 < len(chosen) < 700  # 600 expected, deviation 20.5
    assert 120 < len(rounds[0] & rounds[1]) < 240  # 180 expected: independent from round to round
    few_chosen = {
        c
        for c, _ in cohort_of(population(2000, cohort=20, seed=4, availability=Fraction(3, 10)), 0)
    }
    assert len(few_chosen) == 20
    assert few_chosen <= rounds[0]


def test_a_round_over_a_million_clients_touches_its_cohort_only() -> None:
    federation = population(10**6, cohort=4, rounds=2)
    _, engine = fed.train(federation)
    assert len(engine.updates) == 8
    assert set(federation.asked) == {task.client_id for task in engine.tasks}
    assert len(federation.asked) <= 8


def test_the_ceilings_of_a_cohort_are_widths_of_the_space() -> None:
    federation = Setting(
        "dense", space=uniform_widths(4), ceilings=("0.3", "0.74", "1"), sizes=(4, 4, 4)
    ).make()
    assert {c: g.ceiling for c, g in cohort_of(federation, 0)} == {
        0: Width(1, 4),
        1: Width(1, 2),
        2: Width(1),
    }


def test_a_ceiling_below_the_smallest_width_is_refused_with_the_clients_name() -> None:
    federation = Setting("dense", ceilings=("1", "1", "1")).make()
    usual = ListedDevices([Width(1)] * 3)
    federation.devices = VaryingDevices(
        usual, lambda client, t, width: "1/10" if client == 2 else width
    )
    with pytest.raises(ValueError, match="client 2: ceiling 1/10 is below the smallest width 1/5"):
        cohort_of(federation, 0)
