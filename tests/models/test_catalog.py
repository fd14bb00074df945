"""Models by name: the paper's run on their example inputs, and a user's own function is found."""

from pathlib import Path

import pytest
import torch

from fjord.models.catalog import PAPER_MODELS, example_inputs, find_model

OWN_MODULE = """
import torch
from torch import nn

def pair():
    return nn.Linear(3, 2), torch.zeros(4, 3)

def alone():
    return nn.Linear(3, 2)

def number():
    return 3
"""


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_a_paper_model_runs_on_its_example_inputs(name: str) -> None:
    entry = find_model(name)
    num_examples = len(entry.inputs[0])
    assert len(entry.model.eval()(*entry.inputs)) == num_examples


def test_a_shape_replaces_the_example_in_its_type() -> None:
    (inputs,) = find_model("rnn", "3x7").inputs
    assert inputs.shape == (3, 7)
    assert inputs.dtype == torch.int64
    assert find_model("rnn", "3x7").freeze == ("embedding",)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_catalog_module.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    return "own_catalog_module"


def test_a_users_function_is_found_in_the_current_folder(own_module: str) -> None:
    assert find_model(f"{own_module}:pair").inputs[0].shape == (4, 3)
    assert find_model(f"{own_module}:alone", "5x3").inputs[0].shape == (5, 3)


def test_what_is_wrong_with_a_model_is_named(own_module: str) -> None:
    for name, fault in (
        ("vgg", "model 'vgg' is neither one of resnet18, cnn, rnn nor of the form module:function"),
        (f"{own_module}:alone", "input is needed for the model"),
        (f"{own_module}:number", "the function returned int, not a torch module"),
        (f"{own_module}:gone", "has no attribute 'gone'"),
    ):
        with pytest.raises(ValueError, match=fault):
            find_model(name)


@pytest.mark.parametrize("shape", ["", "2x", "0x3", "2x3:nonsense", "a"])
def test_a_shape_that_makes_no_sense_is_refused(shape: str) -> None:
    with pytest.raises(ValueError, match="is not a shape such as 2x3x32x32"):
        example_inputs(shape)
