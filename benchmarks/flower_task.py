"""The recipe of `benchmarks.flower`: three clients, with the examples of FedAvg's clients."""

import os

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fjord
from fjord.data.federated import TestSet
from fjord.data.writers import writers
from fjord.models import femnist_cnn

CLIENTS = 3
"""One for each node."""
EXAMPLES = 192


def write_examples(path: str) -> None:
    """Write the examples of all clients."""
    data = writers(0, CLIENTS, examples=EXAMPLES)
    all_inputs = []
    all_targets = []
    for client in range(CLIENTS):
        inputs, targets = data.examples(client)
        all_inputs.append(inputs)
        all_targets.append(targets)
    save_file({"inputs": torch.stack(all_inputs), "targets": torch.stack(all_targets)}, path)


def load_data(seed: int) -> fjord.FederatedData:
    """Return them as a federation; what it tests on does not matter."""
    tensors = load_file(os.environ["BENCHMARK_DATA"])
    inputs = tensors["inputs"]
    targets = tensors["targets"]
    test = TestSet(inputs[0][:16], targets[0][:16], torch.zeros(16, dtype=torch.int64))

    def examples(client: int) -> tuple[Tensor, Tensor]:
        return inputs[client], targets[client]

    return fjord.GeneratedData(CLIENTS, examples, test)


def recipe() -> fjord.Experiment:
    """Return FjORD over five tiers; `method=fedavg` and `tiers=1:1` make it FedAvg."""
    return fjord.Experiment(
        name="overhead",
        model=femnist_cnn,
        data=load_data,
        method="fjord",
        cohort_size=CLIENTS,
        batch_size=16,
        lr=0.1,
        eval_every=10**6,
        checkpoint_seconds=3600.0,
    )
