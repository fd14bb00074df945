"""Any torch dataset with a client for each example, as a federated dataset."""

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fjord.data.federated import Batch, Generated, Prepare, TestSet, as_is
from fjord.seeding import derive


def federate(
    dataset: Any,
    clients: Iterable[Hashable],
    test: Any = None,
    *,
    held_out: Fraction | str = "1/10",
    prepare: Prepare = as_is,
    remembered: int = 512,
    seed: int = 0,
) -> Generated:
    """Make a federated dataset of any torch dataset of (input, target) and the client of each example, by any name.

    Examples are read when their client takes part. Without a test dataset a share of each client's examples is held
    out: at least one, where the client has two or more. Clients are numbered in the order of their first example.
    """
    names = [c.item() if isinstance(c, Tensor) else c for c in clients]
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"dataset: a {type(dataset).__name__} has no length and items by number; a map-style one has")
    if len(names) != len(dataset):
        raise ValueError(f"clients: {len(names)} clients for {len(dataset)} examples; give one for each")
    if not names:
        raise ValueError("dataset: there is no example")
    rows: dict[Hashable, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    if test is None:
        share = _share(held_out)
        cut = {name: _divided(mine, share, seed, name) for name, mine in rows.items()}
        rows = {name: train for name, (train, _) in cut.items()}
        kept = [(i, row) for i, (_, out) in enumerate(cut.values()) for row in out]
        if not kept:
            raise ValueError("test: no client has two examples, so none can be held out; give a test dataset")
        tested, owners = _stacked(dataset, [row for _, row in kept]), torch.tensor([i for i, _ in kept])
    else:
        tested, owners = _stacked(test, range(len(test)), "test"), torch.full((len(test),), -1)
    own = list(rows.values())
    make = partial(_of_client, dataset, own)
    return Generated(len(own), make, TestSet(*tested, owners, prepare), remembered, prepare)


def _of_client(dataset: Any, rows: Sequence[Sequence[int]], client_id: int) -> Batch:
    return _stacked(dataset, rows[client_id])


def _share(held_out: Fraction | str) -> Fraction:
    share = Fraction(str(held_out))
    if not 0 < share < 1:
        raise ValueError(f"held_out={held_out} must lie between 0 and 1")
    return share


def _divided(rows: list[int], share: Fraction, seed: int, name: Hashable) -> tuple[list[int], list[int]]:
    """Return what a client trains on and what it holds out, both in order."""
    count = 0 if len(rows) < 2 else min(max(1, round(share * len(rows))), len(rows) - 1)
    generator = torch.Generator().manual_seed(derive(seed, "held out", str(name)))
    out = set(torch.randperm(len(rows), generator=generator)[:count].tolist())
    return [r for i, r in enumerate(rows) if i not in out], [r for i, r in enumerate(rows) if i in out]


def _stacked(dataset: Any, rows: Sequence[int], name: str = "dataset") -> Batch:
    if not len(rows):
        raise ValueError(f"{name}: there is no example")
    pairs = [_pair(dataset[row], row, name) for row in rows]
    for row, (x, y) in zip(rows, pairs, strict=True):
        for what, one, first in (("input", x, pairs[0][0]), ("target", y, pairs[0][1])):
            if one.shape != first.shape:
                shapes = f"{tuple(one.shape)}, that of example {rows[0]} {tuple(first.shape)}"
                raise ValueError(f"{name}: the {what} of example {row} has the shape {shapes}; pad or crop them")
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def _pair(item: Any, row: int, name: str) -> Batch:
    try:
        inputs, target = item
        return torch.as_tensor(inputs), torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: example {row} is not an (input, target) pair of tensors or numbers, such as a transform of "
            f"images to tensors gives: {error}"
        ) from error
