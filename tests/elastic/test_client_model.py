"""Client models: they compute what the model does, train their own weights, and go back."""

import fed_oracles as fed
import oracles
import pytest
import torch
from fed_oracles import FIFTHS
from holders import random_units
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import KINDS, few
from torch.func import functional_call

from fjord.core.width import Width, WidthSpace
from fjord.elastic.client_model import ClientModel, slice_index, take_tensors, units_below
from fjord.elastic.indexing import put_slice, take_slice
from fjord.elastic.model import ElasticModel
from fjord.elastic.plan import UnitSelection


def client_model(model: ElasticModel, units: UnitSelection, space: WidthSpace) -> ClientModel:
    index = slice_index(model, units, space.widths)
    return ClientModel(model, units, space, take_tensors(model, index))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ceiling", FIFTHS.widths, ids=str)
def test_an_ordered_slice_computes_at_each_width_what_the_model_does(
    kind: str, ceiling: Width
) -> None:
    _, model = fed.elastic(kind)
    space = FIFTHS.up_to(ceiling)
    units = model.plan.leading_units(ceiling)
    client = client_model(model, units, space).eval()
    model.eval()
    inputs = fed.tiny_data(kind, [3]).inputs[:3]
    for width in space.widths:
        assert oracles.close(client.at(width)(inputs), model.cut(width)(inputs), 1e-12)
        shapes = [tuple(t.shape) for t in client.at(width).state_dict().values()]
        assert shapes == [tuple(t.shape) for t in model.cut(width).state_dict().values()]


@pytest.mark.parametrize("kind", ["dense", "counting", "cnn", "lstm", "shared norms"])
@settings(max_examples=5, deadline=None)
@given(ceiling=st.sampled_from(FIFTHS.widths), seed=st.integers(0, 10**6))
def test_a_slice_of_random_units_equals_the_masked_model(
    kind: str, ceiling: Width, seed: int
) -> None:
    norms, kind = ("shared", "batchnorm") if kind == "shared norms" else ("layers", kind)
    net, model = fed.elastic(kind, norms=norms)
    units = random_units(model, ceiling, seed)
    client = client_model(model, units, FIFTHS).eval()
    inputs = fed.tiny_data(kind, [3]).inputs[:3]
    for width in FIFTHS.widths:
        kept = {}
        for family in model.plan.families:
            limit = oracles.first_units(width, family.num_units)
            below = [unit for unit in units[family.name].tolist() if unit < limit]
            kept[family.name] = torch.tensor(below)
        mask = {name: m.double() for name, m in fed.unit_masks(net, model, kept).items()}
        expected = oracles.masked_output(net.eval(), oracles.all_tensors(net), mask, (inputs,))
        assert oracles.close(client.at(width)(inputs), expected)


@pytest.mark.parametrize("ceiling", ["2/5", "1"])
def test_a_slice_of_random_units_has_the_norm_layers_of_its_widths(ceiling: str) -> None:
    net, model = fed.elastic("batchnorm")
    state = fed.random_state(fed.snapshot(model), 3)
    for key, tensor in state.items():
        if "var" in key:
            state[key] = tensor.abs() + 0.5
    model.load_state_dict(state)
    units = random_units(model, Width(ceiling), 4)
    space = FIFTHS.up_to("3/5")
    client = client_model(model, units, space).eval()
    inputs = fed.tiny_data("batchnorm", [3]).inputs[:3]
    for width in space.widths:
        kept = units_below(model.plan, units, width)
        mask = {name: m.double() for name, m in fed.unit_masks(net, model, kept).items()}
        weights = {}
        for name, value in oracles.all_tensors(net).items():
            stored = model.tensors.get(f"{name}@{width}")
            if stored is None:
                weights[name] = model.tensors[name].detach()
                continue
            # The stored layer has the first units only: the rest is masked anyway.
            whole = torch.ones_like(value)
            whole[tuple(slice(n) for n in stored.shape)] = stored.detach()
            weights[name] = whole
        expected = oracles.masked_output(net.eval(), weights, mask, (inputs,))
        assert oracles.close(client.at(width)(inputs), expected)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(ceiling=st.sampled_from(FIFTHS.widths), seed=st.integers(0, 10**6))
def test_what_is_taken_is_the_held_elements_and_goes_back_to_its_place(
    kind: str, ceiling: Width, seed: int
) -> None:
    net, model = fed.elastic(kind)
    units = random_units(model, ceiling, seed)
    widths = FIFTHS.up_to(ceiling).widths
    index = slice_index(model, units, widths)
    mask = fed.holds(net, model, units, widths)
    got = take_tensors(model, index)
    before = fed.snapshot(model)
    fed.assert_identical({k: t.detach() for k, t in got.items()}, fed.slice_of(before, mask))
    for key, value in got.items():
        marked = torch.zeros_like(before[key])
        put_slice(marked, index[key], torch.ones_like(value, requires_grad=False).detach())
        assert torch.equal(marked.bool(), mask[key])
        assert torch.equal(take_slice(marked, index[key]), torch.ones_like(value))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(FIFTHS.widths), st.integers(0, 10**6))
def test_training_a_slice_of_random_units_moves_its_own_weights_only(
    width: Width, seed: int
) -> None:
    """And by the gradient of the masked full model."""
    net, model = fed.elastic("dense")
    units = random_units(model, Width(3, 5), seed)
    index = slice_index(model, units, FIFTHS.widths)
    client = ClientModel(model, units, FIFTHS, take_tensors(model, index)).train()
    data = fed.tiny_data("dense", [5])
    torch.nn.functional.cross_entropy(
        client.shared_submodel(width).net(data.inputs), data.targets
    ).backward()
    mask = {
        n: m.double()
        for n, m in fed.unit_masks(net, model, units_below(model.plan, units, width)).items()
    }
    weights = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    masked = {n: w * mask[n] for n, w in weights.items()}
    torch.nn.functional.cross_entropy(
        functional_call(net, masked, (data.inputs,)), data.targets
    ).backward()
    for name, part in client.shared_submodel(width).slices.items():
        assert oracles.close(part.tensor.grad, fed.cut_out(weights[name].grad, mask[name].bool()))
