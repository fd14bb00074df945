"""FedNova against its paper, and on nested models."""

from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import FIFTHS, Setting
from strategies import FULL, add, rounds, start

from fjord.federated.fednova import step_lengths


def a_norm(tau: int, momentum: float = 0.0, alpha: float = 0.0) -> float:
    """|a|_1 of Wang et al., section 4: vanilla SGD, momentum, or a proximal term."""
    if momentum:
        return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
    if alpha:
        return (1 - (1 - alpha) ** tau) / alpha
    return float(tau)


@pytest.mark.parametrize(("momentum", "prox"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.8)])
def test_fednova_takes_tau_eff_times_the_mean_of_normalised_updates(
    momentum: float, prox: float
) -> None:
    setting = replace(
        FULL,
        nova=True,
        momentum=momentum,
        prox=prox,
        epochs=2,
        rounds=4,
        cohort=3,
        milestones=(Fraction(1, 2),),
    )
    net, weights = setting.net(), start(setting)
    for _, clients, lr, data in rounds(setting):
        total = sum(setting.sizes[c] for c in clients)
        tau_eff, d = 0.0, {key: torch.zeros_like(w) for key, w in weights.items()}
        for client, batches in zip(clients, data, strict=True):
            p, norm = setting.sizes[client] / total, a_norm(len(batches), momentum, lr * prox)
            answer = fed.plain_sgd(net, weights, batches, lr, momentum=momentum, prox=prox)
            tau_eff += p * norm
            d = add(d, {key: (weights[key] - answer[key]) / norm for key in weights}, p)
        weights = add(weights, d, -tau_eff)
    found = fed.train(setting.make())[0]
    fed.assert_close(found, weights, 2e-6)  # |a| is kept in single precision
    assert not torch.allclose(
        found["0.weight"], fed.train(replace(setting, nova=False).make())[0]["0.weight"]
    )


@pytest.mark.parametrize(
    ("momentum", "alpha"), [(0.0, 0.0), (0.3, 0.0), (0.9, 0.0), (0.0, 0.05), (0.0, 0.5)]
)
def test_the_length_of_a_clients_way_is_that_of_the_paper(momentum: float, alpha: float) -> None:
    how = replace(FULL, momentum=momentum, prox=alpha / 0.1).make().training
    expected = [0.0, *(a_norm(tau, momentum, alpha) for tau in range(1, 30))]
    assert step_lengths(29, how, 0.1).tolist() == pytest.approx(expected, rel=1e-5)


def test_fednova_is_fedavg_when_all_clients_take_as_many_steps() -> None:
    setting = replace(FULL, sizes=(8, 8, 8, 8), epochs=2)
    fed.assert_close(
        fed.train(replace(setting, nova=True).make())[0], fed.train(setting.make())[0], 1e-6
    )


@pytest.mark.parametrize(("lr", "prox"), [(0.1, 0.0), (0.1, 2.0), (1.0, 1.5)])
def test_fednova_takes_a_client_alone_as_it_is(lr: float, prox: float) -> None:
    """tau_eff is its own |a|, which cancels (and falls below 1 where lr * mu is above 1)."""
    setting = replace(FULL, ceilings=("1",), sizes=(8,), rounds=1, lr=lr, prox=prox)
    fed.assert_close(
        fed.train(replace(setting, nova=True).make())[0], fed.train(setting.make())[0], 1e-6
    )


@pytest.mark.parametrize("kind", ["dense", "batchnorm", "lstm"])
@pytest.mark.parametrize(
    ("method", "momentum"), [("fjord", 0.0), ("fjord", 0.9), ("fjord-kd", 0.0)]
)
def test_fednova_on_nested_models_counts_the_steps_that_could_move_a_weight(
    kind: str, method: str, momentum: float
) -> None:
    setting = Setting(
        kind, method, ceilings=("1/5", "3/5", "1"), sizes=(4, 10, 14), epochs=2, nova=True, rounds=2
    )
    setting = replace(setting, momentum=momentum)
    federation, net = setting.make(), setting.net()
    state = fed.snapshot(federation.model)
    for t in range(2):
        masks, answers = [], []
        for client, ceiling in enumerate(map(Fraction, setting.ceilings)):
            widths = [w for w in FIFTHS.widths if w <= ceiling]
            masks.append(
                fed.holds(net, federation.model, fed.first_units(federation.model, ceiling), widths)
            )
            answers.append(fed.trained_literally(setting, federation, state, client, t))
        after = {}
        for key, before in state.items():
            n = sum(
                size * mask[key].double() for size, mask in zip(setting.sizes, masks, strict=True)
            ).clamp(min=1e-9)
            tau_eff, d = (
                torch.zeros_like(before, dtype=torch.float64),
                torch.zeros_like(before, dtype=torch.float64),
            )
            average = torch.zeros_like(before, dtype=torch.float64)
            for size, mask, mine in zip(setting.sizes, masks, answers, strict=True):
                p = size * mask[key].double() / n
                average += p * mine.state[key]
                if key in mine.moves and not key.partition("@")[0].endswith(fed.STATISTICS):
                    norm = (
                        mine.moves[key]
                        .double()
                        .apply_(lambda tau: a_norm(int(tau), momentum) if tau else 0.0)
                    )
                    tau_eff += p * norm
                    d += p * (before - mine.state[key]) / norm.clamp(min=1e-9)
            held = torch.stack([mask[key] for mask in masks]).any(0)
            trained = key in answers[0].moves and not key.partition("@")[0].endswith(fed.STATISTICS)
            moved = (
                before - tau_eff * d
                if trained
                else average
                if before.is_floating_point()
                else average.round()
            )
            after[key] = torch.where(held, moved.to(before.dtype), before)
        state = after
    fed.assert_close(fed.train(federation)[0], state, 2e-6)
