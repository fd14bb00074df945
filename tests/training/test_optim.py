"""A step at width p moves F_p and nothing else, for any optimizer, and its memory likewise."""

from fractions import Fraction
from functools import partial

import oracles
import pytest
import torch
from motifs import MOTIFS
from tiny_models import elastic_motif
from torch import Tensor, nn

import fjord
from fjord.elastic.indexing import put_slice
from fjord.elastic.model import ElasticModel

MAKERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum, decay": partial(
        torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True
    ),
    "adam": partial(torch.optim.Adam, lr=0.1, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.1),
    "amsgrad": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "nadam": partial(torch.optim.NAdam, lr=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=0.5),
}
NAMES = ["residual add", "lstm, two layers", "concatenation", "attention", "sizes in forward"]
WALK = [Fraction(n, 5) for n in (3, 1, 5, 2, 4, 1, 3)]


def squares(output: Tensor, target: Tensor) -> Tensor:
    return output.square().mean() + target.sum() * 0


def make(name: str) -> tuple[ElasticModel, tuple[Tensor, ...]]:
    return elastic_motif(name), MOTIFS[name].inputs()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_only_the_submodel(name, maker):
    elastic, (x,) = make(name)
    optimizer = fjord.SlicedOptimizer(elastic, MAKERS[maker])
    for width in WALK:
        before = {k: v.clone() for k, v in elastic.state_dict().items()}
        memory = snapshot(optimizer)
        fjord.train_step(
            elastic, optimizer, fjord.ordered_dropout(squares), (x, x), (width, Fraction(1))
        )
        slices = elastic.shared_submodel(width).slices.values()
        stepped = {part.key: part.indices for part in slices}
        for key, value in elastic.state_dict().items():
            outside = torch.ones(value.shape, dtype=torch.bool)
            if key in stepped:
                put_slice(outside, stepped[key], torch.tensor(False))
            assert torch.equal(value[outside], before[key][outside]), key
            if key in stepped and key in optimizer.params:
                assert not key.startswith("head.weight") or not torch.equal(value, before[key])
                for state, full in snapshot(optimizer)[key].items():
                    assert torch.equal(full[outside], memory[key][state][outside]), (key, state)


def snapshot(optimizer: fjord.SlicedOptimizer) -> dict[str, dict[str, Tensor]]:
    optimizer.model.sync_copies()
    states = {key: optimizer.full.state[p] for key, p in optimizer.params.items()}
    copies: dict[str, dict[str, Tensor]] = {}
    for key, state in states.items():
        copies[key] = {}
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                copies[key][name] = value.clone()
    return copies


@pytest.mark.parametrize("maker", ["sgd", "momentum, decay", "adam", "adamw", "rmsprop", "adagrad"])
def test_at_full_width_it_is_the_torch_optimizer(maker):
    motif = MOTIFS["lstm, two layers"]
    reference = oracles.randomise(motif.build())
    elastic, (x,) = make("lstm, two layers")
    ours = fjord.SlicedOptimizer(elastic, MAKERS[maker])
    theirs = MAKERS[maker](reference.parameters())
    for _ in range(4):
        fjord.train_step(
            elastic, ours, fjord.ordered_dropout(squares), (x, x), (Fraction(1), Fraction(1))
        )
        theirs.zero_grad()
        squares(reference(x), x).backward()
        theirs.step()
    for key, value in reference.named_parameters():
        assert torch.allclose(elastic.state_dict()[key], value, atol=1e-12), key


