"""The heart of it: a cut submodel equals the masked full model, in value and in gradient."""

from functools import cache

import oracles
import pytest
import torch
from motifs import MOTIFS, Motif
from torch import Tensor, nn

import fjord
from fjord.elastic.model import ElasticModel

SPACES = {"uniform-5": fjord.uniform_widths(5), "uniform-10": fjord.uniform_widths(10)}
CASES = [
    (name, space)
    for name in MOTIFS
    for space in SPACES
    if (name, space) != ("paper resnet18", "uniform-10")
]
"""ResNet18 is a hundred times as large as the others, and none of its structures is in it alone."""


@cache
def made(name: str, space: str) -> tuple[nn.Module, ElasticModel]:
    motif: Motif = MOTIFS[name]
    model = oracles.randomise(motif.build())
    return model, fjord.elasticize(model, motif.inputs(), widths=SPACES[space], freeze=motif.freeze)


@pytest.mark.parametrize("name", [name for name, motif in MOTIFS.items() if motif.families])
def test_families_are_those_a_person_would_name(name):
    _, elastic = made(name, "uniform-5")
    assert {f.name: f.num_units for f in elastic.plan.families} == MOTIFS[name].families


@pytest.mark.parametrize(("name", "space"), CASES)
def test_each_family_keeps_its_first_ceil_units(name, space):
    _, elastic = made(name, space)
    for width in SPACES[space].widths:
        for family in elastic.plan.families:
            kept = elastic.plan.leading_units(width)[family.name].tolist()
            per_unit = family.num_units // family.multiple
            assert kept == list(range(family.multiple * oracles.first_units(width, per_unit)))


@pytest.mark.parametrize(("name", "space"), CASES)
def test_cut_equals_masked(name, space):
    model, elastic = made(name, space)
    inputs = MOTIFS[name].inputs()
    model.eval()
    for width in SPACES[space].widths:
        mask = oracles.masks(model, elastic.plan, elastic.plan.leading_units(width))
        expected = oracles.masked_output(model, oracles.all_tensors(model), mask, inputs)
        net = elastic.cut(width).eval()
        assert sum(p.numel() for p in net.parameters()) == sum(
            int(mask[n].sum()) for n, _ in model.named_parameters()
        )
        assert oracles.close(net(*inputs), expected)


@pytest.mark.parametrize(("name", "space"), CASES)
def test_gradients_equal_those_of_the_masked_model(name, space):
    model, elastic = made(name, space)
    inputs = MOTIFS[name].inputs()
    model.train()
    for width in SPACES[space].widths:
        mask = oracles.masks(model, elastic.plan, elastic.plan.leading_units(width))
        weights = {
            n: t.detach().clone().requires_grad_(isinstance(t, nn.Parameter))
            for n, t in oracles.all_tensors(model).items()
        }
        loss(oracles.masked_output(model, weights, mask, inputs)).backward()
        view = elastic.train().shared_submodel(width)
        view.net.zero_grad()
        loss(view.net(*inputs)).backward()
        for key, parameter in view.net.named_parameters():
            whole = weights[key].grad
            assert whole is not None
            inside = whole[mask[key].bool()].reshape(parameter.shape)
            assert oracles.close(parameter.grad, inside, 1e-9), key
            assert whole[~mask[key].bool()].abs().sum() == 0, key


def loss(output: Tensor | dict[str, Tensor]) -> Tensor:
    scores = output["scores"] if isinstance(output, dict) else output
    weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).reshape(scores.shape)
    return (scores * weights).sum()


@pytest.mark.parametrize("name", MOTIFS)
def test_another_batch_size_works(name):
    _, elastic = made(name, "uniform-5")
    inputs = tuple(torch.cat([x, x[:1]]) for x in MOTIFS[name].inputs())
    output = elastic.cut("3/5").eval()(*inputs)
    first, last = (v[i] for v in torch.utils._pytree.tree_leaves(output) for i in (0, -1))
    assert len(torch.utils._pytree.tree_leaves(output)[0]) == 4
    assert oracles.close(first, last)


def test_cut_owns_its_weights_and_at_shares_them():
    _, elastic = made("residual add", "uniform-5")
    before = {k: v.clone() for k, v in elastic.state_dict().items()}
    with torch.no_grad():
        for parameter in elastic.cut("2/5").parameters():
            parameter.add_(1)
    assert all(torch.equal(before[k], v) for k, v in elastic.state_dict().items())
    shared = elastic.at("2/5").stem.weight
    assert shared.data_ptr() == elastic.tensors["stem.weight"].data_ptr()


def test_the_user_s_modules_are_kept_where_they_can_be_cut():
    assert isinstance(made("lstm, two layers", "uniform-5")[1].cut("2/5").rnn, nn.LSTM)
    net = made("multi-head attention", "uniform-5")[1].cut("2/5")
    assert (net.attention.num_heads, net.attention.embed_dim) == (2, 8)
    assert made("sizes in forward", "uniform-5")[1].blueprint.route == "graph"
