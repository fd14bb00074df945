"""A small recipe whose clients run out of memory, and what its runs leave."""

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fed_oracles import Setting, assert_identical
from safetensors.torch import load_file

from fjord.experiments.recipes.find import apply_settings, find_recipe
from fjord.experiments.runner import run_experiment
from fjord.experiments.runs import RunFolder

RECIPE = """
import resource
from dataclasses import replace
import torch
from torch import nn
import fjord
from fjord.core.width import parse_width
from fjord.federated.methods import find_method
from fjord.training.objective import Objective

CLIENT = 0
PLAIN = find_method("fjord-kd")


def make(client):
    global CLIENT
    CLIENT = client
    g = torch.Generator().manual_seed(client)
    x = torch.randn(6 + client, 40, 12, generator=g)
    return x, x.mean((1, 2)).gt(0).long()


def data(seed):
    x, y = make(6)
    test = fjord.data.federated.TestSet(x, y, torch.arange(len(x)) % 6)
    return fjord.GeneratedData(6, make, test, cache_size=0)


def scarce(logits_at, target, width, widest):
    if CLIENT in (1, 4) and widest > parse_width("2/5"):
        PLAIN.objective(logits_at, target, width, widest).backward()
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 7 bytes")
    return PLAIN.objective(logits_at, target, width, widest)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 600)
        self.norm = nn.BatchNorm1d(40)
        self.head = nn.Linear(600, 2)

    def forward(self, x):
        return self.head(torch.tanh(torch.relu(self.norm(self.first(x))))).mean(1)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 10)
        self.norm = nn.BatchNorm1d(10)
        self.head = nn.Linear(10, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x).mean(1))))


def calm():
    return fjord.Experiment(
        name="tiny",
        model=Small,
        data=data,
        method=PLAIN,
        tiers="1/5:1/3,1:2/3",
        num_rounds=2,
        cohort_size=6,
        batch_size=4,
        eval_every=1,
        workers=1,
    )


def recipe():
    objective = Objective(scarce, PLAIN.objective.widths)
    return replace(calm(), method=replace(PLAIN, objective=objective))


def wide():
    return replace(calm(), model=Wide, batch_size=100, data=lambda seed: generated(many))


def narrow_machine():
    return replace(wide(), data=lambda seed: generated(limited))


def generated(make_many):
    return fjord.GeneratedData(6, make_many, data(0).test, cache_size=0)


def many(client):
    x, y = make(client)
    return x.repeat(10, 1, 1), y.repeat(10)


def limited(client):
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        # What torch loads and sets up when it is first used.
        Wide()(torch.randn(4, 40, 12)).sum().backward()
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 45 * 2**20, resource.RLIM_INFINITY))
    return many(client)
"""


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> Iterator[None]:
    """Keep what is there already out of collections, of which every shortage costs one."""
    Setting(kind="batchnorm").make()  # which loads most of torch
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(name="recipe", scope="module")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("transient") / "tiny.py"
    path.write_text(RECIPE)
    return str(path)


def in_process(recipe: str, folder: Path, *given: str) -> RunFolder:
    return run_experiment(
        apply_settings(find_recipe(recipe)(), given),
        folder,
        recipe={"name": recipe, "set": list(given)},
    )


def trace_of(found: RunFolder) -> str:
    """Write what happened in a run as a trace, which tells the server beforehand."""
    rows = ["client,round,ceiling"]
    for row in found.metrics():
        for client, why in row["reduced"].items():
            ceiling = re.fullmatch("from .* to (.*): .*", why)[1]
            rows.append(f"{client},{row['round']},{ceiling}")
    path = found.path / "trace.csv"
    path.write_text("\n".join(rows))
    return str(path)


def assert_same(mine: RunFolder, wanted: RunFolder) -> None:
    found = load_file(mine.path / "model.safetensors")
    expected = load_file(wanted.path / "model.safetensors")
    assert_identical(found, expected)
    for one, other in zip(mine.metrics(), wanted.metrics(), strict=True):
        for key in ("loss", "examples", "macs", "shells", "scores"):
            assert one[key] == other[key]
