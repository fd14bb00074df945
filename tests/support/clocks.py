"""A small experiment on a simulated clock of two tiers, and what its runs leave."""

import torch
from torch import nn

import fjord
from fjord.devices.speed_table import SpeedTable
from fjord.experiments.experiment import Experiment

SIZES = [3, 5, 8, 9, 12, 17, 4, 25, 6, 10]
"""Examples of each client: with batches of 4 some end in a batch of one."""
ROWS = [
    {"ceiling": "1/5", "macs_per_second": 1e4, "down": "1kB/s", "up": "500B/s", "latency": "100ms"},
    {"ceiling": "3/5", "macs_per_second": "30k", "down": "4kB/s", "up": "2kB/s", "latency": 0.05},
]
CLOCK = SpeedTable.from_rows(ROWS)


def net():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


def population(seed, sizes=SIZES):
    n = sum(sizes)
    x = torch.randn(n + 40, 6)
    y = x[:, :3].argmax(1)
    clients = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    test_clients = torch.arange(40) % len(sizes)
    return fjord.partition_tensors((x[:n], y[:n]), clients, (x[n:], y[n:]), test_clients)


def experiment(**changed):
    short = {
        "num_rounds": 3,
        "cohort_size": 6,
        "batch_size": 4,
        "eval_every": 1,
        "checkpoint_seconds": 0.0,
        "workers": 1,
    }
    made = {
        "name": "toy",
        "model": net,
        "data": population,
        "widths": ("1/2", "1"),
        "tiers": "uniform-2",
        "clock": CLOCK,
    }
    return Experiment(**(made | short | changed))


def run(path, **changed):
    return fjord.run_experiment(experiment(**changed), path)


def without(rows, *names):
    hidden = ("seconds", *names)
    return [{key: row[key] for key in row if key not in hidden} for row in rows]


def weights(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.path.glob("model*.safetensors"))}
