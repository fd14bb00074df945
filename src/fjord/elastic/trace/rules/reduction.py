"""Operations along one or several axes: reductions, softmax, running sums, sorting."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fjord.elastic.trace.labels import UnitLabels, varying_axes
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule
from fjord.elastic.trace.rules.contraction import freeze_along
from fjord.elastic.trace.rules.elementwise import elementwise

A = torch.ops.aten

REDUCTIONS: tuple[Any, ...] = (
    A.mean,
    A.sum,
    A.amax,
    A.amin,
    A.any,
    A.all,
    A.var,
    A.var_mean,
    A.std,
    A.max,
    A.min,
    A.prod,
    A.linalg_vector_norm,
    A.logsumexp,
)


@rule(A._softmax, A._log_softmax, A.cumsum, A._safe_softmax, A.cumprod, A.logcumsumexp)
def run_along_axis(call: OperatorCall) -> RuleResult:
    """Keep the axis whole along which a softmax or a running sum is taken."""
    x = call.first
    dim = int(call.argument(1, "dim", -1)) % max(1, x.rank)
    freeze_along(call, x, dim, f"{call.operation} runs along the width")
    return x


@rule(A.sort, A.topk, A.argsort, A.argmax, A.argmin, A.kthvalue, A.median)
def sort_positions(call: OperatorCall) -> RuleResult:
    """Freeze all units: their positions become data."""
    return call.freeze_all(f"{call.operation} turns positions into data ({call.where})")


@rule(*REDUCTIONS)
def reduce_axes(call: OperatorCall) -> RuleResult:
    """Reduce: units along reduced axes alone vanish.

    Units that also span another axis stay, each as one unit.
    """
    if call.operation in (A.max, A.min):
        if len(call.labels) == 2:  # max(a, b)
            return elementwise(call)
        if _positions_used(call):
            return sort_positions(call)
    x = call.first
    dims = reduced_dims(call.operation, call.argument, x.rank)
    channels = []
    for channel in x.channels:
        axes = varying_axes(channel)
        if axes <= dims:
            continue
        call.units.fuse(channel, axes & dims)
        keeps_rank = len(call.shape) == x.rank
        channels.append(_reduce_channel(channel, dims, keep_dims=keeps_rank))
    result = UnitLabels(call.shape, channels, x.blank)
    if call.several:
        return [result] * len(call.shapes)
    return result


def _reduce_channel(channel: Tensor, dims: set[int], *, keep_dims: bool) -> Tensor:
    """Narrow the reduced axes of a channel to 1, or remove them."""
    sizes = []
    for dim, size in enumerate(channel.shape):
        if dim not in dims:
            sizes.append(size)
        else:
            channel = channel.narrow(dim, 0, 1)
            if keep_dims:
                sizes.append(1)
    return channel.reshape(sizes)


def reduced_dims(operation: Any, argument: Callable[[int, str], Any], rank: int) -> set[int]:
    """Return the axes a reduction runs over; `argument` returns one by position or name."""
    position = 1
    if operation is A.linalg_vector_norm:
        position = 2
    dims = argument(position, "dim")
    if dims is None or dims == []:
        return set(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    return {dim % max(1, rank) for dim in dims}


def _positions_used(call: OperatorCall) -> bool:
    """Check whether anything reads the second output of max or min, the positions."""
    if not call.several:
        return False
    for output in call.node.users:  # each takes one output, by its position
        if output.args[1] == 1 and output.users:
            return True
    return False
