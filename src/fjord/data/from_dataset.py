"""Any torch dataset with a client for each example, as a federated dataset."""

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import derive_seed
from fjord.data.federated import (
    Batch,
    GeneratedData,
    PrepareInputs,
    TestSet,
    as_int64,
    identity_transform,
    rows_by_client,
)


def partition_dataset(
    dataset: Any,
    clients: Iterable[Hashable],
    test: Any = None,
    *,
    test_share: Fraction | str = "1/10",
    prepare: PrepareInputs = identity_transform,
    cache_size: int = 512,
    seed: int = 0,
) -> GeneratedData:
    """Make a federated dataset of any torch dataset of (input, target) pairs.

    `clients` names the client of each example, by anything that can be compared. Examples are read
    when their client takes part. Without a test dataset a share of each client's examples is held
    out: at least one, where the client has two or more. Clients are numbered in the order of their
    first example.
    """
    _check_map_style("dataset", dataset)
    if test is not None:
        _check_map_style("test", test)
    owners, names = _number_clients(clients, len(dataset))
    if test is None:
        held_out = split_held_out(owners, names, seed, _parse_share(test_share))
        test_set = _held_out_test_set(dataset, owners, held_out, prepare)
    else:
        held_out = torch.zeros(len(owners), dtype=torch.bool)
        test_set = _separate_test_set(test, prepare)
    train_rows = []
    for rows in rows_by_client(owners):
        train_rows.append(rows[~held_out[rows]].tolist())
    reader = _ClientReader(dataset, train_rows, seed)
    return GeneratedData(
        len(train_rows),
        reader.read_client,
        test_set,
        cache_size,
        prepare,
        reader.count_examples,
    )


def split_held_out(
    clients: Tensor,
    names: Sequence[str],
    seed: int,
    share: Fraction = Fraction(1, 10),
) -> Tensor:
    """Say which examples are held out: a share of each client's, at least one of two or more.

    Which ones depends on the client's name, not on its number.
    """
    held_out = torch.zeros(len(clients), dtype=torch.bool)
    for name, rows in zip(names, rows_by_client(clients), strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "held out", name))
        count = 0
        if len(rows) > 1:
            count = max(1, int(share * len(rows)))
        order = torch.randperm(len(rows), generator=generator)
        held_out[rows[order[:count]]] = True
    return held_out


@dataclass(frozen=True)
class _ClientReader:
    """The rows of each client in a dataset, read on demand."""

    dataset: Any
    rows: list[list[int]]
    seed: int

    def read_client(self, client_id: int) -> Batch:
        """Return the examples of a client; transforms draw the same in every process."""
        with _seeded_transforms(derive_seed(self.seed, "transforms", client_id)):
            return _stack_examples(self.dataset, self.rows[client_id])

    def count_examples(self, client_id: int) -> int:
        """Return how many examples a client has."""
        return len(self.rows[client_id])


@contextmanager
def _seeded_transforms(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy, which transforms draw from, within the block."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002  # what transforms use
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _held_out_test_set(
    dataset: Any,
    owners: Tensor,
    held_out: Tensor,
    prepare: PrepareInputs,
) -> TestSet:
    if not held_out.any():
        fault = "no client has two examples, so none can be held out; give a test dataset"
        raise UserError(f"test: {fault}")
    rows = held_out.nonzero()[:, 0].tolist()
    inputs, targets = _stack_examples(dataset, rows)
    return TestSet(inputs, targets, owners[held_out], prepare)


def _separate_test_set(test: Any, prepare: PrepareInputs) -> TestSet:
    num_examples = len(test)
    inputs, targets = _stack_examples(test, range(num_examples), "test")
    nobody = torch.full((num_examples,), -1)
    return TestSet(inputs, targets, nobody, prepare)


def _check_map_style(name: str, dataset: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        fault = f"a {kind} has no length and items by number; give a map-style dataset"
        raise UserError(f"{name}: {fault}")


def _number_clients(clients: Iterable[Hashable], num_examples: int) -> tuple[Tensor, list[str]]:
    """Return the number of each example's client, and the names of the clients in order."""
    names = _client_names(clients)
    if len(names) != num_examples:
        fault = f"{len(names)} clients for {num_examples} examples; give one for each"
        raise UserError(f"clients: {fault}")
    if not names:
        raise UserError("dataset: there is no example")
    distinct_names = dict.fromkeys(names)
    numbers = {name: client for client, name in enumerate(distinct_names)}
    owners = torch.tensor([numbers[name] for name in names])
    return owners, [str(name) for name in distinct_names]


def _client_names(clients: Iterable[Hashable]) -> list[Hashable]:
    """Return the client of each example as something that can be compared."""
    names = []
    invalid_names = []
    try:
        for client in clients:
            name = client.item() if isinstance(client, Tensor | np.generic) else client
            names.append(name)
            if hash(name) is None or name != name:  # NaN equals nothing, so it is no name
                invalid_names.append(name)
    except (TypeError, ValueError, RuntimeError) as error:
        fault = f"one name or number for each example is needed ({error})"
        raise UserError(f"clients: {fault}") from error
    if invalid_names:
        raise UserError(f"clients: {invalid_names[0]} cannot be the name of a client")
    return names


def _parse_share(test_share: Fraction | str) -> Fraction:
    try:
        share = Fraction(str(test_share))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        fault = "must lie between 0 and 1, such as '1/10'"
        raise UserError(fault, field="test_share", value=test_share)
    return share


def _stack_examples(
    dataset: Any,
    rows: Sequence[int],
    name: str = "dataset",
) -> Batch:
    """Return some examples as two tensors."""
    if not len(rows):
        raise UserError(f"{name}: there is no example")
    all_inputs = []
    all_targets = []
    for row in rows:
        inputs, target = _read_pair(dataset[row], row, name)
        all_inputs.append(inputs)
        all_targets.append(target)
    for place, row in enumerate(rows):
        _check_shape(f"{name}: the input of example {row}", all_inputs[place], all_inputs[0])
        _check_shape(f"{name}: the target of example {row}", all_targets[place], all_targets[0])
    return torch.stack(all_inputs), as_int64(torch.stack(all_targets))


def _check_shape(what: str, tensor: Tensor, first: Tensor) -> None:
    if tensor.shape != first.shape:
        shape = tuple(tensor.shape)
        others = f"that of the first example is {tuple(first.shape)}"
        raise UserError(f"{what} has the shape {shape}, {others}; pad or crop them")


def _read_pair(item: Any, row: int, name: str) -> Batch:
    try:
        inputs, target = item
        inputs = torch.as_tensor(inputs).detach()
        target = torch.as_tensor(target).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        fault = f"example {row} is not an (input, target) pair of tensors or numbers"
        hint = "a transform of images to tensors gives such pairs"
        raise UserError(f"{name}: {fault}; {hint}: {error}") from error
    return inputs, target
