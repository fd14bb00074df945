"""A small task of a file, in place of the paper's."""

from reproduction.curves import TASKS, PaperTask
from reproduction.figures import FIGURES, PaperFigure

MINE = """
import torch
from torch import nn

import fjord


def net():
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))


def data(seed, broken=0):
    if broken:
        raise ValueError(f"the data is broken by {broken}")
    x = torch.randn(120, 4)
    y, clients = x[:, :3].argmax(1), torch.arange(120) % 6
    return fjord.partition_tensors((x[:96], y[:96]), clients[:96], (x[96:], y[96:]), clients[96:])


def recipe():
    rounds = {"num_rounds": 4, "cohort_size": 3, "eval_every": 2}
    return fjord.Experiment(name="toy", model=net, data=data, workers=1, **rounds)
"""


def add_toy_task(tmp_path, monkeypatch):
    """Add a task over a recipe of a file, with a figure of two curves; return it."""
    (tmp_path / "mine.py").write_text(MINE)
    task = PaperTask("toy", "Toy", f"{tmp_path / 'mine.py'}:recipe", column="cifar10")
    monkeypatch.setitem(TASKS, "toy", task)
    monkeypatch.setitem(
        FIGURES,
        "toy",
        PaperFigure("toy", "Toy", ("fjord", "fedavg"), tasks=("toy",), default=("toy",)),
    )
    return task
