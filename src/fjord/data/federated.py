"""What a federated dataset is: the examples of each client, read on demand, and a test set."""

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
"""Turns a batch of stored inputs into model inputs: random with a generator (training) only."""


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
        num_inputs = len(self.inputs)
        num_targets = len(self.targets)
        num_owners = len(self.owners)
        if not num_inputs == num_targets == num_owners:
            sizes = f"{num_inputs} inputs, {num_targets} targets and {num_owners} owners"
            raise UserError(f"test: {sizes} differ in number")
        if num_inputs == 0:
            raise UserError("test: there is no example in the test set")

    def batch(self, start: int, stop: int) -> Batch:
        """Return some examples as model inputs and targets."""
        inputs = self.prepare(self.inputs[start:stop], None)
        return inputs, self.targets[start:stop]


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
        """How a batch of stored inputs becomes model inputs; `identity_transform` if they are."""

    def examples(self, client_id: int) -> Batch:
        """Return the training examples of one client."""


@runtime_checkable
class CountedData(Protocol):
    """Data that knows how many examples a client has without making them."""

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
    """Identifies the examples: a run resumes only with the data it began with."""

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.rows)

    def examples(self, client_id: int) -> Batch:
        """Return the training examples of one client."""
        rows = self.rows[client_id]
        return self.inputs[rows], as_int64(self.targets[rows])

    def num_examples(self, client_id: int) -> int:
        """Return the number of training examples of one client."""
        return len(self.rows[client_id])

    def all_examples(self) -> Batch:
        """Return the training examples of all clients: the dataset of centralised training."""
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
    """Make a federated dataset of tensors and a client number, from 0 on, for each example.

    >>> inputs, targets = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> clients = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> data = partition_tensors((inputs, targets), clients, test=(inputs, targets))
    >>> data.num_clients, data.num_examples(0)
    (2, 4)
    """
    inputs, targets = train
    num_inputs = len(inputs)
    num_targets = len(targets)
    if not num_inputs == num_targets == len(clients):
        sizes = f"{num_inputs} inputs, {num_targets} targets and {len(clients)} client numbers"
        raise UserError(f"clients: {sizes} differ in number")
    _check_numbers("clients", clients, 0)
    _check_no_gap(clients)
    rows = rows_by_client(clients)
    test_inputs, test_targets = test
    if test_clients is None:
        test_clients = torch.full((len(test_inputs),), -1)
    _check_numbers("test_clients", test_clients, -1, len(rows) - 1)
    test_set = TestSet(
        test_inputs,
        as_int64(test_targets),
        test_clients,
        prepare,
    )
    return PartitionedData(inputs, targets, rows, test_set, prepare, digest)


def rows_by_client(clients: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of each client's examples, in order.

    >>> rows_by_client(torch.tensor([1, 0, 1]))
    (tensor([1]), tensor([0, 2]))
    """
    sizes = torch.bincount(clients).tolist()
    return clients.argsort(stable=True).split(sizes)


def as_int64(targets: Tensor) -> Tensor:
    """Return class numbers, which may be stored in a byte, as losses take them."""
    if targets.is_floating_point():
        return targets
    return targets.long()


def _check_numbers(
    name: str,
    numbers: Tensor,
    least: int,
    most: int | None = None,
) -> None:
    if numbers.dim() != 1 or numbers.is_floating_point() or numbers.is_complex():
        given = f"a {numbers.dim()}-dimensional tensor of {numbers.dtype}"
        raise UserError(f"{name}: one whole number for each example is needed, not {given}")
    invalid = numbers < least
    allowed = f"from {least} on"
    if most is not None:
        invalid |= numbers > most
        allowed = f"from {least} to {most}"
    if invalid.any():
        client = int(numbers[invalid][0])
        raise UserError(f"{name}: client {client} does not exist; allowed: {allowed}")


def _check_no_gap(clients: Tensor) -> None:
    counts = torch.bincount(clients)
    if len(counts) == 0:
        empty_client = 0
    elif int(counts.min()) == 0:
        empty_client = int(counts.argmin())
    else:
        return
    fault = f"client {empty_client} has no examples; number the clients from 0 without a gap"
    raise UserError(f"clients: {fault}")


class GeneratedData:
    """Clients made by a function when they take part; the latest are kept, the rest cost nothing.

    `make` returns the examples of a client. `count` returns how many they will be, for the
    simulated clock; without it they are made to be counted.
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
            fault = "must be a whole number of at least 1"
            raise UserError(fault, field="num_clients", value=num_clients)
        self.num_clients = num_clients
        self.test = test
        self.prepare = prepare
        self.examples = lru_cache(maxsize=cache_size)(make)
        if count is not None:
            self.num_examples = count
