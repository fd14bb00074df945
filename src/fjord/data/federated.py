"""What a federated dataset is: the examples of each client, fetched when it takes part, and a test set."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fjord.core.errors import UserError

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""
IGNORED_TARGET = -100
"""A target that counts in no loss and no metric, such as padding."""
PrepareInputs = Callable[[Tensor, torch.Generator | None], Tensor]
"""What the model sees of a batch of stored inputs; random with a generator (training), never without (tests)."""


def identity_transform(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the inputs as they are stored."""
    return inputs


@dataclass(frozen=True)
class TestSet:
    """The union of the clients' held-out examples, and whose each is (-1: nobody's)."""

    inputs: Tensor
    targets: Tensor
    owners: Tensor
    prepare: PrepareInputs = identity_transform

    __test__ = False  # not a test of pytest

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.owners):
            sizes = f"{len(self.inputs)} inputs, {len(self.targets)} targets and {len(self.owners)} owners"
            raise UserError(f"test: {sizes} do not fit together")
        if not len(self.inputs):
            raise UserError("test: there is no example in the test set")

    def batch(self, start: int, stop: int) -> Batch:
        """Return some examples as a model takes them."""
        return self.prepare(self.inputs[start:stop], None), self.targets[start:stop]


class FederatedData(Protocol):
    """A population of clients; only the clients of a round need be in memory."""

    @property
    def num_clients(self) -> int:
        """The size of the population."""

    @property
    def test(self) -> TestSet:
        """What the global model is scored on."""

    @property
    def prepare(self) -> PrepareInputs:
        """What the model sees of a client's inputs, batch by batch; `as_is` where they are stored so."""

    def examples(self, client_id: int) -> Batch:
        """Return the training examples of one client."""


@runtime_checkable
class CountedData(Protocol):
    """Data that can tell how many examples a client has without making them."""

    def num_examples(self, client_id: int) -> int:
        """Return the number of training examples of one client."""


@dataclass(frozen=True)
class PartitionedData:
    """Tensors of examples (which may be memory-mapped), each with its client."""

    inputs: Tensor
    targets: Tensor
    rows: tuple[Tensor, ...]
    """The examples of each client."""
    test: TestSet
    prepare: PrepareInputs = identity_transform
    digest: str = ""
    """Tells these examples from others; a run goes on only with the data it began with."""

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.rows)

    def examples(self, client_id: int) -> Batch:
        """Return the training examples of one client."""
        return self.inputs[self.rows[client_id]], as_int64(self.targets[self.rows[client_id]])

    def num_examples(self, client_id: int) -> int:
        """Return the number of training examples of one client."""
        return len(self.rows[client_id])

    def all_examples(self) -> Batch:
        """Return the training examples of all clients: the dataset of training that is not federated."""
        return self.inputs, as_int64(self.targets)


def partition_tensors(
    train: Batch,
    clients: Tensor,
    test: Batch,
    test_clients: Tensor | None = None,
    *,
    prepare: PrepareInputs = identity_transform,
    digest: str = "",
) -> PartitionedData:
    """Make a federated dataset of tensors and a client number, from 0 on, for each training example."""
    inputs, targets = train
    if not len(inputs) == len(targets) == len(clients):
        sizes = f"{len(inputs)} inputs, {len(targets)} targets and {len(clients)} client numbers"
        raise UserError(f"clients: {sizes} do not fit together")
    _demand_numbers("clients", clients, 0)
    counts = torch.bincount(clients)
    if len(counts) == 0 or int(counts.min()) == 0:
        empty = int(counts.argmin()) if len(counts) else 0
        raise UserError(
            f"clients: client {empty} has no examples; number the clients from 0 without a gap"
        )
    rows = rows_by_client(clients)
    owners = torch.full((len(test[0]),), -1) if test_clients is None else test_clients
    _demand_numbers("test_clients", owners, -1, len(rows) - 1)
    return PartitionedData(
        inputs, targets, rows, TestSet(test[0], as_int64(test[1]), owners, prepare), prepare, digest
    )


def rows_by_client(clients: Tensor) -> tuple[Tensor, ...]:
    """Return the examples of each client, in order."""
    return clients.argsort(stable=True).split(torch.bincount(clients).tolist())


def as_int64(targets: Tensor) -> Tensor:
    """Return class numbers, which may be stored in a byte, as losses take them."""
    return targets if targets.is_floating_point() else targets.long()


def _demand_numbers(name: str, numbers: Tensor, least: int, most: int | None = None) -> None:
    if numbers.dim() != 1 or numbers.is_floating_point() or numbers.is_complex():
        given = f"a {numbers.dim()}-dimensional tensor of {numbers.dtype}"
        raise UserError(f"{name}: one whole number for each example is needed, not {given}")
    wrong = numbers[
        (numbers < least) | (numbers > (torch.iinfo(torch.int64).max if most is None else most))
    ]
    if len(wrong):
        allowed = f"from {least} on" if most is None else f"from {least} to {most}"
        raise UserError(f"{name}: client {int(wrong[0])} does not exist; allowed: {allowed}")


class GeneratedData:
    """Clients made by a function when they take part; the latest are remembered, the rest cost nothing.

    `count` tells how many examples a client will have, for the simulated clock; without it they are made to be counted.
    """

    def __init__(
        self,
        num_clients: int,
        make: Callable[[int], Batch],
        test: TestSet,
        cache_size: int = 512,
        prepare: PrepareInputs = identity_transform,
        count: Callable[[int], int] | None = None,
    ) -> None:
        if type(num_clients) is not int or num_clients < 1:
            raise UserError(f"num_clients={num_clients!r} must be a whole number of at least 1")
        self.num_clients, self.test, self.prepare = num_clients, test, prepare
        self.examples = lru_cache(maxsize=cache_size)(make)
        if count is not None:
            self.num_examples = count
