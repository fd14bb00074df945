"""Operations that average over units: in the masked model they count the kept units only.

One decorated function for each kind of operation, like the rules in `trace/rules`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Interpreter, Node

from fjord.elastic.submodel.kept_units import KeptUnits
from fjord.elastic.trace.labels import UnitLabels
from fjord.elastic.trace.rules.reduction import REDUCTIONS, reduced_dims

A = torch.ops.aten

KeptPositions = dict[int, Tensor]
"""The kept indices along each axis that loses units."""


@dataclass
class MaskedCall:
    """One operation of the masked model: its arguments, and the labels of its first one."""

    interpreter: Interpreter
    units: KeptUnits
    node: Node
    labels: UnitLabels
    args: list[Any]
    kwargs: dict[str, Any]

    def argument(self, position: int, name: str) -> Any:
        """Return an argument passed by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name)

    def kept_positions(self, dims: Iterable[int]) -> KeptPositions:
        """Return the kept indices along those of the axes that lose units."""
        positions = {}
        for dim in dims:
            mask = self.units.mask(self.labels, dim)
            if not mask.all():
                positions[dim] = mask.nonzero()[:, 0]
        return positions

    def run_with(self, *args: Any) -> Any:
        """Run the operation with these arguments in place of its own."""
        return self.interpreter.call_function(self.node.target, args, self.kwargs)


AveragingFunction = Callable[[MaskedCall], Any]
AVERAGES: dict[Any, AveragingFunction] = {}


def averages(*operations: Any) -> Callable[[AveragingFunction], AveragingFunction]:
    """Register a function that runs these operations on the kept units alone."""

    def register(function: AveragingFunction) -> AveragingFunction:
        for operation in operations:
            AVERAGES[operation] = function
        return function

    return register


def select_kept(tensor: Tensor, kept: KeptPositions) -> Tensor:
    """Return the kept positions of a tensor."""
    for dim, index in kept.items():
        tensor = tensor.index_select(dim, index)
    return tensor


def _select_affine(value: Any, kept: KeptPositions) -> Any:
    """Return the kept positions of a scale or a bias; a norm may have None, or a number next."""
    if isinstance(value, Tensor):
        return select_kept(value, kept)
    return value


def restore_size(result: Tensor, full: Tensor, kept: KeptPositions) -> Tensor:
    """Put the kept positions back into a tensor of zeros with the size of `full`."""
    for dim, index in kept.items():
        shape = list(result.shape)
        shape[dim] = full.shape[dim]
        result = result.new_zeros(shape).index_copy_(dim, index, result)
    return result


def _restore_first(result: Any, full: Tensor, kept: KeptPositions) -> Any:
    """Restore the size of an operation's only or first output."""
    if isinstance(result, Tensor):
        return restore_size(result, full, kept)
    return (restore_size(result[0], full, kept), *result[1:])


@averages(*REDUCTIONS)
def masked_reduction(call: MaskedCall) -> Any:
    """Reduce over the kept units."""
    full, *others = call.args
    if others and isinstance(others[0], Tensor):  # max(a, b) is element by element
        return call.run_with(*call.args)
    assert isinstance(call.node.target, OpOverload)
    operation = call.node.target.overloadpacket
    dims = reduced_dims(operation, call.argument, call.labels.rank)
    kept = call.kept_positions(dims)
    return call.run_with(select_kept(full, kept), *others)


@averages(A.native_layer_norm, A.layer_norm, A.rms_norm, A._fused_rms_norm)
def masked_layer_norm(call: MaskedCall) -> Any:
    """Normalise over the kept units of the last axes."""
    full, normalized_shape, *others = call.args
    rank = call.labels.rank
    first_dim = rank - len(normalized_shape)
    kept = call.kept_positions(range(first_dim, rank))
    kept_affine = {dim - first_dim: index for dim, index in kept.items()}
    selected = select_kept(full, kept)
    selected_shape = list(selected.shape[first_dim:])
    affine = [_select_affine(value, kept_affine) for value in others[:2]]
    result = call.run_with(selected, selected_shape, *affine, *others[2:])
    return _restore_first(result, full, kept)


@averages(A.native_group_norm)
def masked_group_norm(call: MaskedCall) -> Any:
    """Normalise over the kept channels, if one group holds all."""
    full, weight, bias, batch, _, size, groups, *others = call.args
    kept = call.kept_positions([1])
    if groups > 1 or not kept:  # whole groups are dropped: the others do not notice
        return call.run_with(*call.args)
    kept_affine = {0: kept[1]}
    result = call.run_with(
        select_kept(full, kept),
        _select_affine(weight, kept_affine),
        _select_affine(bias, kept_affine),
        batch,
        len(kept[1]),
        size,
        groups,
        *others,
    )
    return _restore_first(result, full, kept)


@averages(A._native_batch_norm_legit)
def masked_batch_norm(call: MaskedCall) -> Any:
    """Normalise each channel over the kept units of all other axes."""
    full, *others = call.args
    other_dims = [dim for dim in range(call.labels.rank) if dim != 1]
    kept = call.kept_positions(other_dims)
    result = call.run_with(select_kept(full, kept), *others)
    return _restore_first(result, full, kept)
