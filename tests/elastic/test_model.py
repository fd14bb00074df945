"""Submodels on the storage of the full-size weights, and the state of the model."""

from fractions import Fraction
from functools import partial

import oracles
import pytest
import torch
from motifs import MOTIFS
from tiny_models import elastic_motif

import fjord


def test_switching_widths_needs_no_reloading():
    elastic = elastic_motif("lstm, two layers").eval()
    (x,) = MOTIFS["lstm, two layers"].inputs()
    first = elastic.at("2/5")
    answer = first(x)
    elastic.at("1")(x)
    assert elastic.at("2/5") is first
    assert torch.equal(elastic.at("2/5")(x), answer)
    assert oracles.close(elastic.cut("2/5")(x), answer)


def test_state_goes_in_and_out_and_strange_state_is_refused():
    elastic, other = elastic_motif(), elastic_motif()
    state = {k: v + 1 for k, v in elastic.state_dict().items()}
    other.load_state_dict(state)
    assert all(torch.equal(state[k], v) for k, v in other.state_dict().items())
    with pytest.raises(ValueError, match=r"missing or unknown: stem\.bias"):
        other.load_state_dict({k: v for k, v in state.items() if k != "stem.bias"})
    with pytest.raises(ValueError, match=r"shapes do not match: stem.bias: \(3,\) for \(10,\)"):
        other.load_state_dict({**state, "stem.bias": torch.zeros(3)})


def test_training_by_hand_with_a_plain_torch_loop():
    elastic = elastic_motif("attention")
    (x,) = MOTIFS["attention"].inputs()
    optimizer = fjord.SlicedOptimizer(elastic, partial(torch.optim.SGD, lr=0.01))
    objective = fjord.ordered_dropout(lambda outputs, targets: outputs.square().mean())
    widths = (Fraction(2, 5), Fraction(1))
    losses = []
    for _ in range(30):
        loss = fjord.train_step(elastic, optimizer, objective, (x, x), widths)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
