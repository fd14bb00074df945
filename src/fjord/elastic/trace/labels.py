"""Unit ids carried by tensors: what flows through the graph in place of numbers.

A *channel* is an int64 tensor with the rank of the value it labels; it has size 1 along every
dimension its ids do not depend on. `NO_ID` marks positions without an id, `FROZEN` those that
must stay whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import Tensor

NO_ID = 0
FROZEN = 1


def varying_axes(channel: Tensor) -> set[int]:
    """Return the dimensions along which the ids of a channel differ.

    >>> import torch
    >>> varying_axes(labels_along(torch.arange(4), dim=1, rank=3))
    {1}
    """
    return {dim for dim, size in enumerate(channel.shape) if size > 1}


def collapse_labels(channel: Tensor) -> Tensor:
    """Narrow every dimension along which the ids are all equal."""
    for dim in varying_axes(channel):
        first = channel.narrow(dim, 0, 1)
        if channel.stride(dim) == 0 or bool((channel == first).all()):
            channel = first
    return channel.contiguous()


def labels_along(ids: Tensor, dim: int, rank: int) -> Tensor:
    """Lay a vector along one dimension of the given rank.

    >>> import torch
    >>> labels_along(torch.arange(4), dim=1, rank=3).shape
    torch.Size([1, 4, 1])
    """
    sizes = [1] * rank
    sizes[dim] = -1
    return ids.reshape(sizes)


def pad_labels(channel: Tensor, rank: int) -> Tensor:
    """Prepend dimensions of size 1, as broadcasting does."""
    return channel.reshape(pad_shape(channel.shape, rank))


def pad_shape(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Prepend ones to a shape, as broadcasting does.

    >>> pad_shape((5, 3), 4)
    (1, 1, 5, 3)
    """
    return (1,) * (rank - len(shape)) + tuple(shape)


def narrow_shape(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the shape with one dimension narrowed to 1.

    >>> narrow_shape((5, 3), 0)
    (1, 3)
    """
    sizes = list(shape)
    sizes[dim] = 1
    return tuple(sizes)


def expand_labels(channel: Tensor, shape: Sequence[int], dims: Iterable[int]) -> Tensor:
    """Expand a channel to its value's full size along some dimensions only."""
    sizes = list(channel.shape)
    for dim in dims:
        sizes[dim] = shape[dim]
    return channel.expand(sizes)


def reshape_labels(channel: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Reshape a channel as its value is reshaped, expanding only the dimensions that mix."""
    varying = varying_axes(channel)
    mixed: set[int] = set()
    sizes: list[int] = []
    for old_dims, new_dims in _matching_runs(old, new):
        if varying.isdisjoint(old_dims):
            sizes += [1] * len(new_dims)
        else:
            mixed.update(old_dims)
            sizes += new[new_dims.start : new_dims.stop]
    return collapse_labels(expand_labels(channel, old, mixed).reshape(sizes))


def _matching_runs(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Split a reshape into the smallest runs of dimensions of equal size, old beside new.

    >>> list(_matching_runs((2, 3, 4), (6, 4)))
    [(range(0, 2), range(0, 1)), (range(2, 3), range(1, 2))]
    """
    if 0 in old:
        yield range(len(old)), range(len(new))
        return
    old_start = 0
    new_start = 0
    while old_start < len(old) or new_start < len(new):
        old_end = min(old_start + 1, len(old))
        new_end = min(new_start + 1, len(new))
        old_size = prod(old[old_start:old_end])
        new_size = prod(new[new_start:new_end])
        while old_size != new_size:
            if old_size < new_size:
                old_size *= old[old_end]
                old_end += 1
            else:
                new_size *= new[new_end]
                new_end += 1
        yield range(old_start, old_end), range(new_start, new_end)
        old_start = old_end
        new_start = new_end


@dataclass
class UnitLabels:
    """The unit ids of one value."""

    shape: tuple[int, ...]
    channels: list[Tensor] = field(default_factory=list)
    blank: bool = False
    """The value holds no data that tells positions apart (zeros, ones)."""
    table: bool = False
    """The value is a buffer: a table of constants such as a rotary embedding."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def like(self, shape: Sequence[int], channels: Iterable[Tensor]) -> "UnitLabels":
        """Return the labels of the same kind of value with another layout."""
        return UnitLabels(tuple(shape), list(channels), self.blank, self.table)

    def channels_along(self, dim: int) -> list[Tensor]:
        """Return the channels that vary along a dimension, perhaps along others too."""
        return [channel for channel in self.channels if dim in varying_axes(channel)]

    def without_axis(self, dim: int) -> "UnitLabels":
        """Return the labels that do not depend on `dim`, with that dimension narrowed to 1."""
        channels = [channel for channel in self.channels if dim not in varying_axes(channel)]
        return self.like(narrow_shape(self.shape, dim), channels)

    def labelled_axes(self) -> set[int]:
        """Return every dimension along which some channel varies."""
        axes: set[int] = set()
        for channel in self.channels:
            axes |= varying_axes(channel)
        return axes
