"""The recipe of `benchmarks.flower`: three clients, one for each node, with the examples that FedAvg's clients read."""

import os

import torch
from safetensors.torch import load_file, save_file

import fjord
from fjord.data.federated import TestSet
from fjord.data.writers import synthetic_writers
from fjord.models import femnist_cnn

CLIENTS, EXAMPLES = 3, 192


def write(path: str) -> None:
    """Write the examples of all clients."""
    drawn = [
        synthetic_writers(0, CLIENTS, examples=EXAMPLES).examples(client)
        for client in range(CLIENTS)
    ]
    inputs, targets = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
    save_file({"inputs": inputs, "targets": targets}, path)


def data(seed: int) -> fjord.FederatedData:
    """Return them as a federation; what it tests on does not matter."""
    found = load_file(os.environ["BENCHMARK_DATA"])
    test = TestSet(
        found["inputs"][0][:16], found["targets"][0][:16], torch.zeros(16, dtype=torch.int64)
    )
    return fjord.GeneratedData(
        CLIENTS, lambda client: (found["inputs"][client], found["targets"][client]), test
    )


def recipe() -> fjord.Experiment:
    """Return FjORD over five tiers; `method=fedavg` and `tiers=1:1` make it FedAvg."""
    return fjord.Experiment(
        name="overhead",
        model=femnist_cnn,
        data=data,
        method="fjord",
        cohort_size=CLIENTS,
        batch_size=16,
        lr=0.1,
        eval_every=10**6,
        checkpoint_seconds=3600.0,
    )
