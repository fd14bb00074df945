"""A recipe in a file of a user's own, which imports a module from beside it."""

import sys
from pathlib import Path

import pytest

MINE = """
import torch
from torch import nn
import fjord
from beside import HIDDEN


def net():
    return nn.Sequential(nn.Linear(6, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))


def data(seed):
    x = torch.randn(120, 6)
    y, clients = x[:, :3].argmax(1), torch.arange(120) % 8
    return fjord.partition_tensors((x[:80], y[:80]), clients[:80], (x[80:], y[80:]), clients[80:])


def recipe():
    return fjord.Experiment(
        name="mine", model=net, data=data, num_rounds=3, cohort_size=3, eval_every=2, workers=1
    )


def wrong():
    return 3
"""


def write_own_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write `mine.py` into a folder, and go there."""
    (folder / "mine.py").write_text(MINE)
    (folder / "beside.py").write_text("HIDDEN = 10\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder
