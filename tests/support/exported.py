"""What tests of exported files share: models with random weights, a user's file, and commands."""

import contextlib
import importlib.util
import io
import sys

import pytest
import torch

import fjord
from fjord.cli import main
from fjord.deploy.exports import trial
from fjord.models.catalog import find_model


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


ONNX = needs("onnx", "onnxruntime", "onnxscript")
EXECUTORCH = needs("executorch")
INPUTS = {"cnn": None, "rnn": "2x3", "resnet18": "2x3x16x16"}
MINE = """
import torch
from torch import nn
import fjord

def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)
    )

def data(seed):
    x, y = torch.randn(60, 1, 4, 4), torch.arange(60) % 4
    return fjord.partition_tensors((x, y), torch.arange(60) % 6, (x, y))

def recipe():
    return fjord.Experiment(
        name="mine",
        model=net,
        data=data,
        num_rounds=1,
        cohort_size=3,
        tiers="uniform-2",
        widths=["1/2", "1"],
    )

def odd():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 10), nn.Linear(10, 2)

        def forward(self, x):
            return torch.special.bessel_j0(self.two(torch.relu(self.one(x))))

    return Odd(), torch.randn(2, 4)
"""


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """Latency is what benchmarks are for."""
    monkeypatch.setattr(trial, "SECONDS", 0.0)
    monkeypatch.setattr(trial, "LEAST_CALLS", 1)


def model_of(name: str) -> tuple[fjord.ElasticModel, tuple]:
    """A paper model with weights and statistics that no layer could have by default."""
    torch.manual_seed(3)
    entry = find_model(name, INPUTS[name])
    model = fjord.elasticize(entry.model, entry.inputs, freeze=entry.freeze)
    with torch.no_grad():
        for key, tensor in model.tensors.items():
            if "running" in key or (".bn" in key and "weight" in key):
                tensor.uniform_(0.5, 1.5)
            elif "bias" in key:
                tensor.uniform_(-0.2, 0.2)
    return model, entry.inputs


def run(folder, *arguments: str) -> str:
    """What a command prints that is given in a folder, and ends well."""
    text = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(text),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["fjord", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return text.getvalue()
