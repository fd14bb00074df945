"""FedProx, FedNova, SCAFFOLD and server optimizers against their papers, and what becomes of them on nested models."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import FIFTHS, Reply, Setting, State, cohort_of

from fjord.core.width import Width, WidthSpace
from fjord.devices.tiers import ListedDevices, VaryingDevices
from fjord.federated.fednova import step_lengths
from fjord.federated.methods import METHODS
from fjord.federated.server_optimizers import FedAdam, FedAvgM

FULL = Setting(
    "dense",
    "fedavg",
    space=WidthSpace.of(["1"]),
    ceilings=("1",) * 4,
    sizes=(4, 8, 16, 6),
    rounds=3,
)


def rounds(setting: Setting) -> Iterator[tuple[int, list[int], float, list[list]]]:
    """Yield each round: its index, its clients, its step size and their minibatches."""
    federation = setting.make()
    for t in range(setting.rounds):
        clients = sorted(client for client, _ in cohort_of(federation, t))
        yield (
            t,
            clients,
            federation.schedule.lr_at(t),
            [fed.batches(federation, c, t) for c in clients],
        )


def start(setting: Setting) -> State:
    return fed.snapshot(setting.make().model)


def add(a: State, b: State, factor: float = 1.0) -> State:
    return {key: a[key] + factor * b[key] for key in a}


# ------------------------------------------------------------------------------------------------- FedProx


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


# ------------------------------------------------------------------------------------------------- FedNova


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
    """tau_eff is its own |a|, which cancels, whatever |a| is (it falls below 1 where lr * mu is above 1)."""
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


# ------------------------------------------------------------------------------------------------ SCAFFOLD


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


def swinging(setting: Setting) -> Setting:
    """Let every client be weak in every second round."""
    usual = ListedDevices([Fraction(c) for c in setting.ceilings])
    lowered = VaryingDevices(
        usual, lambda client, t, width: Width(2, 5) if (t + client) % 2 else width
    )
    return replace(setting, devices=lowered)


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
    """The variate of a weight is the mean over those that hold it: alike, they have nothing to correct."""
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


# ---------------------------------------------------------------------------------------- server optimizers


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
