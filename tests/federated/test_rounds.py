"""A whole round, against Algorithm 1 taken literally, and against plain FedAvg."""

from dataclasses import replace
from fractions import Fraction

import fed_oracles as fed
import pytest
import torch
from fed_oracles import Setting, assignments
from tiny_models import KINDS

from fjord.core.width import Width, WidthSpace
from fjord.federated.methods import METHODS, find_method


@pytest.mark.parametrize("kind", ["dense", "lstm", "batchnorm"])
@pytest.mark.parametrize("method", ["fjord", "fjord-kd"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_equal_algorithm_1_taken_literally(
    kind: str, method: str, momentum: float
) -> None:
    setting = Setting(
        kind,
        method,
        ceilings=("1/5", "3/5", "0.99", "1"),
        sizes=(6, 10, 4, 11),
        rounds=2,
        batch=4,
        epochs=2,
        momentum=momentum,
    )
    found, _ = fed.train(setting.make())
    fed.assert_close(found, fed.algorithm1(setting), 1e-9)


def test_a_lone_weak_client_trains_nothing_beyond_its_ceiling() -> None:
    setting = Setting("batchnorm", "fjord-kd", ceilings=("2/5",), sizes=(8,), rounds=3)
    federation, net = setting.make(), setting.net()
    before = fed.snapshot(federation.model)
    found, _ = fed.train(federation)
    widths = [Width(1, 5), Width(2, 5)]
    inside = fed.holds(
        net, federation.model, fed.first_units(federation.model, Width(2, 5)), widths
    )
    for key, value in before.items():
        assert torch.equal(found[key][~inside[key]], value[~inside[key]]), key
    assert not torch.equal(found["stem.weight"], before["stem.weight"])


def test_with_distillation_the_teacher_is_the_largest_width_the_client_can_hold() -> None:
    setting = Setting("dense", "fjord-kd", ceilings=("3/5", "7/10"), sizes=(40, 40), batch=2)
    _, engine = fed.train(setting.make())
    for update in engine.updates:
        assert update.widest_steps == {Width(3, 5): 20}
        assert update.steps[Width(3, 5)] == 20
        assert set(update.steps) == {Width(1, 5), Width(2, 5), Width(3, 5)}


def test_without_distillation_only_the_sampled_width_is_run() -> None:
    setting = Setting("dense", "fjord", ceilings=("3/5",), sizes=(40,), batch=2)
    federation = setting.make()
    _, engine = fed.train(federation)
    drawn = fed.sampled_widths(federation, 0, 0, Width(3, 5), 20)
    expected = {w: drawn.count(w) for w in set(drawn)}
    assert engine.updates[0].steps == expected == engine.updates[0].widest_steps


@pytest.mark.parametrize(
    "method", ["fjord", "fedavg", "heterofl", "fjord-kd", "drop-low-tier", "fedrolex", "efd", "fd"]
)
def test_with_one_full_width_and_strong_clients_a_method_is_plain_fedavg(method: str) -> None:
    setting = Setting(
        "dense", method, space=WidthSpace.of(["1"]), sizes=(6, 8, 11), rounds=3, epochs=2, batch=4
    )
    found, _ = fed.train(setting.make())
    federation, net = setting.make(), setting.net()
    weights = {key: t.clone() for key, t in net.state_dict().items()}
    for t in range(3):
        answers = []
        for client in range(3):
            mine = fed.dense().double()
            mine.load_state_dict(weights)
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
            for inputs, target in fed.batches(federation, client, t):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(mine(inputs), target).backward()
                optimizer.step()
            answers.append(mine.state_dict())
        weights = {
            k: sum(n * a[k] for n, a in zip((6, 8, 11), answers, strict=True)) / 25 for k in weights
        }
    fed.assert_close(found, weights, 1e-10)


def test_fedavg_gives_every_client_the_whole_model_whatever_it_can_carry() -> None:
    weak = Setting("dense", "fedavg", ceilings=("1/5", "2/5", "1"), rounds=2)
    strong = replace(weak, ceilings=("1", "1", "1"))
    fed.assert_close(fed.train(weak.make())[0], fed.train(strong.make())[0], 1e-12)


def test_the_step_size_falls_tenfold_at_one_half_and_three_quarters() -> None:
    schedule = (
        Setting(rounds=8, lr=0.4, milestones=(Fraction(1, 2), Fraction(3, 4))).make().schedule
    )
    assert [schedule.lr_at(t) for t in range(8)] == pytest.approx(
        [0.4] * 4 + [0.04] * 2 + [0.004] * 2
    )


def test_a_last_batch_of_one_example_joins_the_one_before() -> None:
    _, engine = fed.train(
        Setting("batchnorm", "fjord", ceilings=("1",), sizes=(9,), batch=4).make()
    )
    assert sum(engine.updates[0].widest_steps.values()) == 2
    assert engine.updates[0].num_examples == 9


def test_a_selection_in_another_order_of_families_means_the_same() -> None:
    turned = replace(
        find_method("fjord"),
        select=lambda plan, g: dict(reversed(plan.leading_units(g.ceiling).items())),
    )
    setting = Setting("dense", "fjord", ceilings=("1/5", "3/5", "1"), sizes=(8, 8, 8))
    expected, _ = fed.train(setting.make())
    found, _ = fed.train(replace(setting, method=turned).make())
    fed.assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["batchnorm", "lstm"])
def test_every_method_trains_what_its_clients_hold_and_nothing_else(method: str, kind: str) -> None:
    """The merged model is the mean over the holders of what clients sent, in each of two rounds."""
    setting = Setting(kind, method, ceilings=("1/5", "3/5", "1"), sizes=(4, 6, 8), rounds=2)
    federation, net = setting.make(), setting.net()
    engine = fed.Serial(federation)
    before = fed.snapshot(federation.model)
    for _ in federation.rounds(engine):
        replies = []
        for task, update in zip(engine.tasks, engine.updates, strict=True):
            mask = fed.holds(net, federation.model, task.units, task.space.widths)
            fed.assert_identical(
                {k: t.detach() for k, t in task.tensors.items()}, fed.slice_of(before, mask)
            )
            full = {k: t.clone() for k, t in before.items()}
            for key, value in update.tensors.items():
                full[key][mask[key]] = value.reshape(-1)
            replies.append((mask, setting.sizes[task.client_id], full))
        assert replies
        expected = fed.mean_of_holders(before, replies)
        fed.assert_close(fed.snapshot(federation.model), expected)
        assert any(not torch.equal(expected[k], before[k]) for k in before)
        before = fed.snapshot(federation.model)
        engine.tasks.clear()
        engine.updates.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"prox": 0.1}, {"scaffold": True}])
def test_clients_that_train_on_views_of_the_model_leave_it_as_it_is(
    kind: str, changes: dict
) -> None:
    federation = Setting(
        kind, "fjord-kd", ceilings=("1/5", "3/5", "1"), sizes=(4, 6, 8), **changes
    ).make()
    before, engine = fed.snapshot(federation.model), fed.Serial(federation)
    updates = [update for _, update in engine.train(assignments(federation, 0))]
    fed.assert_identical(fed.snapshot(federation.model), before)
    assert any(
        not torch.equal(u.tensors[k], t.tensors[k])
        for u, t in zip(updates, engine.tasks, strict=True)
        for k in u.tensors
    )
