"""Contractions: the contracted ids are equated, the others are passed on."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fjord.elastic.trace.labels import (
    FROZEN,
    UnitLabels,
    labels_along,
    narrow_shape,
    varying_axes,
)
from fjord.elastic.trace.rules.call import OperatorCall, RuleResult, rule

A = torch.ops.aten


def contract_axes(
    call: OperatorCall, a: UnitLabels, b: UnitLabels
) -> tuple[UnitLabels, UnitLabels]:
    """Contract the last axis of `a` (.., n, k) with the last but one of `b` (.., k, m).

    Return what is left of both, with k narrowed to 1.
    """
    a_dim = a.rank - 1
    b_dim = b.rank - 2
    a_channels = a.channels_along(a_dim)
    b_channels = b.channels_along(b_dim)
    for a_channel in a_channels:
        for b_channel in b_channels:
            # (.., n, 1, k) against (.., 1, m, k): every n and m meet over the same k
            rows = a_channel.unsqueeze(-2)
            columns = b_channel.transpose(-1, -2).unsqueeze(-3)
            call.units.equate(rows, columns)
    unlabelled_is_blank = b.blank if a_channels else a.blank
    if not (a_channels and b_channels) and not unlabelled_is_blank:
        for channel in a_channels + b_channels:
            call.freeze_ids(channel, "meets data of fixed size")
    return _drop_axis(call, a, a_dim), _drop_axis(call, b, b_dim)


def _drop_axis(call: OperatorCall, value: UnitLabels, dim: int) -> UnitLabels:
    """Narrow the contracted axis to 1; ids that span it and another axis become one unit each."""
    call.units.refresh(value)
    channels = []
    for channel in value.channels:
        axes = varying_axes(channel)
        if axes == {dim}:
            continue
        if dim in axes:
            call.units.fuse(channel, [dim])
        channels.append(channel.narrow(dim, 0, 1))
    return UnitLabels(narrow_shape(value.shape, dim), channels, value.blank)


def matrix_product(
    call: OperatorCall, a: UnitLabels, b: UnitLabels, shape: tuple[int, ...]
) -> UnitLabels:
    """Return the labels of a (batched) matrix product."""
    left, right = contract_axes(call, a, b)
    return call.pointwise([left, right], shape)


@rule(A.mm, A.bmm, A.matmul)
def matmul(call: OperatorCall) -> RuleResult:
    """Multiply matrices."""
    a, b = call.labels[:2]
    if min(a.rank, b.rank) < 2:
        return call.freeze_all(f"a product with a vector ({call.where})")
    return matrix_product(call, a, b, call.shape)


@rule(A.addmm, A.baddbmm)
def add_matmul(call: OperatorCall) -> RuleResult:
    """Multiply matrices and add."""
    bias, a, b = call.labels[:3]
    product = matrix_product(call, a, b, call.shape)
    return call.pointwise([product, bias], call.shape)


@rule(A.linear)
def linear(call: OperatorCall) -> RuleResult:
    """Apply weight (out, in) and bias to the last axis."""
    x, weight, *bias = call.labels
    if min(x.rank, weight.rank) == 1:
        return call.freeze_all(f"a linear layer on a single vector ({call.where})")
    product = matrix_product(call, x, _transpose_last(weight), call.shape)
    return call.pointwise([product, *bias], call.shape)


def _transpose_last(value: UnitLabels) -> UnitLabels:
    """Swap the last two axes."""
    *outer, rows, columns = value.shape
    channels = [channel.transpose(-1, -2) for channel in value.channels]
    return value.like((*outer, columns, rows), channels)


@rule(A.convolution)
def convolution(call: OperatorCall) -> RuleResult:
    """Convolve: channels are contracted, kernel and image axes stay whole."""
    x, weight, *biases = call.labels
    for channel in weight.channels:
        if max(varying_axes(channel), default=0) > 1:
            call.units.freeze(channel, "kernel positions")
    for dim in range(2, x.rank):
        freeze_along(call, x, dim, "a convolution runs along the width")
    groups = int(call.argument(8, "groups", 1))
    if groups == 1:
        out_ids = _dense_convolution(call, x, weight)
    else:
        out_ids = _grouped_convolution(call, x, weight, groups)
    rank = len(call.shape)
    product = UnitLabels(call.shape)
    if out_ids is not None:
        product.channels.append(labels_along(out_ids, 1, rank))
    return call.pointwise([product, *as_image_channels(biases, rank)], call.shape)


def as_image_channels(vectors: Iterable[UnitLabels], rank: int) -> list[UnitLabels]:
    """Lay vectors along axis 1 of a value with the given rank."""
    result = []
    for vector in vectors:
        shape = vector.shape + (1,) * (rank - 2)
        channels = [channel.reshape(shape) for channel in vector.channels]
        result.append(vector.like(shape, channels))
    return result


def _is_transposed(call: OperatorCall) -> bool:
    return bool(call.argument(6, "transposed", False))


def _dense_convolution(call: OperatorCall, x: UnitLabels, weight: UnitLabels) -> Tensor | None:
    """Tie the input channels; return the ids of the output channels."""
    out_dim = 0
    in_dim = 1
    if _is_transposed(call):
        out_dim = 1
        in_dim = 0
    if weight.shape[in_dim] > 1:
        x_ids = call.axis_ids(x, 1)
        weight_ids = call.axis_ids(weight, in_dim)
        call.tie_axes(x_ids, weight_ids, blank=x.blank)
    return call.axis_ids(weight, out_dim)


def _grouped_convolution(
    call: OperatorCall, x: UnitLabels, weight: UnitLabels, groups: int
) -> Tensor | None:
    """Make one group one unit; in a depthwise convolution that is one channel."""
    if _is_transposed(call):
        call.freeze_all(f"a transposed convolution with groups ({call.where})")
        return None
    inner_ids = call.axis_ids(weight, 1)
    if inner_ids is not None:
        call.freeze_ids(inner_ids, "channels inside a group")
    x_ids = call.axis_ids(x, 1)
    out_ids = call.axis_ids(weight, 0)
    x_groups = _fuse_groups(call, x_ids, groups)
    out_groups = _fuse_groups(call, out_ids, groups)
    call.tie_axes(x_groups, out_groups, blank=x.blank)
    if out_ids is None:
        return torch.full((call.shape[1],), FROZEN)
    return out_ids


def _fuse_groups(call: OperatorCall, ids: Tensor | None, groups: int) -> Tensor | None:
    """Make the ids of each group one unit; return the first id of each group."""
    if ids is None:
        return None
    blocks = ids.reshape(groups, -1)
    call.units.fuse(blocks, [1])
    return blocks[:, 0]


@rule(A.scaled_dot_product_attention)
def attention(call: OperatorCall) -> RuleResult:
    """Attend by whole heads: the axis inside a head stays whole, as its size sets the scale."""
    q, k, v, *mask = call.labels
    if call.kwargs.get("enable_gqa"):
        return call.freeze_all(f"grouped-query attention ({call.where})")
    for value in (q, k):
        for channel in value.channels:
            if varying_axes(channel) == {value.rank - 1}:
                call.freeze_ids(channel, "the width inside a head sets the scale")
    scores_shape = (*call.shape[:-1], k.shape[-2])
    product = matrix_product(call, q, _transpose_last(k), scores_shape)
    scores = call.pointwise([product, *mask], scores_shape)
    freeze_along(call, scores, len(scores_shape) - 1, "a softmax runs along the width")
    return matrix_product(call, scores, v, call.shape)


def freeze_along(call: OperatorCall, value: UnitLabels, dim: int, reason: str) -> None:
    """Keep an axis whole; where units span it and another axis, each becomes one unit."""
    for channel in value.channels:
        axes = varying_axes(channel)
        if axes == {dim}:
            call.freeze_ids(channel, reason)
        elif dim in axes:
            call.units.fuse(channel, [dim])
    call.units.refresh(value)
