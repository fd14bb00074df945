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
    UnitLabels,
    UnitTable,
    expand_labels,
    pad_labels,
    varying_axes,
)

RuleResult = UnitLabels | list[UnitLabels]
RuleFunction = Callable[["OperatorCall"], RuleResult]
RULES: dict[OpOverloadPacket, RuleFunction] = {}


def rule(*operations: OpOverloadPacket) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of these operations."""

    def register(function: RuleFunction) -> RuleFunction:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


@dataclass
class OperatorCall:
    """One operation: its arguments as labels (or plain values), its output shapes, and where it stands."""

    units: UnitTable
    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: list[tuple[int, ...]]
    several: bool
    constants: dict[Node, Tensor]

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
        return describe(self.node)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def labels(self) -> list[UnitLabels]:
        """All tensor arguments, in order."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, UnitLabels)]

    @property
    def first(self) -> UnitLabels:
        """The first tensor argument."""
        return self.labels[0]

    def results(self, labels: UnitLabels) -> RuleResult:
        """Return the same labels for every output, or unlabelled ones where the shape differs."""
        if not self.several:
            return labels
        return [labels if s == labels.shape else UnitLabels(s, blank=True) for s in self.shapes]

    def freeze_all(self, reason: str) -> RuleResult:
        """Keep everything that passes through whole."""
        for labels in self.labels:
            for channel in labels.channels:
                self.units.freeze(channel, reason)
        outs = [UnitLabels(shape) for shape in self.shapes]
        return outs if self.several else outs[0]

    def pointwise(self, values: Sequence[UnitLabels], shape: Sequence[int]) -> UnitLabels:
        """Equate the ids that label the same element; data without ids pins what it meets."""
        merged: list[tuple[Tensor, bool]] = []
        for value in values:
            for channel in value.channels:
                self._join(merged, pad_labels(channel, len(shape)), value.table)
        channels = [channel for channel, _ in merged]
        for value in values:
            if not value.blank:
                self._pin(value, channels, len(shape))
        blank, table = all(v.blank for v in values), all(v.table for v in values)
        out = UnitLabels(tuple(shape), channels, blank, table)
        self.units.refresh(out)
        return out

    def _join(self, merged: list[tuple[Tensor, bool]], channel: Tensor, table: bool) -> None:
        for i, (other, other_table) in enumerate(merged):
            if varying_axes(other).isdisjoint(varying_axes(channel)):
                continue
            if table != other_table and self._shared_table(channel, other, table):
                merged[i] = (other if table else channel, False)
                return
            self.units.equate(other, channel)
            both = torch.broadcast_tensors(other, channel)
            merged[i] = (torch.where(both[0] != 0, both[0], both[1]), table and other_table)
            return
        merged.append((channel, table))

    def _shared_table(self, channel: Tensor, other: Tensor, table: bool) -> bool:
        """Treat a table that repeats inside larger units (rotary angles in each head) as frozen."""
        small, large = (channel, other) if table else (other, channel)
        if not varying_axes(small) < varying_axes(large):
            return False
        self.units.freeze(small, f"a constant table is shared by all blocks ({self.where})")
        self.units.fuse(large, varying_axes(small))
        return True

    def _pin(self, value: UnitLabels, channels: list[Tensor], rank: int) -> None:
        sizes = (1,) * (rank - value.rank) + value.shape
        own = {d + rank - value.rank for d in value.marked()}
        for channel in channels:
            pinned = {d for d in varying_axes(channel) if sizes[d] > 1 and d not in own}
            if pinned == varying_axes(channel):
                self.units.freeze(channel, f"meets data of fixed size ({self.where})")
            else:
                self.units.fuse(channel, pinned)

    def vector(self, value: UnitLabels, dim: int) -> Tensor | None:
        """Return the ids along one dimension as a vector, or None where there are none."""
        found = [c for c in map(self.units.current, value.channels) if dim in varying_axes(c)]
        for channel in found:
            if varying_axes(channel) != {dim}:
                self.units.freeze(channel, f"the width runs along two axes at once ({self.where})")
        vectors = [c.movedim(dim, -1).reshape(-1, value.shape[dim])[0] for c in found]
        for other in vectors[1:]:
            self.units.equate(vectors[0], other)
        return vectors[0] if vectors else None

    def tie(self, a: Tensor | None, b: Tensor | None, *, blank: bool = False) -> None:
        """Equate two id vectors of one axis; where one side has none, the other is frozen unless blank."""
        if a is not None and b is not None:
            self.units.equate(a, b)
        for ids in (a, b):
            if ids is not None and (a is None or b is None) and not blank:
                self.units.freeze(ids, f"meets data of fixed size ({self.where})")

    def full(self, value: UnitLabels, channel: Tensor) -> Tensor:
        """Expand a channel to the whole shape of its value."""
        return expand_labels(channel, value.shape, range(value.rank))


def shape_of(value: Tensor) -> tuple[int, ...]:
    """Return the shape a traced value had in the example, where sizes may be symbols."""
    return tuple(n.node.hint if isinstance(n, torch.SymInt) else int(n) for n in value.shape)


def describe(node: Node) -> str:
    """Say which module runs an operation, and the line of the user's code that calls it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else kind.__name__
    name = path.removeprefix("L['self']").lstrip(".") or "the model itself"
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    own = [
        code.strip()
        for place, code in pairwise(lines)
        if 'File "' in place and "/torch/nn/" not in place
    ]
    return f"{node.target} in {name} ({kind.rpartition('.')[2]}){f', `{own[-1]}`' if own else ''}"
