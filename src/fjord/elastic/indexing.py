"""Read and write the part of a tensor that a submodel keeps: indices along each axis."""

from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

AxisIndices = list[Tensor | None]
"""The kept indices along each axis of a tensor, in rising order; None keeps all."""


class _IndexRuns(NamedTuple):
    """Rising indices as runs of consecutive indices, all of one length and at one distance."""

    first: int
    """The first index of the first run."""
    num_runs: int
    """The number of runs."""
    distance: int
    """From the start of one run to the start of the next; 0 if there is only one run."""
    length: int
    """The number of indices in each run."""


_RUNS: MutableMapping[Tensor, _IndexRuns | None] = WeakTensorKeyDictionary()
"""The runs of each index tensor seen so far: every round asks about the same tensors."""


def is_leading(index: Tensor) -> bool:
    """Return whether rising indices are 0, 1, 2, ... without a gap.

    >>> is_leading(torch.tensor([0, 1, 2])), is_leading(torch.tensor([0, 2]))
    (True, False)
    """
    return int(index[-1]) == len(index) - 1


def all_indices(num_axes: int) -> AxisIndices:
    """Return the indices that keep a whole tensor."""
    return [None] * num_axes


def sliced_shape(shape: Sequence[int], indices: AxisIndices) -> list[int]:
    """Return the shape of a tensor after slicing.

    >>> sliced_shape((4, 3), [torch.tensor([0, 1]), None])
    [2, 3]
    """
    sizes = list(shape)
    for axis, index in enumerate(indices):
        if index is not None:
            sizes[axis] = len(index)
    return sizes


def take_slice(tensor: Tensor, indices: AxisIndices) -> Tensor:
    """Slice a tensor along each axis: a view where the indices are leading, else a copy."""
    for axis, index in enumerate(indices):
        if index is None:
            continue
        if is_leading(index):
            tensor = tensor.narrow(axis, 0, len(index))
        else:
            tensor = tensor.index_select(axis, index.to(tensor.device))
    return tensor


def put_slice(
    tensor: Tensor,
    indices: AxisIndices,
    value: Tensor,
) -> None:
    """Write a sliced tensor back to where it was taken from."""
    if not indices:
        tensor[...] = value
        return
    complete = []
    for size, index in zip(tensor.shape, indices, strict=True):
        if index is None:
            index = torch.arange(size)
        complete.append(index)
    tensor[torch.meshgrid(*complete, indexing="ij")] = value


def owned_copy(sliced: Tensor, source: Tensor) -> Tensor:
    """Return a contiguous copy of a slice, as a parameter or a buffer like its source."""
    copied = sliced.detach().clone(memory_format=torch.contiguous_format)
    return parameter_like(copied, source)


def parameter_like(tensor: Tensor, source: Tensor) -> Tensor:
    """Return the tensor as a parameter if the source is one, without a copy."""
    if isinstance(source, nn.Parameter):
        return nn.Parameter(tensor, source.requires_grad)
    return tensor


def strided_view(tensor: Tensor, indices: AxisIndices) -> Tensor | None:
    """Return a view of the kept elements in their order, or None if strides cannot express it.

    Strides can express runs of equal length and distance. An axis of several runs (the gates of an
    LSTM) becomes two axes of the view.
    """
    sizes: list[int] = []
    strides: list[int] = []
    offset = tensor.storage_offset()
    for size, stride, index in zip(tensor.shape, tensor.stride(), indices, strict=True):
        if index is None:
            sizes.append(size)
            strides.append(stride)
            continue
        if index not in _RUNS:
            _RUNS[index] = _find_runs(index)
        runs = _RUNS[index]
        if runs is None:
            return None
        if runs.num_runs > 1:
            sizes.append(runs.num_runs)
            strides.append(runs.distance * stride)
        sizes.append(runs.length)
        strides.append(stride)
        offset += runs.first * stride
    return tensor.as_strided(sizes, strides, offset)


def _find_runs(index: Tensor) -> _IndexRuns | None:
    """Return the runs of rising indices, or None if their lengths or distances differ.

    >>> _find_runs(torch.tensor([2, 3, 12, 13, 22, 23]))
    _IndexRuns(first=2, num_runs=3, distance=10, length=2)
    """
    first = int(index[0])
    is_break = index.diff() != 1
    breaks = 1 + is_break.nonzero()[:, 0]
    if len(breaks) == 0:
        return _IndexRuns(first, num_runs=1, distance=0, length=len(index))
    length = int(breaks[0])
    runs = _IndexRuns(
        first=first,
        num_runs=len(breaks) + 1,
        distance=int(index[length]) - first,
        length=length,
    )
    starts = first + runs.distance * torch.arange(runs.num_runs)
    expected = starts[:, None] + torch.arange(length)
    if torch.equal(expected.reshape(-1), index):
        return runs
    return None


def indices_within(wanted: Tensor | None, stored: Tensor | None) -> Tensor | None:
    """Return the positions of wanted indices among those that a smaller tensor stores.

    >>> indices_within(torch.tensor([2, 8]), torch.tensor([0, 2, 4, 8]))
    tensor([1, 3])
    """
    if stored is None or wanted is None:
        return wanted
    if len(wanted) == len(stored):
        return None
    return torch.searchsorted(stored, wanted)


def relative_indices(wanted: AxisIndices, stored: AxisIndices) -> AxisIndices:
    """Return the positions of wanted indices in a tensor that stores some, along each axis."""
    pairs = zip(wanted, stored, strict=True)
    return [indices_within(inner, outer) for inner, outer in pairs]
