"""The three models on synthetic clients, and how a benchmark times them."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from fjord.core.width import uniform_widths
from fjord.data.federated import GeneratedData, TestSet
from fjord.data.writers import writers
from fjord.devices.tiers import ListedDevices
from fjord.experiments.experiment import Experiment
from fjord.federated.rounds import Federation
from fjord.models import cifar_resnet18, femnist_cnn, shakespeare_rnn
from fjord.training.local import ClientTrainer

OUT = Console(width=110, highlight=False)
ALL_WHOLE = {"devices": None, "tiers": "1:1"}
"""Every client can carry the whole model."""
NEVER = 1_000_000
"""More rounds than are taken here: the last round of a schedule is always evaluated."""


def five_tiers(num_clients: int, seed: int) -> ListedDevices:
    """Return ceilings 1/5, 2/5, ..., 1 in turn: every cohort of all clients costs the same."""
    return ListedDevices([uniform_widths(5).widths[client % 5] for client in range(num_clients)])


def noise(
    clients: int, examples: int, inputs: Callable[[int], Tensor], targets: Callable[[int], Tensor]
) -> GeneratedData:
    """Return clients whose examples are noise: enough to take the time of a step."""
    torch.manual_seed(0)
    made = [(inputs(examples), targets(examples)) for _ in range(clients)]
    return GeneratedData(
        clients, made.__getitem__, TestSet(inputs(2), targets(2), torch.zeros(2, dtype=torch.int64))
    )


def images(seed: int, clients: int, examples: int) -> GeneratedData:
    return noise(
        clients, examples, lambda n: torch.randn(n, 3, 24, 24), lambda n: torch.randint(0, 10, (n,))
    )


def texts(seed: int, clients: int, examples: int) -> GeneratedData:
    return noise(
        clients,
        examples,
        lambda n: torch.randint(0, 90, (n, 80)),
        lambda n: torch.randint(0, 90, (n, 80)),
    )


def unscored(clients: int) -> Experiment:
    """Return the CNN on all clients every round, with 200 examples each and no evaluation."""
    return Experiment(
        name="cnn",
        model=femnist_cnn,
        data=partial(writers, num_clients=clients, examples=200),
        method="fjord",
        devices=five_tiers,
        num_rounds=NEVER,
        eval_every=NEVER,
        cohort_size=clients,
        batch_size=16,
        lr=0.05,
        milestones=(),
    )


def resnet(clients: int, steps: int = 2) -> Experiment:
    """Return ResNet18 on 24x24 crops in batches of 32, few steps a client (500 examples: 16)."""
    data = partial(images, clients=clients, examples=32 * steps)
    small = {"batch_size": 32, "max_local_steps": steps, "lr": 0.01}
    return replace(unscored(clients), name="resnet18", model=cifar_resnet18, data=data, **small)


def rnn(clients: int) -> Experiment:
    """Return the character RNN on sequences of 80 in batches of 4."""
    data = partial(texts, clients=clients, examples=40)
    return replace(
        unscored(clients),
        name="rnn",
        model=shakespeare_rnn,
        data=data,
        freeze=("embedding",),
        batch_size=4,
    )


def touched(experiment: Experiment) -> tuple[Federation, ClientTrainer]:
    """Return a federation with its data made."""
    federation = next(iter(experiment.federations()))
    for client in range(federation.data.num_clients):
        federation.data.examples(client)
    return federation, ClientTrainer(
        federation.model, federation.data, federation.training, federation.seed
    )


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
