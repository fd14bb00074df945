"""What a rule sees of one operation of the graph, and the table of all rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node
from torch.utils import _pytree as pytree

from fjord.elastic.trace.labels import (
    NO_ID,
    UnitLabels,
    expand_labels,
    pad_labels,
    pad_shape,
    varying_axes,
)
from fjord.elastic.trace.unit_table import UnitTable

RuleResult = UnitLabels | list[UnitLabels]
RuleFunction = Callable[["OperatorCall"], RuleResult]
RULES: dict[OpOverloadPacket, RuleFunction] = {}


def rule(*operations: OpOverloadPacket) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of these operations."""

    def register(function: RuleFunction) -> RuleFunction:
        for operation in operations:
            RULES[operation] = function
        return function

    return register


@dataclass
class OperatorCall:
    """One operation of the graph, as its rule sees it.

    Tensor arguments are `UnitLabels`, all others are plain values. A rule returns the labels of the
    output, or a list of them where the operation has several outputs.
    """

    units: UnitTable
    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: list[tuple[int, ...]]
    several: bool
    """The operation returns a list of outputs, even if it holds one."""
    constants: dict[Node, Tensor]
    """The values of the graph that are known in advance."""

    @property
    def operation(self) -> OpOverloadPacket:
        """The ATen operation, whichever its overload."""
        return self.overload.overloadpacket

    @property
    def overload(self) -> OpOverload:
        """The exact overload called."""
        assert isinstance(self.node.target, OpOverload)
        return self.node.target

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.shapes[0]

    @property
    def where(self) -> str:
        """Module and operation, in words."""
        return describe_node(self.node)

    @property
    def labels(self) -> list[UnitLabels]:
        """All tensor arguments, in order."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, UnitLabels)]

    @property
    def first(self) -> UnitLabels:
        """The first tensor argument."""
        return self.labels[0]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument passed by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def same_for_all(self, labels: UnitLabels) -> RuleResult:
        """Return the same labels for every output, or unlabelled ones where the shape differs."""
        if not self.several:
            return labels
        results = []
        for shape in self.shapes:
            if shape == labels.shape:
                results.append(labels)
            else:
                results.append(UnitLabels(shape, blank=True))
        return results

    def one_or_all(self, outputs: list[UnitLabels]) -> RuleResult:
        """Return what a rule must: a list where the operation has several outputs."""
        if self.several:
            return outputs
        return outputs[0]

    def freeze_ids(self, ids: Tensor, reason: str) -> None:
        """Keep some units whole; the reason is completed by the place of this operation."""
        self.units.freeze(ids, f"{reason} ({self.where})")

    def freeze_all(self, reason: str) -> RuleResult:
        """Keep whole all units that pass through the operation."""
        for labels in self.labels:
            for channel in labels.channels:
                self.units.freeze(channel, reason)
        return self.one_or_all([UnitLabels(shape) for shape in self.shapes])

    def pointwise(self, values: Sequence[UnitLabels], shape: Sequence[int]) -> UnitLabels:
        """Equate the ids that label the same element; data without ids pins what it meets."""
        merged: list[tuple[Tensor, bool]] = []
        for value in values:
            for channel in value.channels:
                self._merge_channel(merged, pad_labels(channel, len(shape)), value.table)
        channels = [channel for channel, _ in merged]
        for value in values:
            if not value.blank:
                self._pin_channels(value, channels, len(shape))
        blank = all(value.blank for value in values)
        table = all(value.table for value in values)
        result = UnitLabels(tuple(shape), channels, blank, table)
        self.units.refresh(result)
        return result

    def _merge_channel(
        self, merged: list[tuple[Tensor, bool]], channel: Tensor, table: bool
    ) -> None:
        """Unite a channel with the first one that runs along the same axes, or append it."""
        for position, (other, other_table) in enumerate(merged):
            if varying_axes(other).isdisjoint(varying_axes(channel)):
                continue
            if table != other_table and self._is_shared_table(channel, other, table):
                merged[position] = (other if table else channel, False)
                return
            self.units.equate(other, channel)
            united = _first_known(other, channel)
            merged[position] = (united, table and other_table)
            return
        merged.append((channel, table))

    def _is_shared_table(self, channel: Tensor, other: Tensor, table: bool) -> bool:
        """Freeze a table that repeats inside larger units (rotary angles in each head)."""
        small = other
        large = channel
        if table:
            small = channel
            large = other
        if not varying_axes(small) < varying_axes(large):
            return False
        self.freeze_ids(small, "a constant table is shared by all blocks")
        self.units.fuse(large, varying_axes(small))
        return True

    def _pin_channels(self, value: UnitLabels, channels: list[Tensor], rank: int) -> None:
        """Keep whole what meets the unlabelled axes of a value: its data tells positions apart."""
        added = rank - value.rank
        sizes = pad_shape(value.shape, rank)
        unlabelled = {dim for dim, size in enumerate(sizes) if size > 1}
        for dim in value.labelled_axes():
            unlabelled.discard(dim + added)
        for channel in channels:
            axes = varying_axes(channel)
            pinned = axes & unlabelled
            if pinned == axes:
                self.freeze_ids(channel, "meets data of fixed size")
            else:
                self.units.fuse(channel, pinned)

    def axis_ids(self, value: UnitLabels, dim: int) -> Tensor | None:
        """Return the ids along one dimension as a vector, or None where there are none."""
        current = value.like(value.shape, value.channels)
        self.units.refresh(current)
        vectors = []
        for channel in current.channels_along(dim):
            if varying_axes(channel) != {dim}:
                self.freeze_ids(channel, "the width runs along two axes at once")
            ids_last = channel.movedim(dim, -1)
            vectors.append(ids_last.reshape(-1, value.shape[dim])[0])
        for other in vectors[1:]:
            self.units.equate(vectors[0], other)
        if not vectors:
            return None
        return vectors[0]

    def tie_axes(self, a: Tensor | None, b: Tensor | None, *, blank: bool = False) -> None:
        """Equate two id vectors of one axis.

        Where one side has no ids, the other is frozen, unless the value without ids is `blank`.
        """
        if a is not None and b is not None:
            self.units.equate(a, b)
            return
        for ids in (a, b):
            if ids is not None and not blank:
                self.freeze_ids(ids, "meets data of fixed size")

    def expand_fully(self, value: UnitLabels, channel: Tensor) -> Tensor:
        """Expand a channel to the whole shape of its value."""
        return expand_labels(channel, value.shape, range(value.rank))


def _first_known(a: Tensor, b: Tensor) -> Tensor:
    """Return the ids of `a`, and those of `b` where `a` has none."""
    a, b = torch.broadcast_tensors(a, b)
    return torch.where(a != NO_ID, a, b)


def traced_shape(value: Tensor) -> tuple[int, ...]:
    """Return the shape a traced value had in the example, where sizes may be symbols."""
    return tuple(_traced_size(size) for size in value.shape)


def _traced_size(size: int | torch.SymInt) -> int:
    if isinstance(size, torch.SymInt):
        hint: int = size.node.hint
        return hint
    return int(size)


def describe_node(node: Node) -> str:
    """Return an operation with the module that runs it, and the line of the user's code.

    For example: aten.mul.Tensor in layers.0 (Scale), `return x * self.scale`
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    kind_name = kind if isinstance(kind, str) else kind.__name__
    class_name = kind_name.rpartition(".")[2]
    module_name = path.removeprefix("L['self']").lstrip(".") or "the model itself"
    description = f"{node.target} in {module_name} ({class_name})"
    line = _user_line(node)
    if line:
        description += f", `{line}`"
    return description


def _user_line(node: Node) -> str:
    """Return the innermost line of code outside `torch.nn` that led to this operation."""
    trace_lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    result = ""
    for place, code in pairwise(trace_lines):
        if 'File "' in place and "/torch/nn/" not in place:
            result = code.strip()
    return result
