"""What clients are sent does not depend on when it is asked for, nor on who asks."""

import pytest
import torch
from fed_oracles import Serial, Setting, assert_identical, snapshot

from fjord.core.width import Width
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.federated.methods import METHODS
from fjord.federated.population import Population

CEILINGS = ("1/5", "2/5", "3/5", "4/5", "1")


def same(one, other) -> bool:
    if (one.client_id, one.ceiling, one.space) != (other.client_id, other.ceiling, other.space):
        return False
    return all(torch.equal(one.units[name], units) for name, units in other.units.items())


@pytest.mark.parametrize("method", METHODS)
def test_assignments_are_the_same_each_time_they_are_iterated(method):
    federation = Setting("dense", method, CEILINGS, (4,) * 5).make()
    assignments = federation.assignments(federation.population.clients_in(3))
    once, again = list(assignments), list(assignments)
    assert len(once) == len(assignments) == len(again) > 0
    assert all(same(one, other) for one, other in zip(once, again, strict=True))
    for one, other in zip(once, again, strict=True):
        assert_identical(one.tensors, other.tensors)


class Eager(Serial):
    """An engine that takes all assignments, twice, before it trains the first client."""

    def train(self, tasks):
        list(tasks)
        return super().train(list(tasks))


@pytest.mark.parametrize("method", ["fjord-kd", "efd", "fedrolex", "fjord-efd"])
def test_an_engine_that_takes_all_assignments_at_once_gives_the_same_weights(method):
    weights = []
    for engine in (Serial, Eager):
        federation = Setting("dense", method, CEILINGS, (4,) * 5, rounds=2, scaffold=True).make()
        records = list(federation.rounds(engine(federation)))
        assert [sum(tier.clients for tier in r.tiers.values()) for r in records] == [5, 5]
        weights.append(snapshot(federation.model))
    assert_identical(*weights)


class Weakened(Serial):
    """An engine whose clients can carry less than the recipe says, from the second round on."""

    def clients(self, round_index):
        usual = self.federation.devices
        lowered = VaryingDevices(usual, lambda client, t, width: Width(2, 5) if t else width)
        return Population(5, lowered, self.federation.schedule.availability, 11).clients_in(
            round_index
        )


def test_the_engine_says_what_each_client_can_carry():
    federation = Setting("dense", "fjord", ("1",) * 5, (4,) * 5, rounds=2).make()
    engine = Weakened(federation)
    list(federation.rounds(engine))
    assert [task.ceiling for task in engine.tasks] == [Width(1)] * 5 + [Width(2, 5)] * 5
    assert all(len(task.units["0.weight[0]"]) == 4 for task in engine.tasks[5:])


def test_a_state_put_back_goes_on_to_the_same_weights():
    def make():
        return Setting(
            "batchnorm", "fjord-kd", CEILINGS, (4,) * 5, rounds=4, cohort=3, scaffold=True
        ).make()

    whole = make()
    rounds = whole.rounds(Serial(whole))
    next(rounds)
    next(rounds)
    state = {}
    for key, value in whole.state_dict().items():
        state[key] = value.clone() if isinstance(value, torch.Tensor) else value
    list(rounds)
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.round_index == 2
    list(resumed.rounds(Serial(resumed)))
    assert_identical(snapshot(resumed.model), snapshot(whole.model))


def test_clients_that_are_not_there_are_not_chosen():
    class Half(Serial):
        def clients(self, round_index):
            there = super().clients(round_index)
            devices = ListedDevices([Width(1)] * 5)

            class Even:
                round_index = there.round_index
                num_clients = 5

                def ceiling(self, client_id):
                    return None if client_id % 2 else devices.ceiling(client_id, round_index)

            return Even()

    federation = Setting("dense", "fjord", ("1",) * 5, (4,) * 5, rounds=1, cohort=5).make()
    engine = Half(federation)
    list(federation.rounds(engine))
    assert [task.client_id for task in engine.tasks] == [0, 2, 4]
