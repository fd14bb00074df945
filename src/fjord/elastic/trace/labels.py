"""Unit ids carried by tensors: what flows through the graph in place of numbers.

A *channel* is an int64 tensor with the rank of the value it labels; it has size 1 along every
dimension its ids do not depend on. `NO_ID` marks positions without an id, `FROZEN` those that
must stay whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

NO_ID, FROZEN = 0, 1


def varying_axes(channel: Tensor) -> set[int]:
    """Return the dimensions along which the ids of a channel differ."""
    return {dim for dim, size in enumerate(channel.shape) if size > 1}


def collapse_labels(channel: Tensor) -> Tensor:
    """Narrow every dimension along which the ids are all equal."""
    for dim in varying_axes(channel):
        first = channel.narrow(dim, 0, 1)
        if channel.stride(dim) == 0 or bool((channel == first).all()):
            channel = first
    return channel.contiguous()


def labels_along(ids: Tensor, dim: int, rank: int) -> Tensor:
    """Lay a vector along one dimension of the given rank."""
    return ids.reshape([-1 if d == dim else 1 for d in range(rank)])


def pad_labels(channel: Tensor, rank: int) -> Tensor:
    """Prepend dimensions of size 1, as broadcasting does."""
    return channel.reshape((1,) * (rank - channel.dim()) + tuple(channel.shape))


def expand_labels(channel: Tensor, shape: Sequence[int], dims: Iterable[int]) -> Tensor:
    """Expand a channel to its value's full size along some dimensions only."""
    wanted = set(dims)
    return channel.expand([shape[d] if d in wanted else n for d, n in enumerate(channel.shape)])


def reshape_labels(channel: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Reshape a channel as its value is reshaped, expanding only the dimensions that mix."""
    live, sizes = varying_axes(channel), []
    wanted: set[int] = set()
    for old_dims, new_dims in _factors(old, new):
        if live.isdisjoint(old_dims):
            sizes += [1] * len(new_dims)
        else:
            wanted.update(old_dims)
            sizes += [new[d] for d in new_dims]
    return collapse_labels(expand_labels(channel, old, wanted).reshape(sizes))


def _factors(old: Sequence[int], new: Sequence[int]) -> Iterable[tuple[range, range]]:
    """Split a reshape into the smallest runs of dimensions of equal size, old beside new."""
    if 0 in old:
        yield range(len(old)), range(len(new))
        return
    i = j = 0
    while i < len(old) or j < len(new):
        end_i, end_j = min(i + 1, len(old)), min(j + 1, len(new))
        while prod(old[i:end_i]) != prod(new[j:end_j]):
            if prod(old[i:end_i]) < prod(new[j:end_j]):
                end_i += 1
            else:
                end_j += 1
        yield range(i, end_i), range(j, end_j)
        i, j = end_i, end_j


@dataclass
class UnitLabels:
    """The ids of one value; `blank` values hold no data that tells positions apart (zeros, ones)."""

    shape: tuple[int, ...]
    channels: list[Tensor] = field(default_factory=list)
    blank: bool = False
    table: bool = False
    """A buffer: a table of constants such as a rotary embedding."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def like(self, shape: Sequence[int], channels: Iterable[Tensor]) -> "UnitLabels":
        """Return the labels of the same kind of value with another layout."""
        return UnitLabels(tuple(shape), list(channels), self.blank, self.table)

    def without(self, dim: int) -> "UnitLabels":
        """Return the labels that do not depend on `dim`, with that dimension narrowed to 1."""
        shape = [1 if d == dim else n for d, n in enumerate(self.shape)]
        return self.like(shape, [c for c in self.channels if dim not in varying_axes(c)])

    def marked(self) -> set[int]:
        """Return every dimension along which some channel varies."""
        return set().union(*map(varying_axes, self.channels))


class UnitTable:
    """Equivalence classes of ids: equal ids are one unit, kept or dropped as a whole."""

    def __init__(self) -> None:
        self.root = torch.arange(2)
        self.reasons: list[tuple[str, Tensor]] = []
        self.segments: list[tuple[Tensor, tuple[str, int]]] = []

    def fresh(self, count: int) -> Tensor:
        """Return new ids."""
        start = len(self.root)
        ids = torch.arange(start, start + count)
        self.root = torch.cat([self.root, ids])
        return ids

    def fresh_labels(
        self, shape: Sequence[int], *, blank: bool = False, table: bool = False
    ) -> UnitLabels:
        """Return labels with a new id for each index of each dimension."""
        channels = [
            labels_along(self.fresh(n), d, len(shape)) for d, n in enumerate(shape) if n > 1
        ]
        return UnitLabels(tuple(shape), channels, blank, table)

    def current(self, channel: Tensor) -> Tensor:
        """Return a channel with every id replaced by its unit."""
        return collapse_labels(self.root[channel])

    def refresh(self, labels: UnitLabels) -> None:
        """Replace ids by their units, and forget channels that no longer tell positions apart."""
        current = map(self.current, labels.channels)
        labels.channels = [c for c in current if c.numel() > 1]

    def equate(self, a: Tensor, b: Tensor) -> None:
        """Make ids at the same (broadcast) position one unit; positions without an id do not count."""
        a, b = torch.broadcast_tensors(self.root[a], self.root[b])
        new = (a != b) & (a != NO_ID) & (b != NO_ID)
        pairs = torch.unique(a[new] * len(self.root) + b[new])
        if pairs.numel():
            self._unite([divmod(pair, len(self.root)) for pair in pairs.tolist()])

    def _unite(self, pairs: list[tuple[int, int]]) -> None:
        parent: dict[int, int] = {}

        def find(x: int) -> int:
            while x in parent:
                x = parent[x]
            return x

        for x, y in pairs:
            low, high = sorted((find(x), find(y)))
            if low != high:
                parent[high] = low
        moved = torch.arange(len(self.root))
        moved[torch.tensor(list(parent))] = torch.tensor([find(x) for x in parent])
        self.root = moved[self.root]

    def freeze(self, channel: Tensor, reason: str) -> None:
        """Keep these units whole, and remember why."""
        ids = torch.unique(self.root[channel])
        ids = ids[ids > FROZEN]
        if len(ids):
            self.reasons.append((reason, ids))
            self.equate(ids, torch.full_like(ids, FROZEN))

    def fuse(self, channel: Tensor, dims: Iterable[int]) -> None:
        """Make all ids along some dimensions one unit."""
        for dim in dims:
            self.equate(channel, channel.narrow(dim, 0, 1))

    def segment(self, channel: Tensor, name: str, index: int) -> None:
        """Note that these units are a segment of their own, cut on its own (one part of a concatenation)."""
        self.segments.append((torch.unique(channel), (name, index)))
