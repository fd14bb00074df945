"""Centralised training learns at every width, repeats itself, and has the paper's controls."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fjord
from fjord.training.evaluate import score_network

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def net(hidden: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 3))


def batches(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    """Three classes, told apart by which pair of inputs is largest."""
    x = torch.randn(count, 32, 6, generator=torch.Generator().manual_seed(5))
    return [(b, b.reshape(32, 3, 2).sum(-1).argmax(-1)) for b in x]


def make() -> fjord.ElasticModel:
    return fjord.elasticize(net(), torch.randn(2, 6))


@pytest.mark.parametrize(
    "objective",
    [fjord.ordered_dropout(), fjord.self_distillation(), fjord.self_distillation(0.5, 2.0)],
)
def test_every_width_learns(objective):
    elastic = make()
    history = fjord.fit(
        elastic, batches(), SGD, epochs=8, objective=objective, test=batches(), seed=1
    )
    assert len(history) == 8
    assert history[-1].loss < history[0].loss
    scores = history[-1].scores
    assert list(scores) == list(fjord.uniform_widths(5).widths)
    assert all(score.accuracy > 0.75 for score in scores.values())
    assert scores[Fraction(1)].count == 12 * 32


def test_the_same_seed_gives_the_same_weights_bit_for_bit():
    def weights(seed: int) -> dict[str, Tensor]:
        elastic = make()
        loader = DataLoader(
            TensorDataset(*map(torch.cat, zip(*batches(), strict=True))),
            batch_size=32,
            shuffle=True,
        )
        fjord.fit(elastic, loader, SGD, epochs=2, objective=fjord.self_distillation(), seed=seed)
        return elastic.state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_training_leaves_the_global_generator_alone():
    elastic = make()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    fjord.fit(elastic, batches(2), SGD, epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_schedule_of_torch_sets_the_step():
    schedule = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 3], gamma=0.1)
    history = fjord.fit(make(), batches(2), SGD, epochs=4, schedule=schedule)
    assert [round(e.lr, 6) for e in history] == [0.1, 0.1, 0.01, 0.001]


def test_single_width_training_is_the_control_of_the_paper():
    elastic = make()
    before = {k: v.clone() for k, v in elastic.state_dict().items()}
    history = fjord.fit(elastic, batches(), SGD, epochs=3, space=["2/5"])
    assert history[0].steps == {Fraction(2, 5): 12}
    after = elastic.state_dict()
    assert torch.equal(after["0.weight"][8:], before["0.weight"][8:])
    assert not torch.equal(after["0.weight"][:8], before["0.weight"][:8])


def test_random_dropout_is_worse_than_ordered_units_after_ordered_training():
    elastic = make()
    fjord.fit(elastic, batches(), SGD, epochs=8, objective=fjord.self_distillation())
    elastic.eval()
    ordered = score_network(elastic.cut("1/5"), batches()).accuracy
    kept = [elastic.plan.random_units("1/5", torch.Generator().manual_seed(s)) for s in range(8)]
    at_random = [score_network(elastic.cut("1/5", units), batches()).accuracy for units in kept]
    assert ordered > sum(at_random) / len(at_random) + 0.1


def test_padding_does_not_count():
    logits = torch.tensor([[[9.0, 0], [0, 9]], [[9, 0], [9, 0]]])
    target = torch.tensor([[0, 1], [1, fjord.data.federated.IGNORED_TARGET]])
    score = score_network(lambda x: logits, [(torch.zeros(2), target)])
    assert (score.count, score.accuracy) == (3, pytest.approx(2 / 3))
    assert score.perplexity == pytest.approx(torch.exp(torch.tensor(score.loss)).item())


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda: fjord.fit(make(), [], SGD, epochs=1), "nothing to train on"),
        (lambda: fjord.fit(make(), batches(1), SGD, epochs=0), "epochs=0 must be at least 1"),
        (lambda: score_network(net(), []), "nothing to score"),
        (
            lambda: fjord.fit(make(), (b for b in batches(1)), SGD, epochs=2),
            "in epoch 2; an iterator is used up",
        ),
        (
            lambda: fjord.fit(net(), batches(1), SGD, epochs=1),
            "made by fjord.elasticize, not a Sequential",
        ),
        (
            lambda: fjord.fit(make(), batches(1), torch.optim.SGD(net().parameters()), epochs=1),
            "not a SGD",
        ),
    ],
)
def test_bad_calls_are_refused(use, says):
    with pytest.raises(ValueError, match=says):
        use()
