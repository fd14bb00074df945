"""How files are tried: random inputs, and the difference from the source."""

import math

import pytest
import torch
from exported import EXECUTORCH, MINE, ONNX, in_a_hurry, model_of  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from fjord.deploy.exports.trial import largest_difference, random_inputs
from fjord.models.catalog import find_model


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6), st.floats(0, 1, width=32))
def test_difference_is_absolute_up_to_one_and_relative_above(values, by):
    wanted = torch.tensor(values, dtype=torch.float64)
    expected = float((wanted + by - wanted).abs().max()) / max(1.0, max(map(abs, values)))
    assert largest_difference([wanted + by], [wanted]) == pytest.approx(expected)
    assert largest_difference([wanted[None]], [wanted]) == math.inf


def test_random_tokens_are_ones_the_model_knows():
    entry = find_model("rnn", "2x50")
    (x,) = random_inputs(entry.model, entry.inputs, 7, seed=1)
    assert x.shape == (7, 50)
    assert 0 <= int(x.min()) < int(x.max()) < 90
    assert torch.equal(x, random_inputs(entry.model, entry.inputs, 7, seed=1)[0])
