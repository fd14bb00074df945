"""A tiny recipe, runs of it in process and over a local grid, and that two runs are the same."""

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr")

from local_grid import LocalGrid

from fjord.engines.flower.client import client_app
from fjord.engines.flower.engine import ReplyPolicy
from fjord.engines.flower.run_spec import RunSpec
from fjord.experiments.flower_app import make_runtime, serve_run
from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runner import run_experiment
from fjord.experiments.runs import RunFolder

RECIPE = """
import os, signal
import torch
from torch import nn
import fjord
from fjord.data.federated import TestSet


def make(client):
    g = torch.Generator().manual_seed(client)
    x = torch.randn(9 + client, 3, 4, 4, generator=g)
    return x, (x.mean((2, 3)) + 0.1 * torch.randn(9 + client, 3, generator=g)).argmax(1)


def data(seed):
    x, y = make(99)
    test = TestSet(x, y, torch.arange(len(x)) % 6)
    return fjord.GeneratedData(6, make, test, cache_size=0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bn1 = nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.second, self.bn2 = nn.Conv2d(10, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.first(x)))
        x = torch.relu(x + self.bn2(self.second(x)))
        return self.head(x.mean((2, 3)))


def recipe():
    return fjord.Experiment(
        name="tiny",
        model=Block,
        data=data,
        method="fjord-kd",
        widths=fjord.uniform_widths(5),
        tiers="uniform-5",
        num_rounds=2,
        cohort_size=5,
        batch_size=4,
        eval_every=1,
        checkpoint_seconds=0.0,
        workers=1,
    )
"""
PATIENCE = ReplyPolicy(20.0)


@pytest.fixture(scope="module", name="recipe")
def recipe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("flower") / "tiny.py"
    path.write_text(RECIPE)
    return str(path)


def in_process(recipe, folder, settings=(), engine=None):
    experiment = apply_settings(find_recipe(recipe)(), settings)
    return run_experiment(
        experiment, folder, recipe={"name": recipe, "set": list(settings)}, engine=engine
    )


def over_grid(
    recipe, folder, settings=(), *, nodes=({}, {}, {}), spoil=None, patience=PATIENCE, resume=False
):
    grid = LocalGrid(client_app(make_runtime), nodes, spoil)
    return serve_run(grid, RunSpec(recipe, tuple(settings)), patience, folder, resume=resume)


def assert_same(mine: RunFolder, wanted: RunFolder) -> None:
    files = sorted(path.name for path in wanted.path.glob("model*.safetensors"))
    assert files
    assert files == sorted(path.name for path in mine.path.glob("model*.safetensors"))
    for name in files:
        here, there = load_file(mine.path / name), load_file(wanted.path / name)
        assert here.keys() == there.keys()
        assert all(here[key].numpy().tobytes() == there[key].numpy().tobytes() for key in there)
    assert bare(mine) == bare(wanted)


def bare(run: RunFolder) -> list[dict]:
    """Return the metrics without time and messages, and without the words for who was dropped."""
    rows = [{**row, "seconds": 0, "dropped": sorted(row["dropped"])} for row in run.metrics()]
    return [{key: value for key, value in row.items() if key != "engine"} for row in rows]
