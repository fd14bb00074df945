"""FedProx against its paper; strategies composed with every method."""

from dataclasses import replace

import fed_oracles as fed
import pytest
import torch
from fed_oracles import Setting
from strategies import FULL, rounds, start, swinging

from fjord.federated.methods import METHODS
from fjord.federated.server_optimizers import FedAdam, FedAvgM


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedprox_adds_mu_times_the_way_from_the_global_weights_to_every_gradient(
    momentum: float,
) -> None:
    setting = replace(FULL, prox=0.7, epochs=3, momentum=momentum, cohort=3)
    net, weights = setting.net(), start(setting)
    for _, clients, lr, data in rounds(setting):
        answers = [fed.plain_sgd(net, weights, d, lr, prox=0.7, momentum=momentum) for d in data]
        weights = fed.weighted_mean(answers, [setting.sizes[c] for c in clients])
    found = fed.train(setting.make())[0]
    fed.assert_close(found, weights, 1e-10)
    assert not torch.allclose(
        found["0.weight"], fed.train(replace(setting, prox=0.0).make())[0]["0.weight"]
    )


@pytest.mark.parametrize("method", ["fjord", "fjord-kd"])
@pytest.mark.parametrize("kind", ["dense", "lstm", "batchnorm"])
def test_fedprox_on_nested_models_pulls_only_the_weights_of_the_step(
    method: str, kind: str
) -> None:
    setting = Setting(
        kind, method, ceilings=("1/5", "3/5", "1"), sizes=(6, 10, 8), epochs=2, prox=0.9, rounds=2
    )
    fed.assert_close(fed.train(setting.make())[0], fed.algorithm1(setting), 1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "more",
    [
        {"scaffold": True},
        {"scaffold": True, "step": FedAdam()},
        {"nova": True, "step": FedAvgM()},
        {"nova": True},
    ],
    ids=["scaffold", "scaffold-fedadam", "nova-fedavgm", "nova"],
)
def test_strategies_compose_with_every_method_under_changing_ceilings(
    method: str, more: dict
) -> None:
    setting = swinging(
        Setting(
            "batchnorm", method, ceilings=("3/5", "4/5", "1"), sizes=(4, 6, 8), rounds=3, **more
        )
    )
    federation, net = setting.make(), setting.net()
    before = fed.snapshot(federation.model)
    found, engine = fed.train(federation)
    assert all(bool(t.isfinite().all()) for t in found.values())
    masks = [
        fed.holds(net, federation.model, task.units, task.space.widths) for task in engine.tasks
    ]
    for key, value in before.items():
        nobody = ~torch.stack([mask[key] for mask in masks]).any(0)
        assert torch.equal(found[key][nobody], value[nobody]), (
            f"{key} moved where nobody ever held it"
        )
    assert not torch.equal(found["stem.weight"], before["stem.weight"])
