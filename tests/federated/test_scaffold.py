"""SCAFFOLD against its paper, and on nested models."""

from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import FIFTHS, Reply, Setting
from strategies import FULL, add, rounds, start, swinging

from fjord.core.width import Width
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.federated.methods import METHODS


def test_scaffold_is_option_ii_over_many_rounds_with_some_clients_in_each() -> None:
    setting = replace(
        FULL, sizes=(8,) * 5, ceilings=("1",) * 5, cohort=2, rounds=8, epochs=2, scaffold=True
    )
    setting = replace(setting, milestones=(Fraction(1, 2),))
    net, x = setting.net(), start(setting)
    zeros = {key: torch.zeros_like(w) for key, w in x.items()}
    c, own = zeros, dict.fromkeys(range(5), zeros)
    took_part: list[int] = []
    for _, clients, lr, data in rounds(setting):
        change, answers = zeros, []
        for client, batches in zip(clients, data, strict=True):
            y = fed.plain_sgd(net, x, batches, lr, correction=add(c, own[client], -1))
            fresh = {k: own[client][k] - c[k] + (x[k] - y[k]) / (len(batches) * lr) for k in x}
            change = add(change, add(fresh, own[client], -1))
            own[client] = fresh
            answers.append(y)
        x = fed.weighted_mean(answers, [1] * len(answers))
        c = add(c, change, 1 / 5)
        took_part += clients
    assert max(map(took_part.count, range(5))) > 1, "no client took part twice"
    federation = setting.make()
    fed.assert_close(fed.train(federation)[0], x, 1e-7)
    scaffold = federation.scaffold
    fed.assert_close(scaffold.control, c, 1e-7)  # K lr is kept in single precision
    assert set(scaffold.clients) == set(took_part)
    for client, variate in scaffold.clients.items():
        fed.assert_close(variate.tensors, own[client], 1e-7)


@pytest.mark.parametrize("kind", ["dense", "batchnorm", "lstm"])
@pytest.mark.parametrize("method", ["fjord", "fjord-kd"])
def test_scaffold_on_nested_models_counts_the_steps_that_could_move_a_weight(
    kind: str, method: str
) -> None:
    """All clients hold everything here, but a step moves only what its width holds."""
    setting = Setting(
        kind, method, ceilings=("1", "1", "1"), sizes=(8, 8, 8), epochs=2, scaffold=True, rounds=3
    )
    federation, net = setting.make(), setting.net()
    x = fed.snapshot(federation.model)
    trained = [k for k, t in federation.model.tensors.items() if isinstance(t, torch.nn.Parameter)]
    zeros = {key: torch.zeros_like(x[key]) for key in trained}
    c, own = zeros, dict.fromkeys(range(3), zeros)
    for t in range(3):
        replies, change = [], zeros
        for client in range(3):
            mine = fed.trained_literally(
                setting, federation, x, client, t, correction=add(c, own[client], -1)
            )
            replies.append(Reply(Width(1), 8, mine.state))
            fresh = {}
            for k in trained:
                slope = (x[k] - mine.state[k]) / (mine.moves[k].clamp(min=1) * setting.lr)
                fresh[k] = torch.where(
                    mine.moves[k] > 0, own[client][k] - c[k] + slope, own[client][k]
                )
            change = add(change, add(fresh, own[client], -1))
            own[client] = fresh
        x = fed.eq1_literal(net, federation.model, x, replies, FIFTHS)
        c = add(c, change, 1 / 3)
    fed.assert_close(fed.train(federation)[0], x, 1e-7)
    fed.assert_close(federation.scaffold.control, c, 1e-7)


def test_a_client_that_loses_units_keeps_its_variate_on_the_others() -> None:
    setting = Setting(
        "batchnorm", "heterofl", ceilings=("1", "1"), sizes=(4, 4), scaffold=True, rounds=2
    )
    federation, net = swinging(setting).make(), setting.net()
    federation.devices = VaryingDevices(
        ListedDevices([Width(1)] * 2), lambda client, t, width: Width(2, 5) if t else width
    )
    engine = fed.Serial(federation)
    sent = fed.snapshot(federation.model)
    list(federation.rounds(engine))
    first = {
        task.client_id: update
        for task, update in zip(engine.tasks[:2], engine.updates[:2], strict=True)
    }
    keys = [k for k in engine.tasks[2].correction if "@" not in k]
    slopes = {
        i: {k: (sent[k] - u.tensors[k]) / setting.lr for k in keys} for i, u in first.items()
    }  # one step each
    mask = fed.holds(
        net, federation.model, fed.first_units(federation.model, Width(2, 5)), [Width(2, 5)]
    )
    for task in engine.tasks[2:]:
        assert {k for k in task.correction if "@" in k} == {"bn.weight@2/5", "bn.bias@2/5"}
        for key in keys:
            full = (slopes[0][key] + slopes[1][key]) / 2 - slopes[task.client_id][key]
            assert torch.allclose(task.correction[key], fed.cut_out(full, mask[key]), atol=1e-12), (
                key
            )


@pytest.mark.parametrize("method", METHODS)
def test_a_client_alone_is_not_corrected_by_scaffold_however_its_units_change(method: str) -> None:
    """With one client c is c_i, so that SCAFFOLD is plain training."""
    setting = Setting("dense", method, ceilings=("3/5",), sizes=(8,), rounds=8, target=Width(3, 5))
    if METHODS[method]().nested or method == "fedrolex":
        setting = replace(setting, target=Width(1))
    if method == "drop-low-tier":
        setting = replace(setting, ceilings=("1",))
    expected, _ = fed.train(swinging(setting).make())
    federation = swinging(replace(setting, scaffold=True)).make()
    fed.assert_close(fed.train(federation)[0], expected, 1e-7)


def test_clients_that_are_alike_are_not_corrected_where_others_hold_nothing() -> None:
    """A weight's variate is the mean over those that hold it: alike, they need no correction."""
    setting = Setting(
        "dense", "heterofl", ceilings=("1/5", "1", "1"), sizes=(4, 4, 4), scaffold=True, rounds=4
    )
    federation, net = setting.make(), setting.net()
    data = federation.data
    federation.data = replace(data, rows=(data.rows[0],) * 3)
    engine = fed.Serial(federation)
    list(federation.rounds(engine))
    weak = fed.holds(net, federation.model, fed.first_units(federation.model, Width(1, 5)), [])
    strong = [task for task in engine.tasks if task.client_id > 0 and task.round_index == 3]
    assert len(strong) == 2
    for task in strong:
        for key, correction in task.correction.items():
            beyond = correction[~weak[key]]
            assert float(beyond.abs().max()) < 1e-7 if beyond.numel() else True, (
                f"{key} {float(beyond.abs().max())}"
            )
