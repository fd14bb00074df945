"""Rewrites of operations that have a size among their arguments, for the width of a submodel."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fjord.elastic.errors import ADVICE, ElasticityError
from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.labels import UnitLabels
from fjord.elastic.trace.rules import describe_node

A = torch.ops.aten


@dataclass
class NodeCut:
    """One operation of the full graph, and its arguments in the cut graph.

    A rewrite changes `args` in place; they start out as those of the full graph.
    """

    node: Node
    args: list[Any]
    values: Mapping[Node, Any]
    """The labels of every value of the full graph."""
    units: KeptUnits

    def output_labels(self) -> UnitLabels:
        """Return the labels of the result in the full graph."""
        labels: UnitLabels = self.values[self.node]
        return labels

    def input_labels(self, position: int = 0) -> UnitLabels:
        """Return the labels of an argument in the full graph."""
        argument = self.node.args[position]
        assert isinstance(argument, Node)
        labels: UnitLabels = self.values[argument]
        return labels

    def kept_sizes(self, labels: UnitLabels) -> list[int]:
        """Return the kept size of every axis of a value."""
        return self.units.kept_sizes(labels)

    def kept_mask(self, labels: UnitLabels, dim: int) -> Tensor:
        """Return a mask of the kept indices along an axis of a value."""
        return self.units.mask(labels, dim)

    def optional_arg(self, position: int, default: Any) -> Any:
        """Return an argument that may be left out."""
        return self.args[position] if len(self.args) > position else default


Rewrite = Callable[[NodeCut], None]


def _rewrite_sizes(position: int) -> Rewrite:
    """Replace a list of sizes by the kept ones."""

    def rewrite(cut: NodeCut) -> None:
        labels = cut.output_labels()
        old_sizes = cut.args[position]
        kept_sizes = cut.kept_sizes(labels)
        new_sizes = []
        for old, kept, full in zip(old_sizes, kept_sizes, labels.shape, strict=True):
            new_sizes.append(_kept_size(old, kept, full))
        cut.args[position] = new_sizes

    return rewrite


def _kept_size(
    old: Any,
    kept: int,
    full: int,
) -> Any:
    """Return one kept size; a symbolic size (batch times heads) is scaled."""
    if not isinstance(old, Node):
        return -1 if old == -1 else kept
    if kept == full:
        return old
    with old.graph.inserting_after(old):
        scaled = old.graph.call_function(operator.mul, (old, kept))
    with old.graph.inserting_after(scaled):
        return old.graph.call_function(operator.floordiv, (scaled, full))


def _rewrite_bounds(position: int) -> Rewrite:
    """Move the start and end of a slice to where those units now are.

    `position` is that of the axis; start, end and step follow it.
    """

    def rewrite(cut: NodeCut) -> None:
        labels = cut.input_labels()
        dim = cut.optional_arg(position, 0) % labels.rank
        mask = cut.kept_mask(labels, dim)
        if mask.all():
            return
        if cut.optional_arg(position + 3, 1) != 1:
            raise ElasticityError(
                f"a slice with a step runs along the width: {describe_node(cut.node)}. {ADVICE}"
            )
        zero = torch.zeros(1, dtype=torch.long)
        kept_before = torch.cat([zero, mask.cumsum(0)])
        last = min(position + 3, len(cut.args))
        for i in range(position + 1, last):
            bound = cut.args[i]
            if isinstance(bound, int):
                if bound < 0:
                    bound += len(mask)
                bound = min(max(bound, 0), len(mask))
                cut.args[i] = int(kept_before[bound])

    return rewrite


def _rewrite_select(cut: NodeCut) -> None:
    labels = cut.input_labels()
    dim = cut.args[1] % labels.rank
    mask = cut.kept_mask(labels, dim)
    if mask.all():
        return
    index = 0
    if isinstance(cut.args[2], int):
        index = cut.args[2] % len(mask)
    if not mask[index]:
        raise ElasticityError(
            f"a unit that is dropped is picked by number: {describe_node(cut.node)}. {ADVICE}"
        )
    units_before = mask[:index]
    cut.args[2] = int(units_before.sum())


def _rewrite_split(cut: NodeCut) -> None:
    labels = cut.input_labels()
    dim = cut.optional_arg(2, 0) % labels.rank
    mask = cut.kept_mask(labels, dim)
    parts = mask.split(list(cut.args[1]))
    cut.args[1] = [int(part.sum()) for part in parts]


def _rewrite_layer_norm(cut: NodeCut) -> None:
    sizes = cut.kept_sizes(cut.input_labels())
    num_axes = len(cut.args[1])
    cut.args[1] = sizes[-num_axes:]


def _rewrite_group_norm(cut: NodeCut) -> None:
    old_channels = cut.args[4]
    old_groups = cut.args[6]
    channels = cut.kept_sizes(cut.input_labels())[1]
    groups = 1
    if old_groups > 1:
        groups = max(1, old_groups * channels // old_channels)
    cut.args[6] = groups
    cut.args[4] = channels


def _rewrite_convolution(cut: NodeCut) -> None:
    weight = cut.input_labels(1)
    old_groups = cut.args[8]
    groups = 1
    if old_groups > 1:
        channels = cut.kept_sizes(weight)[0]
        groups = old_groups * channels // weight.shape[0]
    cut.args[8] = groups


def _rewrite_pad(cut: NodeCut) -> None:
    labels = cut.output_labels()
    amounts = list(cut.args[1])
    for i in range(0, len(amounts), 2):  # pairs of (before, after), the last axis first
        dim = labels.rank - 1 - i // 2
        mask = cut.kept_mask(labels, dim)
        if mask.all():
            continue
        padding_before = mask[: amounts[i]]
        last = len(mask) - amounts[i + 1]
        padding_after = mask[last:]
        amounts[i] = int(padding_before.sum())
        amounts[i + 1] = int(padding_after.sum())
    cut.args[1] = amounts


def _rewrite_repeat(cut: NodeCut) -> None:
    labels = cut.input_labels()
    output = cut.output_labels()
    new_axes = [1] * (output.rank - labels.rank)
    input_sizes = new_axes + cut.kept_sizes(labels)
    output_sizes = cut.kept_sizes(output)
    repeats: list[Any] = []
    for dim, old in enumerate(cut.args[1]):
        if isinstance(old, Node):
            repeats.append(old)
        else:
            repeats.append(output_sizes[dim] // input_sizes[dim])
    cut.args[1] = repeats


def _rewrite_strides(cut: NodeCut) -> None:
    """Drop the strides of a value that loses units, so that a reshape can replace the operation.

    Strides are written in a graph where a layout is restored without moving elements: a reshape
    does the same.
    """
    labels = cut.input_labels()
    if cut.kept_sizes(labels) == list(labels.shape):
        return
    del cut.args[2:]
    _rewrite_sizes(1)(cut)


SIZES_FIRST = (A.full, A.zeros, A.ones, A.empty, A.rand, A.randn)
SIZES_SECOND = (
    A.view,
    A._unsafe_view,
    A.reshape,
    A.expand,
    A.new_zeros,
    A.new_full,
    A.new_ones,
    A.new_empty,
)
REWRITES: dict[Any, Rewrite] = {
    **dict.fromkeys(SIZES_FIRST, _rewrite_sizes(0)),
    **dict.fromkeys(SIZES_SECOND, _rewrite_sizes(1)),
    A.slice: _rewrite_bounds(1),
    A.slice_scatter: _rewrite_bounds(2),
    A.select: _rewrite_select,
    A.split_with_sizes: _rewrite_split,
    A.native_layer_norm: _rewrite_layer_norm,
    A._fused_rms_norm: _rewrite_layer_norm,
    A.rms_norm: _rewrite_layer_norm,
    A.native_group_norm: _rewrite_group_norm,
    A.convolution: _rewrite_convolution,
    A.constant_pad_nd: _rewrite_pad,
    A.repeat: _rewrite_repeat,
    A.as_strided: _rewrite_strides,
}