def test_momentum_is_full_size_and_sliced_like_the_weights():
    """For one weight matrix: buf[slice] = m * buf[slice] + grad, w[slice] -= lr * buf[slice]."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 10, bias=False), nn.Linear(10, 3, bias=False)).double()
    x = torch.randn(8, 4, dtype=torch.float64)
    weights = [p.detach().clone() for p in net.parameters()]
    buffers = [torch.zeros_like(w) for w in weights]
    elastic = fjord.elasticize(net, x)
    optimizer = fjord.SlicedOptimizer(elastic, partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    for width in WALK:
        fjord.train_step(
            elastic, optimizer, fjord.ordered_dropout(squares), (x, x), (width, Fraction(1))
        )
        k = oracles.first_units(width, 10)
        first, second = (w.clone().requires_grad_() for w in (weights[0][:k], weights[1][:, :k]))
        squares(x @ first.T @ second.T, x).backward()
        for buffer, weight, grad in (
            (buffers[0][:k], weights[0][:k], first.grad),
            (buffers[1][:, :k], weights[1][:, :k], second.grad),
        ):
            buffer.mul_(0.9).add_(grad)
            weight.sub_(0.05 * buffer)
    assert torch.allclose(elastic.state_dict()["0.weight"], weights[0], atol=1e-12)
    assert torch.allclose(elastic.state_dict()["1.weight"], weights[1], atol=1e-12)


@pytest.mark.parametrize("name", ["residual add", "lstm, two layers", "attention"])
@pytest.mark.parametrize("ceiling", [Fraction(4, 5), Fraction(1)])
def test_distillation_sums_both_gradients_where_submodels_overlap(name, ceiling):
    """One SGD step with KD is the step on the masked full model, whose loss runs both widths."""
    motif = MOTIFS[name]
    model = oracles.randomise(motif.build()).train()
    elastic = fjord.elasticize(model, motif.inputs(), norms="shared")
    (x,) = motif.inputs()
    target = torch.zeros(model(x).shape[:-1], dtype=torch.long)
    width = Fraction(2, 5)
    weights = {
        n: t.detach().clone().requires_grad_(isinstance(t, nn.Parameter))
        for n, t in oracles.all_tensors(model).items()
    }

    def logits_at(at: Fraction) -> Tensor:
        mask = oracles.masks(model, elastic.plan, elastic.plan.leading_units(at))
        return oracles.masked_output(model, weights, mask, (x,))

    fjord.self_distillation(0.5, 2.0)(logits_at, target, width, ceiling).backward()
    optimizer = fjord.SlicedOptimizer(elastic, partial(torch.optim.SGD, lr=0.1))
    fjord.train_step(
        elastic, optimizer, fjord.self_distillation(0.5, 2.0), (x, target), (width, ceiling)
    )
    state = elastic.state_dict()
    for key in dict(model.named_parameters()):
        assert oracles.close(state[key], weights[key] - 0.1 * weights[key].grad, 1e-9), key


def test_submodels_that_do_not_nest_cannot_share_a_step():
    elastic, (x,) = make("residual add")
    optimizer = fjord.SlicedOptimizer(elastic, MAKERS["sgd"])
    for width in ({"stem": "1/5"}, {"inner": "1/5"}):
        squares(elastic.at(width)(x), x).backward()
    with pytest.raises(ValueError, match="one inside the other"):
        optimizer.step()


def test_an_optimizer_with_memory_of_another_shape_is_refused():
    elastic, _ = make("attention")
    with pytest.raises(ValueError, match=r"Adafactor keeps .* cannot be sliced"):
        fjord.SlicedOptimizer(elastic, partial(torch.optim.Adafactor, lr=0.1))


def test_a_user_s_own_optimizer_on_a_shared_submodel_trains_the_model():
    elastic, (x,) = make("lstm, two layers")
    before = {k: v.clone() for k, v in elastic.state_dict().items()}
    net = elastic.at("2/5")
    squares(net(x), x).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    after = elastic.state_dict()
    assert all(not torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(elastic.cut("2/5").rnn.weight_hh_l0, net.rnn.weight_hh_l0)
    assert torch.equal(elastic.at("3/5").rnn.weight_hh_l0, elastic.cut("3/5").rnn.weight_hh_l0)


def test_a_step_without_gradients_or_on_a_moved_model_is_refused():
    elastic, (x,) = make("residual add")
    optimizer = fjord.SlicedOptimizer(elastic, MAKERS["sgd"])
    with pytest.raises(ValueError, match="no submodel of the model has gradients"):
        optimizer.step()
    elastic.to("cpu")
    squares(elastic.at("2/5")(x), x).backward()
    with pytest.raises(ValueError, match="moved after its optimizer was made"):
        optimizer.step()
    with pytest.raises(ValueError, match="LBFGS needs a closure"):
        fjord.SlicedOptimizer(elastic, torch.optim.LBFGS)
