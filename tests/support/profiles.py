"""Profiles for tests, with numbers easy to compute by hand; a small model; quick measurements."""

import json
from fractions import Fraction

import pytest
from torch import nn

from fjord.core.width import uniform_widths
from fjord.devices.profile import DeviceProfile, WidthCost
from fjord.experiments.profiling import measure

MINE = """
import torch
from torch import nn
import fjord

def net():
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), torch.randn(4, 12)

def two():
    return nn.Bilinear(4, 4, 2), (torch.randn(2, 4), torch.randn(2, 4))

def data(seed):
    x, y = torch.randn(40, 12), torch.randint(3, (40,))
    return fjord.partition_tensors((x, y), torch.arange(40) % 4, (x, y))

def recipe():
    return fjord.Experiment(
        name="mine",
        model=lambda: net()[0],
        data=data,
        method="fjord",
        widths=["1/2", "1"],
        tiers="uniform-2",
    )
"""
"""A file of a user: models, data and a recipe."""


def cost(width, kd=False, *, step=1.0, setup=0.0, memory=1_000_000, size=1000, macs=100):
    """The cost of full width, in proportion; memory too."""
    share = float(Fraction(width))
    return WidthCost(
        width=Fraction(width),
        kd=kd,
        step_seconds=step * share,
        setup_seconds=setup,
        memory_bytes=round(memory * share),
        bytes_down=round(size * share),
        bytes_up=round(size * share),
        macs_per_step=round(macs * share),
    )


def made(device="phone", kinds=(False,), batch_size=10, epochs=1, **numbers):
    """A profile at widths 1/5 to 1."""
    costs = []
    for kd in kinds:
        for width in uniform_widths(5).widths:
            costs.append(cost(width, kd, **numbers))
    return DeviceProfile(device, "net", "fjord", batch_size, epochs, 0, tuple(costs))


def written(tmp_path, profiles, name="fleet.json"):
    """Write profiles to one file, and return its path."""
    path = tmp_path / name
    path.write_text(json.dumps([profile.to_json() for profile in profiles]))
    return path


def mlp(hidden=40, depth=2):
    layers = []
    for _ in range(depth - 1):
        layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), *layers, nn.Linear(hidden, 3))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Time steps for a moment only."""
    monkeypatch.setattr(measure, "SECONDS", 0.02)
