"""Server optimizers against their papers, and on nested models."""

from dataclasses import replace

import fed_oracles as fed
import pytest
import torch
from fed_oracles import Setting
from strategies import FULL, add, rounds, start

from fjord.core.width import Width, WidthSpace
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.federated.server_optimizers import FedAdam, FedAvgM


def test_fedavgm_is_momentum_on_the_mean_update() -> None:
    setting = replace(FULL, step=FedAvgM(lr=0.6, momentum=0.8), rounds=5, cohort=3)
    net, w = setting.net(), start(setting)
    m = {key: torch.zeros_like(t) for key, t in w.items()}
    for _, clients, lr, data in rounds(setting):
        mean = fed.weighted_mean(
            [fed.plain_sgd(net, w, d, lr) for d in data], [setting.sizes[c] for c in clients]
        )
        m = {key: 0.8 * m[key] + (mean[key] - w[key]) for key in w}
        w = add(w, m, 0.6)
    fed.assert_close(fed.train(setting.make())[0], w, 1e-9)


@pytest.mark.parametrize("tau", [1e-3, 0.05])
def test_fedadam_is_algorithm_2_of_reddi_et_al(tau: float) -> None:
    """m and v without bias correction, from m = 0 and, as that algorithm demands, v = tau^2."""
    setting = replace(
        FULL, step=FedAdam(lr=0.03, beta1=0.8, beta2=0.95, tau=tau), rounds=5, cohort=3
    )
    net, x = setting.net(), start(setting)
    m = {key: torch.zeros_like(t) for key, t in x.items()}
    v = {key: torch.full_like(t, tau**2) for key, t in x.items()}
    for _, clients, lr, data in rounds(setting):
        mean = fed.weighted_mean(
            [fed.plain_sgd(net, x, d, lr) for d in data], [setting.sizes[c] for c in clients]
        )
        for key in x:
            delta = mean[key] - x[key]
            m[key] = 0.8 * m[key] + 0.2 * delta
            v[key] = 0.95 * v[key] + 0.05 * delta**2
            x[key] = x[key] + 0.03 * m[key] / (v[key].sqrt() + tau)
    fed.assert_close(fed.train(setting.make())[0], x, 1e-9)


@pytest.mark.parametrize("step", [FedAvgM(lr=0.5), FedAdam(lr=0.02)], ids=["fedavgm", "fedadam"])
@pytest.mark.parametrize("kind", ["dense", "batchnorm", "lstm"])
def test_weights_nobody_held_in_a_round_stay_and_so_does_the_servers_memory_of_them(
    kind: str, step: object
) -> None:
    setting = Setting(kind, "fjord", ceilings=("1", "1"), sizes=(4, 8), rounds=3, step=step)
    federation, net = setting.make(), setting.net()
    federation.devices = VaryingDevices(
        ListedDevices([Width(1)] * 2), lambda client, t, width: Width(2, 5) if t == 1 else width
    )
    inside = fed.holds(
        net,
        federation.model,
        fed.first_units(federation.model, Width(2, 5)),
        [Width(1, 5), Width(2, 5)],
    )
    states, memories = [], []
    for _ in federation.rounds(fed.Serial(federation)):
        states.append(fed.snapshot(federation.model))
        memories.append({name: t.clone() for name, t in federation.server.memory.items()})
    for key, value in states[0].items():
        outside = ~inside[key]
        assert torch.equal(states[1][key][outside], value[outside]), f"{key} moved"
    assert memories[0].keys() == memories[1].keys()
    for name, value in memories[0].items():
        outside = ~inside[name.partition("/")[2]]
        assert torch.equal(memories[1][name][outside], value[outside]), f"the memory {name} moved"
    moved = [key for key in states[0] if not torch.equal(states[1][key], states[0][key])]
    assert any("weight" in key for key in moved)
    first = next(iter(memories[0]))
    assert not torch.equal(memories[2][first], memories[1][first])


def test_momentum_of_a_nested_model_goes_on_where_it_was_when_a_weight_is_held_again() -> None:
    """FedAvgM taken element by element: a round without holders is no round for that weight."""
    setting = Setting(
        "dense", "fjord", ceilings=("1", "1"), sizes=(4, 8), rounds=4, step=FedAvgM(0.5, 0.9)
    )
    federation, net = setting.make(), setting.net()
    federation.devices = VaryingDevices(
        ListedDevices([Width(1)] * 2), lambda client, t, width: Width(2, 5) if t % 2 else width
    )
    engine = fed.Serial(federation)
    w = fed.snapshot(federation.model)
    m = {key: torch.zeros_like(t) for key, t in w.items()}
    for _ in federation.rounds(engine):
        replies = []
        for task, update in zip(engine.tasks, engine.updates, strict=True):
            mask = fed.holds(net, federation.model, task.units, task.space.widths)
            full = {k: t.clone() for k, t in w.items()}
            for key, value in update.tensors.items():
                full[key][mask[key]] = value.reshape(-1)
            replies.append((mask, update.num_examples, full))
        mean = fed.mean_of_holders(w, replies)
        for key in w:
            held = torch.stack([mask[key] for mask, _, _ in replies]).any(0)
            m[key] = torch.where(held, 0.9 * m[key] + mean[key] - w[key], m[key])
            w[key] = torch.where(held, w[key] + 0.5 * m[key], w[key])
        fed.assert_close(fed.snapshot(federation.model), w, 1e-10)
        engine.tasks.clear()
        engine.updates.clear()


def test_server_optimizers_leave_running_statistics_and_counters_to_the_mean() -> None:
    setting = Setting("batchnorm", "fjord", ceilings=("1",), sizes=(8,), space=WidthSpace.of(["1"]))
    plain, _ = fed.train(setting.make())
    adam, _ = fed.train(replace(setting, step=FedAdam()).make())
    for key in plain:
        if key.partition("@")[0].endswith(fed.STATISTICS):
            assert torch.equal(plain[key], adam[key])
    assert not torch.allclose(plain["stem.weight"], adam["stem.weight"])
