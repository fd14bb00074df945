"""Any torch dataset with a client for each example, as a federated dataset."""

import random
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from functools import partial
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
    """Make a federated dataset of any torch dataset of (input, target) and the client of each example, by any name.

    Examples are read when their client takes part. Without a test dataset a share of each client's examples is held
    out: at least one, where the client has two or more. Clients are numbered in the order of their first example.
    """
    _demand_map_style("dataset", dataset)
    if test is not None:
        _demand_map_style("test", test)
    names = _names(clients)
    if len(names) != len(dataset):
        raise UserError(
            f"clients: {len(names)} clients for {len(dataset)} examples; give one for each"
        )
    if not names:
        raise UserError("dataset: there is no example")
    numbers = {name: client for client, name in enumerate(dict.fromkeys(names))}
    owner = torch.tensor([numbers[name] for name in names])
    if test is None:
        held = split_held_out(owner, [str(name) for name in numbers], seed, _share(test_share))
        if not held.any():
            raise UserError(
                "test: no client has two examples, so none can be held out; give a test dataset"
            )
        tested, owners = _stacked(dataset, held.nonzero()[:, 0].tolist()), owner[held]
    else:
        held = torch.zeros(len(owner), dtype=torch.bool)
        tested, owners = _stacked(test, range(len(test)), "test"), torch.full((len(test),), -1)
    own = [rows[~held[rows]].tolist() for rows in rows_by_client(owner)]
    make = partial(_of_client, dataset, own, seed)
    tests = TestSet(*tested, owners, prepare)
    return GeneratedData(
        len(own), make, tests, cache_size, prepare, lambda client: len(own[client])
    )


def split_held_out(
    clients: Tensor, names: Sequence[str], seed: int, share: Fraction = Fraction(1, 10)
) -> Tensor:
    """Say which examples are held out: a share of each client's, at least one of two or more, chosen by its name."""
    held = torch.zeros(len(clients), dtype=torch.bool)
    for name, rows in zip(names, rows_by_client(clients), strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "held out", name))
        count = max(1, int(share * len(rows))) if len(rows) > 1 else 0
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return held


def _of_client(dataset: Any, rows: Sequence[Sequence[int]], seed: int, client_id: int) -> Batch:
    """Read a client's examples; transforms that draw from Python or NumPy draw the same in every process."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  # what transforms use
    random.seed(derive_seed(seed, "transforms", client_id))
    np.random.seed(derive_seed(seed, "transforms", client_id) % 2**32)  # noqa: NPY002
    try:
        return _stacked(dataset, rows[client_id])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def _demand_map_style(name: str, dataset: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UserError(
            f"{name}: a {type(dataset).__name__} has no length and items by number; a map-style one has"
        )


def _names(clients: Iterable[Hashable]) -> list[Hashable]:
    """Return the client of each example as something that can be compared."""
    try:
        names = [c.item() if isinstance(c, Tensor | np.generic) else c for c in clients]
        wrong = [name for name in names if hash(name) is None or name != name]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"clients: one name or number for each example is needed ({error})"
        ) from error
    if wrong:
        raise UserError(f"clients: {wrong[0]} is nobody's name")
    return names


def _share(test_share: Fraction | str) -> Fraction:
    try:
        share = Fraction(str(test_share))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise UserError(f"test_share={test_share} must lie between 0 and 1, such as '1/10'")
    return share


def _stacked(dataset: Any, rows: Sequence[int], name: str = "dataset") -> Batch:
    if not len(rows):
        raise UserError(f"{name}: there is no example")
    pairs = [_pair(dataset[row], row, name) for row in rows]
    for row, (x, y) in zip(rows, pairs, strict=True):
        for what, one, first in (("input", x, pairs[0][0]), ("target", y, pairs[0][1])):
            if one.shape != first.shape:
                shapes = f"{tuple(one.shape)}, that of example {rows[0]} {tuple(first.shape)}"
                raise UserError(
                    f"{name}: the {what} of example {row} has the shape {shapes}; pad or crop them"
                )
    return torch.stack([x for x, _ in pairs]), as_int64(torch.stack([y for _, y in pairs]))


def _pair(item: Any, row: int, name: str) -> Batch:
    try:
        inputs, target = item
        return torch.as_tensor(inputs).detach(), torch.as_tensor(target).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name}: example {row} is not an (input, target) pair of tensors or numbers, such as a transform of "
            f"images to tensors gives: {error}"
        ) from error
