"""Tiny models and data, of all kinds that are merged differently."""

import copy
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import motifs
import oracles
import torch
from hypothesis import settings
from torch import Tensor, nn

import fjord
from fjord.core.width import WidthSpace, uniform_widths
from fjord.data.federated import PartitionedData, partition_tensors
from fjord.elastic.model import ElasticModel
from fjord.models import femnist_cnn

FIFTHS = uniform_widths(5)
KINDS = ("dense", "counting", "cnn", "lstm", "batchnorm")
few = settings(max_examples=12, deadline=None)


class Counting(nn.Module):
    """A dense net with an integer buffer and a buffer along an elastic axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 10)
        self.head = nn.Linear(10, 3)
        self.register_buffer("scale", torch.ones(10))
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)) * self.scale)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))


def lstm() -> nn.Module:
    return motifs.Recurrent(nn.LSTM, num_layers=2)


BUILDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "dense": (dense, lambda: torch.randn(2, 4)),
    "counting": (Counting, lambda: torch.randn(2, 4)),
    "cnn": (femnist_cnn, lambda: torch.randn(2, 1, 28, 28)),
    "lstm": (lstm, lambda: motifs.tokens()[0]),
    "batchnorm": (motifs.Residual, lambda: torch.randn(2, 3, 8, 8)),
}


@lru_cache(maxsize=32)
def _made(kind: str, space: WidthSpace, norms: Any) -> tuple[nn.Module, ElasticModel]:
    torch.manual_seed(3)
    build, example = BUILDS[kind]
    net = oracles.randomise(build())
    inputs = example()
    if inputs.is_floating_point():
        inputs = inputs.double()
    return net, fjord.elasticize(net, inputs, widths=space, norms=norms)


def elastic(
    kind: str,
    space: WidthSpace = FIFTHS,
    norms: Any = "layers",
) -> tuple[nn.Module, ElasticModel]:
    """Return a plain net in double precision with awkward weights, and a fresh elastic model."""
    net, model = _made(kind, space, norms)
    return net, copy.deepcopy(model)


def elastic_motif(name: str = "residual add", **options: Any) -> ElasticModel:
    """Return an elastic model of one of the motifs, with awkward weights."""
    motif = motifs.MOTIFS[name]
    net = oracles.randomise(motif.build())
    return fjord.elasticize(net, motif.inputs(), freeze=motif.freeze, **options)


def tiny_data(kind: str, sizes: Iterable[int], seed: int = 0) -> PartitionedData:
    """Return some random examples for each client."""
    generator = torch.Generator().manual_seed(seed)
    sizes = list(sizes)
    count = sum(sizes) + 6
    if kind == "lstm":
        inputs = torch.randint(0, 12, (count, 5), generator=generator)
        targets = torch.randint(0, 12, (count, 5), generator=generator)
    else:
        shape = {"cnn": (1, 28, 28), "batchnorm": (3, 8, 8)}.get(kind, (4,))
        inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
        classes = {"cnn": 62, "batchnorm": 4}.get(kind, 3)
        targets = torch.randint(0, classes, (count,), generator=generator)
    clients = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    train = (inputs[:-6], targets[:-6])
    test = (inputs[-6:], targets[-6:])
    return partition_tensors(train, clients, test)
